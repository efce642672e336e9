"""The figures of a step's episodes."""

from __future__ import annotations

import msgspec

from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.training.step_metrics import StepTokens, step_metrics, without_tokens


def episode(*versions, outcome="success", further=()) -> Trajectory:
    def row(versions):
        size = len(versions)
        mask = [int(v >= 0) for v in versions]
        return Tokens([1], [2] * size, mask, [0.0] * size, list(versions), [size])

    return Trajectory(
        env="e", task="t", seed=0, instruction="", observation="", turns=[], outcome=outcome,
        policy="p", horizon=1, tokens=row(versions), further_rows=[row(v) for v in further],
    )  # fmt: skip


def test_staleness_is_the_mean_age_of_the_sampled_tokens_of_all_rows():
    played = [episode(3, -1, 5, further=[[5, 5]]), episode(1, outcome="engine_lost")]
    tokens = StepTokens.of(played, 5, dropped=2, seconds=1.5)
    assert tokens == StepTokens(sampled=4, behind=2, dropped=2, seconds=1.5)
    both = StepTokens.of_all([tokens, StepTokens(4, 0, 1, 2.5)])
    figures = step_metrics(played, both)
    assert (figures["staleness"], figures["dropped"], figures["rollout_seconds"]) == (0.25, 3, 2.5)
    assert (figures["sampled_tokens"], figures["lost"], figures["horizon"]) == (8, 1, 1)


def test_replaced_episodes_are_counted_where_they_cost_something():
    kept, lost = [episode(0), episode(0)], episode(0, outcome="environment_lost")
    lost = msgspec.structs.replace(lost, attempts=3)
    figures = step_metrics(kept, StepTokens(2, 0, 0, 1.0), [lost, episode(0)])
    assert (figures["lost"], figures["retried"]) == (1, 1)
    assert figures["outcome/success"] == 1


def test_what_a_long_run_keeps_has_no_tokens():
    light = without_tokens(episode(0, further=[[0]]))
    assert light.rows == [] and light.outcome == "success"


def test_only_turns_that_the_environment_answered_are_steps():
    turns = [
        Turn("I plan", "", "Go on."),
        Turn("no action", "", "Write an action.", info={"invalid_action": True}),
        Turn("act", "look", "You see a door.", info={"turn": 1, "success": False}),
        Turn("act", "", "Nothing happens.", info={"turn": 2, "success": False}),
        Turn("act", "open", ""),
    ]
    played = msgspec.structs.replace(episode(1), turns=turns)
    row = step_metrics([played], StepTokens(1, 0, 0, 1.0))
    assert row["turns"] == 5 and row["env_steps"] == 2
