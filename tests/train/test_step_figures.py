"""The figures of a step's episodes."""

from __future__ import annotations

from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.trainers.trainer import StepTokens, step_metrics, without_tokens


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
    figures = step_metrics(played, 7, both)
    assert (figures["staleness"], figures["dropped"], figures["rollout_seconds"]) == (0.25, 3, 2.5)
    assert (figures["sampled_tokens"], figures["lost"], figures["horizon"]) == (8, 1, 7)


def test_what_a_long_run_keeps_has_no_tokens():
    light = without_tokens(episode(0, further=[[0]]))
    assert light.rows == [] and light.outcome == "success"
