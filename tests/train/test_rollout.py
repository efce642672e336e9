"""The turn loop over real HTTP sessions: masks, horizons, budgets, and what is lost."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.errors import teaches
from agentgym_train.config.policy import PolicyConfig, RolloutLimits
from agentgym_train.engines.base import EngineLost, ScriptedEngine
from agentgym_train.rollout.actors import ExpertActor, RandomActor
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.loop import Rollouts
from agentgym_train.rollout.model_actors import model_actor
from tests.train.templates import APPEND_ONLY, DROPS_REASONING, tokenizer_with
from worlds import Guess, Trouble


def play(server, actors, starts, horizon=5, concurrency=256, **limits):
    async def run():
        client = AsyncEnvClient(server.address)
        concurrency_limits = ConcurrencyLimits(RolloutLimits(**limits))
        rollouts = Rollouts(
            client,
            actors,
            env_id="tests/Guess-v0",
            concurrency=concurrency,
            concurrency_limits=concurrency_limits,
        )
        try:
            return await rollouts.collect(starts, horizon, step=3)
        finally:
            await client.close()

    return asyncio.run(run())


def scripted(answers, *, template="chatml", max_tokens=4096, turn_max=64, form="plain"):
    """(engine, players, chat): a policy that says `answers`, one a turn, in any episode."""
    chat = Chat(tokenizer_with({**APPEND_ONLY, "drops": DROPS_REASONING}[template]),
                keep_reasoning=template == "drops")  # fmt: skip
    engine = ScriptedEngine(lambda prompt, turn: chat.response_ids(answers[turn]))
    config = PolicyConfig(
        model="scripted", turn_max_tokens=turn_max, max_tokens=max_tokens, action_format=form
    )
    actors = model_actor(engine, chat, config)
    return engine, actors, chat


def sampled_spans(tokens):
    """The ids of each stretch of sampled tokens."""
    pairs = zip(tokens.completion_ids, tokens.loss_mask, strict=True)
    return [
        [token for token, _ in run] for sampled, run in groupby(pairs, lambda p: p[1]) if sampled
    ]


@pytest.mark.parametrize("template", [*APPEND_ONLY, "drops"])
def test_the_masked_ids_decode_to_the_recorded_responses_of_every_turn(serve, template):
    thinking = "<think>\nlow\n</think>\n\n3"
    answers = ["1", "  2 ", thinking if template == "drops" else "3 é 雪", "5"]
    _, actors, chat = scripted(answers, template=template)
    (trajectory,) = play(serve(), actors, [EpisodeSpec("5", 0)])
    assert [turn.response for turn in trajectory.turns] == answers
    spans = sampled_spans(trajectory.tokens)
    assert [chat.text_of(span) for span in spans] == answers
    assert all(span[-1] == chat.end_id for span in spans)
    assert trajectory.tokens.turn_ends[-1] == len(trajectory.tokens.completion_ids)


def test_a_turn_cut_by_its_length_is_masked_up_to_the_cut(serve):
    _, actors, chat = scripted(["a long answer of many tokens", "5"], turn_max=3)
    (trajectory,) = play(serve(), actors, [EpisodeSpec("5", 0)])
    spans = sampled_spans(trajectory.tokens)
    assert len(spans[0]) == 3
    assert chat.text_of(spans[0]) == trajectory.turns[0].response


def test_sampled_tokens_carry_their_logprob_and_version_and_others_none(serve):
    engine, actors, _ = scripted(["1", "5"])
    engine.version = 9
    (trajectory,) = play(serve(), actors, [EpisodeSpec("5", 0)])
    tokens = trajectory.tokens
    found = zip(tokens.loss_mask, tokens.logprobs, tokens.versions, strict=True)
    assert set(found) == {(1, -0.5, 9), (0, 0.0, -1)}


def test_an_episode_ends_at_the_horizon_the_goal_or_the_token_budget(serve):
    server = serve()
    _, actors, _ = scripted(["1"] * 9)
    (cut,) = play(server, actors, [EpisodeSpec("5", 0)], horizon=4)
    assert (cut.outcome, len(cut.turns), cut.success, cut.reward) == ("horizon", 4, False, 0.0)
    _, actors, _ = scripted(["1", "5"])
    (solved,) = play(server, actors, [EpisodeSpec("5", 0)])
    assert (solved.outcome, len(solved.turns), solved.success) == ("success", 2, True)
    assert (solved.reward, solved.step, solved.attempts, solved.error) == (1.0, 3, 1, None)
    _, actors, _ = scripted(["1"] * 9, max_tokens=len(cut.tokens.prompt_ids) + 10)
    (spent,) = play(server, actors, [EpisodeSpec("5", 0)], horizon=9)
    assert spent.outcome == "token_budget"
    assert len(spent.tokens.prompt_ids) + len(spent.tokens.completion_ids) >= 10


def test_a_text_without_an_action_costs_a_turn_and_is_answered_without_the_world(serve):
    _, actors, _ = scripted(["5", "Thought:\nx\n\nAction:\n5"], form="react")
    (trajectory,) = play(serve(), actors, [EpisodeSpec("5", 0)])
    first, second = trajectory.turns
    assert (first.action, first.info) == ("", {"invalid_action": True})
    assert "There is no action" in first.observation
    assert (second.action, trajectory.outcome) == ("5", "success")


def test_trajectories_come_in_the_order_of_their_starts(serve):
    _, actors, _ = scripted(["1", "2", "3", "4", "5", "6"])
    starts = [EpisodeSpec(str(n), n) for n in (6, 1, 3, 2)]
    found = play(serve(), actors, starts, horizon=6, concurrency=2)
    assert [(t.task, t.seed, len(t.turns)) for t in found] == [
        ("6", 6, 6), ("1", 1, 1), ("3", 3, 3), ("2", 2, 2)
    ]  # fmt: skip


def test_a_broken_world_is_tried_again_and_then_recorded_as_lost(serve):
    server = serve(Trouble)
    engine, actors, _ = scripted(["raise"])
    (lost,) = play(server, actors, [EpisodeSpec("fine", 0)], retries=2)
    assert (lost.outcome, lost.attempts, lost.turns, lost.tokens) == (
        "environment_error", 3, [], None,
    )  # fmt: skip
    assert "ZeroDivisionError" in lost.error
    assert not teaches(lost.outcome)
    assert not engine.live, "every conversation was forgotten"


def test_an_episode_that_succeeds_on_its_second_attempt_keeps_the_error_of_its_first(serve):
    tries = []

    def sometimes(prompt, turn):
        tries.append(turn)
        if len(tries) == 1:
            raise EngineLost("the first time")
        return chat.response_ids("5")

    _, _, chat = scripted([])
    actors = model_actor(
        ScriptedEngine(sometimes), chat, PolicyConfig(model="p", turn_max_tokens=8, max_tokens=4096)
    )
    (trajectory,) = play(serve(), actors, [EpisodeSpec("5", 0)])
    assert (trajectory.outcome, trajectory.attempts) == ("success", 2)
    assert trajectory.error == "EngineLost: the first time"


def test_an_engine_that_stays_lost_is_no_zero_reward(serve):
    def never(prompt, turn):
        raise EngineLost("gone")

    _, _, chat = scripted([])
    actors = model_actor(
        ScriptedEngine(never), chat, PolicyConfig(model="p", turn_max_tokens=8, max_tokens=4096)
    )
    (lost,) = play(serve(), actors, [EpisodeSpec("5", 0)], retries=1)
    assert (lost.outcome, lost.attempts, lost.error) == ("engine_lost", 2, "EngineLost: gone")


def test_sessions_are_closed_whatever_the_end(serve):
    server = serve(Trouble)
    _, actors, _ = scripted(["raise"])
    play(server, actors, [EpisodeSpec("fine", 0)] * 3)
    assert len(server.host.table) == 0


def test_the_oracle_and_chance_play_without_a_model(serve):
    server = serve(Guess)
    starts = [EpisodeSpec(str(n), n) for n in range(1, 7)]
    assert [len(t.turns) for t in play(server, ExpertActor, starts)] == [1] * 6
    first, second = (play(server, RandomActor, starts, horizon=9) for _ in range(2))
    assert [t.turns for t in first] == [t.turns for t in second], "chance is seeded"
    assert {turn.action for t in first for turn in t.turns} <= set("123456789")
