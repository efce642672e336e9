"""Each rule of `agentgym audit` fails on a real fault of its own kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import normalizers
from transformers import AddedToken

from agentgym_train.audit import rules
from agentgym_train.audit.subject import AuditedModel
from agentgym_train.engines.base import EngineLost
from agentgym_train.models.setup import CHATML
from tests.train.auditing import QUICK, Wrapped, failed, findings, subject_with
from tests.train.templates import DROPS_REASONING, LLAMA3, any_tokenizer, tokenizer_with


def test_a_template_that_drops_earlier_reasoning_fails_and_names_the_turn():
    found = findings(subject_with(DROPS_REASONING), "chat", "append-only")
    assert found["chat"].status == found["append-only"].status == "FAIL"
    assert "drops the reasoning of earlier turns" in found["chat"].detail
    place = found["append-only"].place
    assert place.where == "with reasoning, after turn 1"
    assert "<think>" in place.expected and "<think>" not in place.found
    assert "keep_reasoning" in found["append-only"].remedy


def test_a_template_that_moves_the_instruction_to_the_last_message_fails():
    """As Mistral's does, which merges the system message into the newest user message."""
    moves = (
        "{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
        "{% if loop.last and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n"
        "{% endif %}{{ m['content'] }} [/INST]{% elif m['role'] == 'assistant' %}"
        "{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
    )
    found = findings(subject_with(moves), "chat", "append-only")
    assert {f.status for f in found.values()} == {"FAIL"}
    assert "Craft." in found["append-only"].place.expected
    assert "Craft." not in found["append-only"].place.found


def test_kept_reasoning_passes_and_is_told():
    subject = subject_with(DROPS_REASONING, replace(QUICK, keep_reasoning=True))
    assert not failed(subject)
    (note,) = findings(subject, "append-only")["append-only"].notes
    assert "changes earlier turns (reasoning)" in note


def test_kept_reasoning_excuses_no_other_rewriting():
    forgets = CHATML.replace("{{ m['content'] }}", "{{ m['content'] if loop.index0 > 1 else '' }}")
    settings = replace(QUICK, keep_reasoning=True)
    assert "append-only" in failed(subject_with(forgets, settings), "append-only")


def test_a_template_that_strips_on_one_side_fails_where_the_ids_part():
    strips = CHATML.replace("{{ m['content'] }}", "{{ m['content'].rstrip() }}")
    found = findings(subject_with(strips), "turn deltas")["turn deltas"]
    assert found.status == "FAIL" and "'  spaces around  '" in found.detail
    assert found.place.token > 0
    dropping = DROPS_REASONING.replace("+ content +", "+ content.rstrip() +")
    assert dropping != DROPS_REASONING
    kept = subject_with(dropping, replace(QUICK, keep_reasoning=True))
    assert failed(kept, "turn deltas", "append-only") == {"turn deltas"}


@pytest.mark.parametrize("shortened", ["[:4000]", "[-4000:]", " | truncate(2000)"])
def test_a_template_that_shortens_long_texts_fails(shortened):
    cut = CHATML.replace("{{ m['content'] }}", f"{{{{ m['content']{shortened} }}}}")
    assert cut != CHATML
    assert failed(subject_with(cut), "turn deltas") == {"turn deltas"}


def test_a_template_with_the_time_of_day_fails_and_one_with_the_date_is_told():
    at = "<|im_start|>assistant\n"
    clock = CHATML.replace(at, "<|im_start|>assistant {{ strftime_now('%H:%M:%S') }}\n")
    day = CHATML.replace(at, "<|im_start|>assistant {{ strftime_now('%d %b %Y') }}\n")
    assert failed(subject_with(clock), "clock") == {"clock"}
    found = findings(subject_with(day), "clock")["clock"]
    assert found.status == "pass" and "inserts the date" in found.notes[0]


def test_without_an_end_of_turn_there_is_no_chat_and_the_rest_is_skipped_not_passed():
    plain = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    found = findings(subject_with(plain))
    assert "could not end its turn" in found["chat"].detail
    passed = {name for name, f in found.items() if f.status == "pass"}
    assert passed == {"append-only", "clock", "pad token", "vocabulary"}


def test_a_begin_token_may_begin_turns_and_must_not_stand_twice():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.bos_token = "<|im_start|>"
    assert not failed(subject_with(tokenizer), "chat")
    doubled = tokenizer_with(LLAMA3)
    doubled.chat_template = LLAMA3.replace("<|begin_of_text|>", "<|begin_of_text|>" * 2)
    assert failed(subject_with(doubled), "chat") == {"chat"}


def test_an_added_token_that_is_not_special_is_told():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.add_tokens(["<tool_call>"])
    found = findings(subject_with(tokenizer), "observation text")["observation text"]
    assert found.status == "pass" and "<tool_call>" in found.notes[0]


def test_an_engine_that_is_lost_fails_once_and_skips_what_needs_it():
    def unplugged(*asked):
        raise EngineLost("unplugged")

    found = findings(subject_with(engine=lambda sound: Wrapped(sound, ask=unplugged)))
    assert {n for n, f in found.items() if f.status == "FAIL"} == {"episodes"}
    assert "unplugged" in found["episodes"].detail
    assert found["log-probs"].status == "skipped"


def test_an_engine_with_other_logprobs_fails_at_the_worst_token_with_both_numbers():
    def biased(generation):
        logprobs = [p - 0.01 * (i == 3) for i, p in enumerate(generation.logprobs)]
        return replace(generation, logprobs=logprobs)

    subject = subject_with(engine=lambda sound: Wrapped(sound, answer=biased))
    assert failed(subject) == {"log-probs"}
    found = findings(subject, "log-probs")["log-probs"]
    assert found.figures["max"] == pytest.approx(0.01, abs=1e-4)
    assert "the engine is wrong" in found.remedy
    assert "engine -" in found.place.expected and "trainer -" in found.place.found
    lenient = subject_with(
        engine=lambda sound: Wrapped(sound, answer=biased), settings=replace(QUICK, tolerance=0.02)
    )
    assert not failed(lenient, "log-probs")


def test_an_engine_that_tokenises_its_prompt_again_gives_other_logprobs():
    tokenizer = tokenizer_with(CHATML)

    def again(ids, how):
        return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False), how

    subject = subject_with(tokenizer, engine=lambda sound: Wrapped(sound, ask=again))
    assert failed(subject) == {"log-probs"}


def test_dropout_in_training_mode_is_the_trainers_fault():
    found = findings(subject_with(LLAMA3, engine=_with_dropout), "log-probs")["log-probs"]
    assert found.status == "FAIL" and "the trainer is wrong. Disable dropout" in found.remedy


def _with_dropout(engine):
    for module in engine.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    return engine


def test_a_model_that_looks_at_padding_fails():
    subject = subject_with()

    def look_at_padding(module, arguments, values):
        return arguments, {**values, "attention_mask": torch.ones_like(values["input_ids"])}

    subject.model.register_forward_pre_hook(look_at_padding, with_kwargs=True)
    found = findings(subject, "padding")["padding"]
    assert found.status == "FAIL" and "columns of padding" in found.detail


def test_a_pad_token_that_is_a_word_fails():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.pad_token = "craft"
    found = findings(subject_with(tokenizer), "pad token")["pad token"]
    assert found.status == "FAIL" and "ordinary token" in found.detail


def test_a_pad_token_that_ends_a_turn_passes():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.pad_token = tokenizer.eos_token
    assert not failed(subject_with(tokenizer))


def test_a_token_without_an_embedding_fails():
    subject = subject_with()
    subject.tokenizer.add_tokens(["<new>"])
    found = findings(subject, "vocabulary")["vocabulary"]
    assert found.status == "FAIL" and "resize_token_embeddings" in found.remedy


def test_a_model_that_stops_inside_its_reasoning_fails():
    tokenizer = any_tokenizer("gptoss")
    settings = replace(QUICK, keep_reasoning=True)
    assert not failed(subject_with(tokenizer, settings), "end of turn", "demonstrations")
    subject = subject_with(tokenizer, settings)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    subject.model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    again = AuditedModel("tiny", subject.model, tokenizer, settings)
    found = findings(again, "end of turn")["end of turn"]
    assert found.status == "FAIL" and "inside a turn with reasoning" in found.detail


def test_a_tokenizer_whose_ids_decode_to_another_text_fails():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    found = findings(subject_with(tokenizer), "demonstrations")["demonstrations"]
    assert found.status == "FAIL" and "a tokenizer whose ids decode to" in found.remedy
    assert (found.place.expected[:8], found.place.found[:8]) == ("get 2 Oa", "get 2 oa")


@pytest.mark.parametrize("name", ["qwen3_5_think", "gptoss", "glm4moe", "llama2", "mistral"])
def test_demonstrations_that_are_rendered_pass(name):
    settings = replace(QUICK, keep_reasoning=True)
    assert not failed(subject_with(any_tokenizer(name), settings), "demonstrations")


def test_a_control_token_with_another_spelling_fails():
    tokenizer = tokenizer_with(CHATML)
    assert not failed(subject_with(tokenizer), "observation text")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<|stop|>", special=True, normalized=True)])
    found = findings(subject_with(tokenizer), "observation text")["observation text"]
    assert found.status == "FAIL" and "normalized=False" in found.remedy
    assert "<|STOP|>" in found.detail and "could end or forge a turn" in found.detail


def test_a_template_that_renders_no_action_after_its_prompt_is_noted():
    settings = replace(QUICK, keep_reasoning=True)
    subject = subject_with(any_tokenizer("deepseek_r1_distill"), settings)
    found = findings(subject, "demonstrations")["demonstrations"]
    assert found.status == "pass" and "renders no action after the prompt" in found.notes[0]


def test_no_remedy_is_a_report_of_a_bug():
    """What only our code can break is tested here, and no rule."""
    for path in Path(rules.__file__).parent.glob("*.py"):
        assert "bug" not in path.read_text(encoding="utf-8"), path
