"""Groups with equal returns teach nothing: tasks drawn by contrast, resampling, shaped returns."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.worlds import World
from agentgym_train.rollout.horizon import Fixed
from agentgym_train.training.batch import OverlongPenalty, token_batch
from agentgym_train.training.sampler import StepSampler, StepWorld
from agentgym_train.training.task_order import TaskContrast
from tests.train.command import Command, finish

NEEDED = {"model": "m", "env": "textcraft", "output_dir": "o"}


def episode(task, reward, outcome="success", length=4) -> Trajectory:
    ids = list(range(length))
    return Trajectory(
        env="e", task=task, seed=0, instruction="", observation="o",
        turns=[Turn("r", "a", "o", reward)], outcome=outcome, policy="p", horizon=1,
        tokens=Tokens([7], ids, [1] * length, [0.0] * length, [0] * length, [length]),
    )  # fmt: skip


def test_a_task_whose_groups_teach_is_drawn_more_often_and_none_is_forgotten():
    contrast = TaskContrast(lambda env, task: task)  # each task is a category
    for _ in range(50):
        contrast.observe(0, "always", informative=True)
        contrast.observe(0, "never", informative=False)
    assert contrast.weight(0, "new") == contrast.weight(0, "always") == pytest.approx(1, abs=1e-3)
    assert contrast.weight(0, "never") == 0.05
    drawn = Counter(
        contrast.draw(0, ["always", "never", "new"], 1, seed)[0] for seed in range(6000)
    )
    # In proportion to the weights, with 4 standard deviations.
    for task, weight in {"always": 1, "never": 0.05, "new": 1}.items():
        share = weight / 2.05
        assert drawn[task] / 6000 == pytest.approx(share, abs=4 * (share / 6000) ** 0.5)
    for _ in range(10):  # what was learned or forgotten counts again soon
        contrast.observe(0, "always", informative=False)
    assert contrast.weight(0, "always") < 0.3


def test_a_new_task_is_judged_by_the_others_of_its_category():
    contrast = TaskContrast(lambda env, task: task[0])
    assert contrast.weight(0, "a1") == contrast.weight(0, "b1") == 1
    for number in range(10):
        contrast.observe(0, f"a{number}", informative=True)
        contrast.observe(0, f"b{number}", informative=False)
    assert contrast.weight(0, "a99") == pytest.approx(1)
    assert contrast.weight(0, "b99") < 0.15
    for _ in range(5):  # what is known of a task counts more than its category
        contrast.observe(0, "b99", informative=True)
    assert contrast.weight(0, "b99") > 0.7


def test_draws_depend_on_the_seed_alone_and_a_step_names_a_task_once(tmp_path):
    contrast = TaskContrast(lambda env, task: "all")
    contrast.observe(0, "b", informative=False)
    contrast.save(tmp_path / "checkpoint-1")
    again = TaskContrast(lambda env, task: "all")
    again.load(tmp_path / "checkpoint-1")
    for seed in range(20):
        drawn = contrast.draw(0, list("abcdef"), 4, seed)
        assert drawn == again.draw(0, list("abcdef"), 4, seed) and len(set(drawn)) == 4
    assert Counter(contrast.draw(0, list("ab"), 5, 0)).most_common(1)[0][1] == 3


class Runner:
    """Plays tasks whose names say whether their groups have different returns."""

    def __init__(self, tasks):
        self.tasks = TaskSet({"train": tasks})
        self.concurrency_limits = None
        self.rounds = []

    def run(self, work):
        return asyncio.run(work)

    async def collecting(self, actors, starts, horizon, **_):
        self.rounds.append([start.task for start in starts][::2])
        assert len({start.sample for start in starts}) == len(starts)
        return [
            episode(s.task, float(s.sample % 2) if s.task.startswith("good") else 0.0)
            for s in starts
        ]


def sampler(runner, rank=0, processes=1, **changes):
    config = RLConfig(**NEEDED, prompts_per_step=4, num_generations=2, **changes)
    policy = SimpleNamespace(actors=lambda: None, instruction="")
    worlds = [StepWorld(World(env="textcraft", split="train"), runner, policy, Fixed(3))]
    return StepSampler(config, worlds, rank=rank, processes=processes)


def test_groups_that_teach_nothing_are_replaced_while_the_budget_lasts():
    half = [f"good {i}" for i in range(20)] + [f"bad {i}" for i in range(20)]
    found = Counter()
    for step in range(10):
        runner = Runner(half)
        episodes_of = sampler(runner, resampling_ratio=2.0)
        played = episodes_of.play(step, [1], step)
        groups = episodes_of.groups(played.trajectories)
        assert len(groups) == 4 and all(len({t.task for t in group}) == 1 for group in groups)
        # No more is played than is missing in each round, and never more than the budget.
        assert len(runner.rounds[0]) == 4
        assert sum(map(len, runner.rounds[1:])) <= 8
        good = [group for group in groups if episodes_of.is_informative(group)]
        if len(good) < 4:
            assert sum(map(len, runner.rounds[1:])) == 8
        kept = [t.task for t in played.trajectories[::2]]
        left = [t.task for t in played.discarded[::2]]
        assert sorted(kept + left) == sorted(task for tasks in runner.rounds for task in tasks)
        assert not set(runner.rounds[0]) & {task for tasks in runner.rounds[1:] for task in tasks}
        found["informative"] += len(good)
        again = sampler(Runner(half), resampling_ratio=2.0).play(step, [1], step)
        assert again.trajectories == played.trajectories
    assert found["informative"] >= 38, "of 40, where chance alone gives 20"


def test_without_a_budget_and_where_every_group_teaches_nothing_more_is_played():
    for ratio, tasks in ((0.0, ["bad 1", "bad 2"]), (3.0, ["good 1", "good 2"])):
        runner = Runner(tasks)
        played = sampler(runner, resampling_ratio=ratio).play(0, [1], 0)
        assert len(runner.rounds) == 1 and played.discarded == []


def test_lost_episodes_are_no_contrast():
    assert not sampler(Runner(["1"])).is_informative(
        [episode("1", 0.0), episode("1", 1.0, outcome="environment_lost"), episode("1", 0.0)]
    )


def test_outcomes_that_are_not_trained_on_are_no_contrast():
    group = [episode("1", 1.0), episode("1", 0.0, outcome="horizon")]
    assert sampler(Runner(["1"])).is_informative(group)
    assert not sampler(Runner(["1"]), train_outcomes=["success"]).is_informative(group)


def test_the_penalty_on_long_episodes_is_that_of_the_paper():
    penalty = OverlongPenalty(limit=100, zone=20)
    for length, expected in ((79, 0), (80, 0), (90, 0.5), (100, 1), (140, 1)):
        played = episode("1", 1.0, length=length - 1)  # and a prompt of one token
        assert penalty.of(played) == pytest.approx(expected)
        batch = token_batch([played], 1, 150, 0, overlong=penalty)
        assert batch.rewards.tolist() == [[pytest.approx(1 - expected)]]
    assert OverlongPenalty(100, 0).of(episode("1", 1.0, length=100)) == 0


@pytest.mark.slow
def test_groups_that_differ_in_their_penalty_alone_are_informative(tmp_path):
    status, said = finish(
        Command(
            "train", "starter:textcraft/quickstart.yaml", "steps=1", "eval.before=false",
            "eval.after=false", "prompts_per_step=2", "num_generations=4", "horizon=1",
            "minibatches_per_rollout=1", "resampling_ratio=1", "overlong_tokens=1024",
            "sampler=contrast", "trainer_args.warmup_steps=0", f"output_dir={tmp_path / 'run'}",
        )
    )  # fmt: skip
    assert status == 0, said
    ((row,), _) = RunStore.open(tmp_path / "run").metrics()
    assert row["success"] == 0 and row["discarded_env_steps"] == 0
    assert 0 < row["overlong_penalty"] < 1 and row["grad_norm"] > 0
    assert row["informative_groups"] == 1
    (tasks,) = (tmp_path / "run/checkpoints").glob("*/tasks.json")
    assert '"informative": 0' not in tasks.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resampling_ratio": 1, "oversampling_ratio": 1}, "cannot be combined"),
        ({"overlong_tokens": 10**9}, "overlong_tokens is at most max_tokens"),
        ({"sampler": {"type": "contrast", "envs": True}}, "sampler.envs draws from several"),
        ({"trainer_args": {"use_adaptive_entropy": True}}, "unknown key use_adaptive_entropy"),
        ({"trainer_args": {"entropy_coef": 0.1}}, "write entropy_bonus: VALUE"),
        ({"trainer_args": {"scale_rewards": False}}, r"write algorithm: \{type: grpo, scale: true"),
        ({"trainer_args": {"learning_rate": 1e-2}}, "write learning_rate: VALUE"),
        ({"trainer_args": {"output_dir": "/x"}}, "write output_dir: VALUE"),
        ({"trainer_args": {"logging_steps": 10}}, "metrics are written at every step"),
        ({"trainer_args": {"top_p": 0.2}}, "unknown key top_p in trainer_args"),
        ({"trainer_args": {"mask_truncated_completions": True}}, "write train_outcomes"),
        ({"num_iterations": 2}, "num_iterations is TRL's; write epochs_per_rollout"),
        ({"scale_rewards": True}, "write algorithm: {type: grpo, scale: true}"),
        ({"weight_decay": 0.1}, "write trainer_args: {weight_decay: VALUE}"),
    ],
)
def test_options_that_do_nothing_together_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        RLConfig(**NEEDED, **changes)
