"""Groups with equal returns teach nothing: what counts as different, and shaped returns."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.config.episodes import trained_outcomes
from agentgym_train.config.rl import RLConfig
from agentgym_train.rollout.groups import Group
from agentgym_train.training.batch import OverlongPenalty, token_batch
from agentgym_train.training.rl import RLTrainer
from tests.train.command import Command, finish
from tests.train.test_rollout_buffer import episode

NEEDED = {"model": "m", "env": "textcraft", "output_dir": "o"}


def returns(group, **changes) -> Group:
    """The group as its trainer judges it."""
    config = RLConfig(**NEEDED, **changes)
    trainer = SimpleNamespace(
        overlong=OverlongPenalty(config.max_tokens, config.overlong_tokens),
        _trained_outcomes=trained_outcomes(config.train_outcomes),
    )
    return Group(0, "1", returns=RLTrainer._returns(trainer, group))


def test_lost_episodes_are_no_contrast():
    lost = episode("1", 1.0, outcome="environment_lost")
    assert not returns([episode("1", 0.0), lost, episode("1", 0.0)]).is_informative


def test_outcomes_that_are_not_trained_on_are_no_contrast():
    group = [episode("1", 1.0), episode("1", 0.0, outcome="horizon")]
    assert returns(group).is_informative
    assert not returns(group, train_outcomes=["success"]).is_informative


def test_the_penalty_on_long_episodes_is_that_of_the_paper():
    penalty = OverlongPenalty(limit=100, zone=20)
    for length, expected in ((79, 0), (80, 0), (90, 0.5), (100, 1), (140, 1)):
        played = episode("1", 1.0, length=length - 1)  # and a prompt of one token
        assert penalty(played) == pytest.approx(expected)
        batch = token_batch([played], 1, 150, 0, overlong=penalty)
        assert batch.rewards.tolist() == [[pytest.approx(1 - expected)]]
    assert OverlongPenalty(100, 0)(episode("1", 1.0, length=100)) == 0


@pytest.mark.slow
def test_groups_that_differ_in_their_penalty_alone_are_informative(tmp_path):
    status, said = finish(
        Command(
            "train", "starter:textcraft/rl.yaml", "steps=1", "eval.before=false",
            "eval.after=false", "prompts_per_step=2", "num_generations=4", "horizon=1",
            "minibatches_per_rollout=1", "admission=informative", "overlong_tokens=1024",
            "sampler=contrast", "trainer_args.warmup_steps=0", f"output_dir={tmp_path / 'run'}",
        )
    )  # fmt: skip
    assert status == 0, said
    ((row,), _) = RunStore.open(tmp_path / "run").metrics()
    assert row["success"] == 0 and row["discarded_env_steps"] == 0
    assert 0 < row["overlong_penalty"] < 1 and row["grad_norm"] > 0
    assert row["informative_groups"] == 1
    (kept,) = (tmp_path / "run/checkpoints").glob("*/sampler.json")
    counts = json.loads(kept.read_text())["sampler"]["counts"]
    assert counts and all(found == groups for found, groups in counts.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resampling_ratio": 1}, r"write `admission: {type: informative, budget: VALUE}`"),
        ({"oversampling_ratio": 1}, "write `max_policy_age: 1`"),
        ({"max_policy_age": -1}, "max_policy_age is at least 0, got -1"),
        ({"admission": {"type": "short"}}, "admission has no type 'short'; choose from all, inf"),
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
