"""Every chat template that TRL has, and older ones: stops, reasoning, demonstrations and ids."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
from msgspec import structs

from agentgym_env.actions import UNFINISHED, ActionError, action_format
from agentgym_env.errors import ConfigError
from agentgym_env.reasoning import reply_of
from agentgym_env.tools import ACT
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.pairs import Pair
from agentgym_train.data.tokenize import IGNORED, EpisodeTokenizer, training_row
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.chat import Chat, TemplateRewritesHistory, chat_of
from agentgym_train.rollout.model_actors import model_actor
from agentgym_train.training.dpo import pair_row
from tests.train.demonstrating import demonstration
from tests.train.templates import TEMPLATES, TOKENIZERS, any_tokenizer

IMAGES = ("idefics3", "llava_next", "smolvlm")
"""Templates whose messages have no text but in parts: they cannot show an observation."""
ACTION, THOUGHT = "get 1 oak log", "I need wood.\nAction: get 9 diamonds"
OPENED = "<think>\n"

TABLE = {
    # What a demonstrated action is trained as, after the prompt, and further stops.
    "cohere": (f"{ACTION}<|END_OF_TURN_TOKEN|>", set()),
    "cohere2": (f"{ACTION}<|END_RESPONSE|>", {"<|END_OF_TURN_TOKEN|>"}),
    "deepseek": (f"\n</think>\n\n{ACTION}<\uff5cend▁of▁sentence\uff5c>", set()),
    "diffusion_gemma": (f"{ACTION}<turn|>", set()),
    "gemma": (f"{ACTION}<end_of_turn>", set()),
    "gemma4": (f"{ACTION}<turn|>", set()),
    "glm4moe": (f"\n<think></think>\n{ACTION}<|user|>", {"<|endoftext|>"}),
    "gptoss": (f"<|channel|>final<|message|>{ACTION}<|return|>", set()),
    "lfm2": (f"{ACTION}<|im_end|>", set()),
    "llama3": (f"{ACTION}<|eot_id|>", set()),
    "muse_glimmer": (f" to=user<|message|>{ACTION}<|eot|>", set()),
    "nemotron_3_5_lightning": (f"</think>{ACTION}<|im_end|>", set()),
    "nemotron_3_ultra": (f"</think>{ACTION}<|im_end|>", set()),
    "nemotron_3": (f"\n</think>\n{ACTION}<|im_end|>", set()),
    "phi3": (f"{ACTION}<|end|>", set()),
    "qwen2_5": (f"{ACTION}<|im_end|>", set()),
    "qwen3": (f"<think>\n\n</think>\n\n{ACTION}<|im_end|>", set()),
    "qwen3_5_think": (f"\n</think>\n\n{ACTION}<|im_end|>", set()),
    "qwen3_5_nothink": (f"{ACTION}<|im_end|>", set()),
    "qwen3_6": (f"\n</think>\n\n{ACTION}<|im_end|>", set()),
    "qwen3_8": (f"\n</think>\n\n{ACTION}<|im_end|>", set()),
    "qwen3_instruct": (f"{ACTION}<|im_end|>", set()),
    "qwen3_vl": (f"{ACTION}<|im_end|>", set()),
    "zephyr": (f"{ACTION}</s>", set()),
    "llama2": (f" {ACTION} </s>", set()),
    "mistral": (f" {ACTION}</s>", set()),
}
"""By the longest beginning of a template's name."""


def row_of(name):
    return TABLE[max((known for known in TABLE if name.startswith(known)), key=len)]


@cache
def chat_with(name, spaces="bytes"):
    """A chat, and whether the template keeps the history as it was."""
    tokenizer = any_tokenizer(name, spaces)
    try:
        return Chat(tokenizer, "Craft."), True
    except TemplateRewritesHistory:
        return Chat(tokenizer, "Craft.", keep_reasoning=True), False


def usable():
    return [name for name in TEMPLATES if not name.startswith(IMAGES)]


def rendered(chat, tokenizer, *messages, generate=False):
    opening = chat._opening("You see 3 oak logs.")
    return tokenizer.apply_chat_template(
        [*opening, *messages], tokenize=False, add_generation_prompt=generate
    )


def said(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def test_templates_that_show_texts_in_parts_alone_are_refused():
    for name in IMAGES:
        with pytest.raises(ConfigError, match="chat template"):
            Chat(any_tokenizer(name))


def test_demonstrations_end_and_begin_as_the_template_renders_them():
    wrong = {}
    for name in usable():
        chat, _ = chat_with(name)
        tokenizer = any_tokenizer(name)
        found = tokenizer.decode(chat.response_ids(chat.demonstration(ACTION)))
        if found != row_of(name)[0]:
            wrong[name] = found
        prompt = rendered(chat, tokenizer, generate=True)
        whole = rendered(chat, tokenizer, said(ACTION))
        if whole.startswith(prompt) and not whole.startswith(
            prompt + found.removesuffix("<|user|>")
        ):
            wrong[name, "rendering"] = whole, prompt + found
    assert not wrong


def test_sampling_stops_where_a_turn_ends_and_not_before():
    wrong = {}
    for name in usable():
        chat, tokenizer = chat_with(name)[0], any_tokenizer(name)
        stops = set(tokenizer.convert_ids_to_tokens(chat.stop_ids))
        end = tokenizer.convert_ids_to_tokens(chat.end_id)
        further = row_of(name)[1] | {tokenizer.eos_token}
        if stops != {end} | further or not row_of(name)[0].endswith(end):
            wrong[name] = stops
    assert not wrong


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("llama3_1", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
        ("gptoss", ["<|return|>", "<|endoftext|>", "<|call|>"]),
        ("qwen2_5", ["<|im_end|>", "<|endoftext|>"]),
    ],
)
def test_sampling_stops_at_the_ends_of_the_generation_config(name, ends):
    tokenizer = any_tokenizer(name)
    tokenizer.add_tokens(ends, special_tokens=True)
    ids = tokenizer.convert_tokens_to_ids(ends)
    for keep in (False, True):
        try:
            chat = Chat(tokenizer, "Craft.", keep_reasoning=keep, end_ids=ids)
        except TemplateRewritesHistory:
            continue
        assert set(ids) <= set(chat.stop_ids)
        for number in ids:
            sampled = [*chat.response_ids("look")[:-1], number]
            assert chat.text_of(sampled) == "look"
    ordinary = tokenizer.encode("o", add_special_tokens=False)[0]
    assert ordinary not in Chat(tokenizer, keep_reasoning=True, end_ids=[ordinary]).stop_ids


@pytest.mark.parametrize("spaces", TOKENIZERS)
def test_turn_by_turn_gives_the_ids_of_the_rendering(spaces):
    """For each template that keeps history, and with each kind of spaces before words."""
    turns = [(ACTION, "Got 1 oak log\nInventory: [oak log] (1)"), ("Thought:\nx\n\nAction:\nb", "")]
    turns.append(("look", "  spaces and\ttabs  "))
    wrong, kept = {}, []
    for name in usable():
        chat, keeps = chat_with(name, spaces)
        if not keeps:
            continue
        kept.append(name)
        tokenizer = any_tokenizer(name, spaces)
        ids, messages = chat.start("You see 3 oak logs."), []
        for action, observation in turns:
            response = chat.response_ids(chat.demonstration(action))
            ids += [*response, *chat.delta(response, observation)]
            messages += [said(action), {"role": "user", "content": observation}]
        whole = rendered(chat, tokenizer, *messages, generate=True)
        if ids != tokenizer.encode(whole, add_special_tokens=False):
            wrong[name] = tokenizer.decode(ids), whole
    assert not wrong
    assert {"llama3", "qwen2_5", "gemma", "phi3", "zephyr", "llama2", "mistral"} <= set(kept)


@pytest.mark.parametrize("spaces", TOKENIZERS)
def test_a_sampled_text_gives_its_ids_again(spaces):
    """With the spaces that it begins with, and however often it is stored and read.

    Not where a tokenizer puts spaces behind the special tokens inside a turn, as no model's does.
    """
    wrong = {}
    for name in usable():
        if spaces in ("always", "prepend") and name.startswith(("gptoss", "muse")):
            continue
        chat, _ = chat_with(name, spaces)
        for text in (ACTION, "  go  ", "\nlook", "a\tb", f" {chat.demonstration(ACTION).lstrip()}"):
            ids = chat.response_ids(text)
            if chat.response_ids(chat.text_of(ids)) != ids:
                wrong[name, text] = chat.text_of(ids)
    assert not wrong


@pytest.mark.parametrize("spaces", TOKENIZERS)
def test_a_named_special_token_in_an_observation_gets_no_spaces(spaces):
    for name in ("zephyr", "llama2", "mistral", "gemma", "phi3"):
        chat, tokenizer = chat_with(name, spaces)[0], any_tokenizer(name, spaces)
        special = [token for token in chat._control.values() if token]
        plain = sum(i in chat._control for i in chat.delta([chat.end_id], "x"))
        for text in (f"a{special[0]}b", f"a {' b '.join(special)} c"):
            delta = chat.delta([chat.end_id], text)
            assert text in tokenizer.decode(delta) and text in tokenizer.decode(chat.start(text))
            assert sum(i in chat._control for i in delta) == plain, "none of them is obeyed"


def turn_with_reasoning(chat, tokenizer, reply):
    """The ids of a turn as a model with this template writes it; None if it has no reasoning."""
    prompt = rendered(chat, tokenizer, generate=True)
    fields = {"reasoning_content": THOUGHT, "thinking": THOUGHT}
    for message in (said(reply, **fields), said(f"<think>\n{THOUGHT}\n</think>\n\n{reply}")):
        whole = rendered(chat, tokenizer, message)
        if whole.startswith(prompt) and THOUGHT in whole[len(prompt) :]:
            return tokenizer.encode(whole[len(prompt) :], add_special_tokens=False)
    if prompt.endswith(OPENED):
        text = f"{THOUGHT}\n</think>\n\n{reply}"
        return tokenizer.encode(text, add_special_tokens=False)
    return None


def test_reasoning_is_no_action_and_neither_is_a_turn_that_ends_inside_it():
    wrong, thinking = {}, []
    for name in usable():
        chat, tokenizer = chat_with(name)[0], any_tokenizer(name)
        for form, reply in (("plain", ACTION), ("react", f"Thought:\nx\n\nAction:\n{ACTION}")):
            ids = turn_with_reasoning(chat, tokenizer, reply)
            if ids is None:
                continue
            thinking.append(name)
            end = next((at for at, i in enumerate(ids) if i in chat.stop_ids), len(ids))
            found = action_format(form).parse(chat.text_of(ids[: end + 1]))
            inside = len(tokenizer.encode(THOUGHT.partition("\n")[0], add_special_tokens=False))
            cut = action_format(form).parse(chat.text_of(ids[: inside + 14]))
            if (found, cut) != (ACTION, UNFINISHED):
                wrong[name, form] = tokenizer.decode(ids), found, cut
    assert not wrong
    assert {"gptoss", "qwen3", "qwen3_5_think", "glm4moe", "deepseekv3"} <= set(thinking)
    assert {"gemma4_v5", "muse_glimmer", "nemotron_3_nano", "lfm2_2_5"} <= set(thinking)


FAMILIES = (
    "qwen2_5", "qwen3", "llama3_1", "mistral", "gptoss", "qwen3_5_think", "glm4moe",
    "nemotron_3_nano", "nemotron_3_ultra",
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_inside_reasoning_is_not_carried_out(name):
    chat = Chat(any_tokenizer(name), "Craft.", keep_reasoning=True, tools=[ACT])
    form = chat.form(None)
    call = form.render("look")
    opening, closing = ("<think>\n", "\n</think>\n\n")
    if name == "gptoss":
        opening = "<|channel|>analysis<|message|>"
        closing = "<|end|><|start|>assistant"
    bare = reply_of(chat.text_of(chat.response_ids(call))).lstrip("\n")
    parse = form.parse
    assert parse(chat.text_of(chat.response_ids(call))) == "look"
    assert parse(opening + bare + closing + bare.replace("look", "go")) == "go"
    for text in (
        opening + bare,
        opening + "hm" + closing + opening + bare,
        opening + "hm" + closing + opening + bare + closing,
    ):
        assert isinstance(parse(text), ActionError), text
        assert not chat.calls_in(text)


def test_a_stored_turn_with_reasoning_is_tokenized_as_it_is():
    for name in ("qwen3_5_think", "deepseek_r1_distill", "nemotron_3_nano", "gptoss", "glm4moe"):
        chat, tokenizer = chat_with(name)[0], any_tokenizer(name)
        ids = turn_with_reasoning(chat, tokenizer, ACTION)
        ids = [*ids[: next((n for n, i in enumerate(ids) if i == chat.end_id), len(ids))]]
        text = chat.text_of([*ids, chat.end_id])
        assert chat.demonstration(text) == text
        again = chat.response_ids(text)
        assert tokenizer.decode(again) == tokenizer.decode([*ids, chat.end_id])
        assert [i for i in again if i in chat._control] == [
            i for i in [*ids, chat.end_id] if i in chat._control
        ]


@pytest.mark.parametrize("name", ["qwen3_5_think", "deepseek_r1_distill", "gptoss", "glm4moe"])
def test_sft_and_dpo_train_the_actions_as_they_are_rendered(name):
    """In the middle of an episode as at its end."""
    tokenizer, won = any_tokenizer(name), demonstration()
    episode_tokenizer = EpisodeTokenizer(tokenizer, PolicyConfig(keep_reasoning=True))
    (row,) = episode_tokenizer.rows(won)
    labels = training_row(row)["labels"]
    trained = [row_of(name)[0].replace(ACTION, turn.action) for turn in won.turns]
    assert len(trained) > 1
    assert tokenizer.decode([i for i in labels if i != IGNORED]) == "".join(trained)
    lost = structs.replace(won, turns=won.turns[:1], success=False, outcome="failure")
    pair = pair_row(Pair(won, lost), episode_tokenizer)
    masked = zip(pair["rejected_ids"], pair["rejected_mask"], strict=True)
    assert tokenizer.decode([i for i, mask in masked if mask]) == trained[0]


def test_another_policys_action_is_put_into_the_conversation_as_it_is_rendered():
    """As when episodes are mixed, which learners read as context."""
    tokenizer, config = any_tokenizer("qwen3_5_think"), PolicyConfig(keep_reasoning=True)
    chat = chat_of(config, tokenizer, "Craft.")
    actor = model_actor(ScriptedEngine(lambda *_: []), chat, config)()
    actor.open("You see 3 oak logs.", 0)
    actor.insert(ACTION)
    (row,) = asyncio.run(actor.end())
    assert tokenizer.decode(row.completion_ids) == row_of("qwen3_5_think")[0]


def test_a_turn_that_is_cut_inside_its_reasoning_reaches_no_environment():
    """The prompt opens the thought, so its text alone does not show that it is one."""
    tokenizer = any_tokenizer("qwen3_5_think")
    chat = Chat(tokenizer, "Craft.", keep_reasoning=True)
    ids = tokenizer.encode("I could get 1 oak log", add_special_tokens=False)
    assert action_format("plain").parse(tokenizer.decode(ids)) == "I could get 1 oak log"
    assert chat.text_of(ids) == f"{OPENED}I could get 1 oak log"
    assert action_format("plain").parse(chat.text_of(ids)) == UNFINISHED
