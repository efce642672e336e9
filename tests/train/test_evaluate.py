"""Evaluation: fixed seeds, honest means, intervals over tasks."""

from __future__ import annotations

import pytest

import hosting
from agentgym_env.errors import BadRequest, UnknownSplit
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.evaluation.plan import eval_starts
from agentgym_train.evaluation.play import evaluate, summarize
from agentgym_train.evaluation.report import EvalReport
from agentgym_train.rollout.actors import ExpertActor, RandomActor
from agentgym_train.rollout.runner import RolloutRunner

TASKS = TaskSet({"train": ["a", "b"], "test": ["c", "d", "e"]}, {"c": "easy", "d": "hard"})


def episode(task, success, turns, outcome=None, category=None) -> Trajectory:
    outcome = outcome or ("success" if success else "horizon")
    return Trajectory(
        env="e", task=task, seed=0, instruction="", observation="", policy="p", horizon=9,
        turns=[Turn("r", "a", "o", float(success and i == turns - 1)) for i in range(turns)],
        outcome=outcome, success=success, category=category, split="test",
    )  # fmt: skip


def test_starts_depend_on_seed_task_and_sample_alone():
    first = eval_starts(TASKS, "test", 2, seed=0)
    assert [s.task for s in first] == ["c", "c", "d", "d", "e", "e"]
    assert len({s.seed for s in first}) == 6
    assert first == eval_starts(TASKS, "test", 2, seed=0)
    assert eval_starts(TASKS, "test", 1, seed=0, limit=2) == [first[0], first[2]]
    assert {s.seed for s in eval_starts(TASKS, "test", 2, seed=1)}.isdisjoint(s.seed for s in first)
    with pytest.raises(UnknownSplit):
        eval_starts(TASKS, "validation", 1, seed=0)


def test_so_many_tasks_of_each_category_are_the_first_of_each():
    tasks = TaskSet({"test": list("abcde")}, {"a": "x", "b": "y", "c": "x", "d": "x"})
    chosen = eval_starts(tasks, "test", 1, 0, per_category=1)
    assert [start.task for start in chosen] == ["a", "b", "e"]
    assert len(eval_starts(tasks, "test", 3, 0, limit=2, per_category=2)) == 6


def test_means_leave_out_what_was_lost_and_count_it():
    played = [
        episode("c", True, 2, category="easy"),
        episode("c", False, 4, category="easy"),
        episode("d", True, 6, category="hard"),
        episode("d", False, 0, outcome="environment_lost", category="hard"),
    ]
    report = summarize(played, split="test", samples=2, seed=0)
    assert (report.episodes, report.lost, report.tasks) == (3, 1, 2)
    assert report.success == pytest.approx(2 / 3)
    assert report.turns == 4.0
    assert report.outcomes == {"environment_lost": 1, "horizon": 1, "success": 2}
    assert (report.categories["hard"].success, report.categories["easy"].success) == (1.0, 0.5)
    assert EvalReport.from_dict(report.as_dict()) == report


def test_the_interval_resamples_tasks_so_more_samples_of_one_task_do_not_narrow_it():
    few = [episode(str(n), n % 2 == 0, 1) for n in range(20)]
    narrow = summarize(few * 5, split="test", samples=5, seed=0).success_interval
    wide = summarize(few, split="test", samples=1, seed=0).success_interval
    assert narrow == wide
    assert 0.2 < wide[0] < 0.5 < wide[1] < 0.8


def test_an_evaluation_without_a_played_episode_is_an_error_and_no_zero():
    with pytest.raises(BadRequest, match="all 1 episodes were lost; the first error: gone"):
        lost = Trajectory(
            env="e", task="c", seed=0, instruction="", observation="", turns=[],
            outcome="engine_lost", policy="", horizon=9, error="gone",
        )  # fmt: skip
        summarize([lost], split="test", samples=1, seed=0)


def test_the_oracle_is_perfect_and_chance_repeats_itself_over_http():
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        report, _ = evaluate(rollout_runner, ExpertActor, split="test", horizon=9)
        assert (report.success, report.turns, report.episodes) == (1.0, 1.0, 3)
        chance = [
            evaluate(rollout_runner, RandomActor, split="train", horizon=3, samples=4)[0]
            for _ in range(2)
        ]
        assert chance[0] == chance[1]
        assert 0.0 < chance[0].success < 1.0
