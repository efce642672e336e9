"""An episode becomes the rows that it would have been if the policy had said what it says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentgym_env.actions import action_format
from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Tokens, Turn
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.tokenize import IGNORED, EpisodeTokenizer, response_in, training_row
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.model_actors import ModelActor
from tests.train.demonstrating import demonstration
from tests.train.small import textcraft_tokenizer
from tests.train.templates import APPEND_ONLY, tokenizer_with


def trained_text(tokenizer, rows: list[Tokens]) -> str:
    labels = [i for row in rows for i in training_row(row)["labels"] if i != IGNORED]
    return str(tokenizer.decode(labels))


@pytest.mark.parametrize("form", ["plain", "react", "act"])
@pytest.mark.parametrize("name", APPEND_ONLY)
def test_the_trained_tokens_decode_to_exactly_what_the_policy_says(name, form):
    tokenizer = tokenizer_with(APPEND_ONLY[name])
    episode = demonstration("ladder", instruction="Craft what is asked for.")
    episode_tokenizer = EpisodeTokenizer(tokenizer, PolicyConfig(action_format=form))
    (row,) = episode_tokenizer.rows(episode)
    end = tokenizer.convert_ids_to_tokens(episode_tokenizer.chat_of(episode).end_id)
    render = action_format(form).render
    said = "".join(render(turn.action) + end for turn in episode.turns)
    assert trained_text(tokenizer, [row]) == said
    flat = training_row(row)
    for token, label in zip(flat["input_ids"], flat["labels"], strict=True):
        assert label in (IGNORED, token)
    context = tokenizer.decode(flat["input_ids"])
    assert "Craft what is asked for." in context and episode.turns[0].observation in context


@pytest.mark.parametrize("agent", ["plain", "window:2", "summary:2", "plan_then_act"])
def test_a_replayed_row_is_the_row_that_was_sampled(agent):
    """Played by a scripted model under the agent, and replayed from the kept texts alone."""
    tokenizer = textcraft_tokenizer()
    chat = Chat(tokenizer, "Craft.")
    words = ["get 1 stick", "inventory", "craft 4 torch using 1 stick", "wait", "get 2 coal"] * 3
    engine = ScriptedEngine(lambda _, turn: chat.response_ids(words[turn]))
    actor = ModelActor(
        engine,
        chat,
        PolicyConfig(model="scripted", turn_max_tokens=64, max_tokens=4096),
        agent=PolicyConfig(agent=agent).new_agent(),
    )

    async def play() -> tuple[list[Turn], list[Tokens]]:
        turns: list[Turn] = []
        await actor.begin(None, "Goal: craft torch.", 0)
        while sum(bool(turn.action) for turn in turns) < 7:
            output = await actor.act()
            turns.append(Turn(output.response, output.action or "", output.answer))
            if output.action is not None:
                turns[-1] = msgspec.structs.replace(turns[-1], observation=f"Seen {len(turns)}.")
                if sum(bool(turn.action) for turn in turns) < 7:
                    await actor.observe(turns[-1].observation)
        return turns, await actor.end()

    turns, sampled = asyncio.run(play())
    episode = demonstration(
        observation="Goal: craft torch.", turns=turns, instruction="Craft.", policy="scripted"
    )
    replayed = EpisodeTokenizer(tokenizer, PolicyConfig(agent=agent)).rows(episode)
    assert [training_row(row) for row in replayed] == [training_row(row) for row in sampled]
    assert (len(replayed) > 1) == (agent in ("window:2", "summary:2"))


def test_an_experts_episode_under_a_window_has_a_row_for_each_context():
    tokenizer = textcraft_tokenizer()
    episode = demonstration("ladder")
    rows = EpisodeTokenizer(tokenizer, PolicyConfig(agent="window:2")).rows(episode)
    assert len(rows) > 1
    said = trained_text(tokenizer, rows).split("<|im_end|>")
    assert said == [*(turn.response for turn in episode.turns), ""], "each turn trains once"


def test_an_agent_that_asks_for_turns_the_expert_did_not_take_is_refused():
    with pytest.raises(BadRequest, match="plan_then_act requests a turn without an action"):
        EpisodeTokenizer(textcraft_tokenizer(), PolicyConfig(agent="plan_then_act")).rows(
            demonstration()
        )


def test_a_text_that_holds_the_action_is_kept_and_another_is_written_anew():
    react = action_format("react")
    own = "Thought:\nwood first\n\nAction:\nget 1 oak logs"
    assert response_in(Turn(own, "get 1 oak logs", ""), react) == own
    assert response_in(Turn("get 1 oak logs", "get 1 oak logs", ""), react).endswith(
        "get 1 oak logs"
    )
    assert response_in(Turn(own, "get 1 oak logs", ""), action_format("plain")) == "get 1 oak logs"
    assert response_in(Turn("no action here", "", "There is no action."), react) == "no action here"


def test_turns_that_are_not_imitated_stay_in_place_without_loss():
    tokenizer = textcraft_tokenizer()
    episode = demonstration("ladder")
    first, *others = episode.turns
    marked = msgspec.structs.replace(first, info={"loss": False})
    part = msgspec.structs.replace(episode, turns=[marked, *others])
    whole_row, part_row = (
        training_row(EpisodeTokenizer(tokenizer).rows(one)[0]) for one in (episode, part)
    )
    assert part_row["input_ids"] == whole_row["input_ids"]
    assert trained_text(tokenizer, EpisodeTokenizer(tokenizer).rows(part)) == "".join(
        turn.response + "<|im_end|>" for turn in others
    )


def test_the_instruction_is_the_episodes_own_unless_another_is_given():
    tokenizer = textcraft_tokenizer()
    episode = demonstration(instruction="Craft now.")
    own, none = (
        tokenizer.decode(
            EpisodeTokenizer(tokenizer, PolicyConfig(instruction=told)).rows(episode)[0].prompt_ids
        )
        for told in (None, "")
    )
    assert "Craft now." in own and "Craft now." not in none
    assert EpisodeTokenizer(tokenizer).rows(demonstration(turns=[])) == []
