"""Config keys of earlier versions: stored runs are read with them, new configs are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym_env.errors import ConfigError
from agentgym_train.config.files import read_yaml
from agentgym_train.config.old_names import MOVED, REMOVED, upgraded
from agentgym_train.config.read import method_config, read_config, stored_config
from agentgym_train.config.trust import names_in_run
from agentgym_train.rollout.horizon import Fixed, Linear, ScalingInterStepwise, make_horizon

NEEDED = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": "x"}
STAGED = {"horizon_schedule": None, "horizon_every": 100, "horizon_threshold": 0.8,
          "horizon_patience": 50, "horizon_window": 10}  # fmt: skip
EVAL = {"eval_split": "test", "eval_horizon": 0, "eval_samples": 1, "eval_per_category": 0,
        "eval_temperature": 1.0, "eval_before": True, "eval_after": True}  # fmt: skip
CORRECTION = {"importance_sampling_correction": "auto", "importance_sampling_cap": 3.0,
              "importance_sampling_band": 1.05}  # fmt: skip
LIMITS = {"engine_concurrency": 0, "env_concurrency": 0, "episode_timeout_s": 0.0, "retries": 2}
RL = {
    "method": "rl", "env_sampling": "weight", "task_sampling": "uniform", "normalize_per_env": True,
    "horizon": [30], "algorithm": "grpo", "algorithm_args": {}, "engine": "hf", "engine_args": {},
    "agent": "plain", "gateway": {}, "entropy_floor": None, "reset_reference_every": 0,
    "async_steps": 0, "oversampling_ratio": 0.0, "unfinished_groups": "drop", "max_staleness": 4,
    "resampling_ratio": 0.0, "max_lost_rate": 0.5, "compile": False, "warmup_steps": 0,
    "trainer_args": {},
    **STAGED, **EVAL, **CORRECTION, **LIMITS,
}  # fmt: skip
"""What an earlier version wrote, all of it defaults."""


def read(**changes):
    return stored_config(Path("run"), {**NEEDED, **RL, **changes})


def test_the_defaults_of_an_earlier_version_are_those_of_today():
    assert read() == stored_config(Path("run"), NEEDED)
    assert MOVED.keys() - RL.keys() == {
        "steps_ahead", "oversample", "stragglers", "group_size", "kl", "engine_correction",
        "engine_correction_max", "tokens_per_forward", "trl", "least_reward", "least_turns",
        "most_turns", "most_tokens", "policy",
    }, "add a key to RL above, or here if it is older"  # fmt: skip
    assert REMOVED.keys() <= RL.keys()


@pytest.mark.parametrize(
    ("old", "name", "value"),
    [
        ({"horizon": [5, 9], "horizon_every": 7}, "horizon",
         {"type": "stepwise", "turns": [5, 9], "every": 7}),
        ({"horizon": [5, 9]}, "horizon", [5, 9]),
        ({"algorithm": "bnpo"}, "algorithm", "grpo"),
        ({"trainer_args": {"use_bias_correction_kl": True, "weight_decay": 0.1}}, "trainer_args",
         {"weight_decay": 0.1}),
        ({"trainer_args": {"epsilon": 0.1, "delta": 2}}, "algorithm",
         {"type": "grpo", "loss": {"epsilon": 0.1, "delta": 2}}),
        ({"trainer_args": {"epsilon_high": 0.3, "router_aux_loss_coef": 0}, "algorithm": "ppo",
          "algorithm_args": {"lam": 0.9}}, "algorithm",
         {"type": "ppo", "lam": 0.9, "loss": {"epsilon_high": 0.3}}),
        ({"horizon": [5, 9], "horizon_schedule": "linear"}, "horizon",
         {"type": "linear", "turns": [5, 9], "every": 100}),
        ({"horizon": [5, 9], "horizon_schedule": "adaptive", "horizon_window": 3}, "horizon",
         {"type": "adaptive", "turns": [5, 9], "every": 100, "threshold": 0.8, "patience": 50,
          "window": 3}),
        ({"algorithm": "ppo", "algorithm_args": {"lam": 0.9}}, "algorithm",
         {"type": "ppo", "lam": 0.9}),
        ({"engine": "vllm_server", "engine_args": {"servers": ["http://a"]}}, "engine",
         {"type": "vllm", "servers": ["http://a"]}),
        ({"engine": "vllm_server"}, "engine", "vllm"),
        ({"task_sampling": "contrast"}, "sampler", "contrast"),
        ({"resampling_ratio": 2.0}, "admission", {"type": "informative", "budget": 2.0}),
        ({"async_steps": 1}, "max_policy_age", 1),
        ({"oversampling_ratio": 0.5, "unfinished_groups": "carry", "max_staleness": 3},
         "max_policy_age", 3),
        ({"oversampling_ratio": 0.5}, "max_policy_age", 1),
        ({"max_staleness": 3, "unfinished_groups": "carry"}, "max_policy_age", 0),
        ({"compile": True, "warmup_steps": 3, "trainer_args": {"optim": "sgd"}}, "trainer_args",
         {"optim": "sgd", "torch_compile": True, "warmup_steps": 3}),
        ({"importance_sampling_correction": "geometric", "importance_sampling_band": 1.2},
         "importance_sampling", {"type": "geometric", "band": 1.2}),
        ({"importance_sampling_correction": "off"}, "importance_sampling", "off"),
        ({"agent": "external", "gateway": {"address_file": "f"}}, "agent",
         {"type": "external", "address_file": "f"}),
    ],
)  # fmt: skip
def test_a_setting_of_an_earlier_version_is_read_as_what_it_is_today(old, name, value):
    config = read(**old)
    assert getattr(config, name) == value
    again = config.as_dict()
    assert upgraded(again) == again and stored_config(Path("run"), again) == config


def test_numbers_of_an_earlier_version_are_where_they_are_today():
    config = read(eval_samples=3, eval_before=False, retries=5, max_lost_rate=0.2, temperature=0.7)
    assert (config.eval.samples, config.eval.before, config.eval.after) == (3, False, True)
    assert (config.limits.retries, config.limits.max_lost_rate, config.temperature) == (5, 0.2, 0.7)


@pytest.mark.parametrize(
    ("old", "places"),
    [
        ({"engine": "vllm_server", "engine_args": {"servers": ["http://evil"]}},
         {"engine.servers[0]"}),
        ({"agent": "external", "gateway": {"host": "0.0.0.0"}}, {"agent.type", "agent.host"}),
        ({"horizon": [3], "horizon_schedule": "evil:Grow"}, {"horizon.type"}),
        ({"algorithm": "evil:A", "algorithm_args": {"x": "y"}}, {"algorithm.type"}),
        ({"trainer_args": {"push_to_hub": True}}, {"trainer_args.push_to_hub"}),
        ({}, set()),
    ],
)  # fmt: skip
def test_what_needs_trust_needs_it_in_the_words_of_an_earlier_version_too(old, places):
    found = names_in_run(upgraded({**NEEDED, **RL, **old}))
    assert places <= found.keys() and bool(found) == bool(places)


@pytest.mark.parametrize(
    "old",
    [{"algorithm_args": [1]}, {"engine_args": "x"}, {"gateway": 3}, {"horizon_schedule": ["x"]},
     {"horizon_schedule": ["x"], "horizon": [3], "envs": [{"env": "babyai"}], "env": ""},
     {"trainer_args": 3, "compile": True}, {"importance_sampling_correction": ["off"]}],
)  # fmt: skip
def test_a_damaged_config_of_an_earlier_version_is_an_error_and_no_crash(old):
    with pytest.raises(ConfigError, match=r"run/run\.json is not one of this version"):
        read(**old)


def test_entries_of_envs_have_the_schedule_that_they_had():
    entries = [{"env": "babyai", "horizon": [3, 5]}, {"env": "textcraft", "horizon": [4]},
               {"env": "search", "horizon": []}]  # fmt: skip
    config = read(env="", envs=entries, horizon_every=2)
    staged, fixed, plain = (make_horizon(world.horizon) for world in config.worlds)
    assert (staged, fixed, plain) == (ScalingInterStepwise((3, 5), 2), Fixed(4), Fixed(30))
    config = read(env="", envs=entries, horizon_every=2, horizon_schedule="linear")
    staged, fixed, plain = (make_horizon(world.horizon) for world in config.worlds)
    assert (staged, fixed, plain) == (Linear((3, 5), 2), Fixed(4), Fixed(30))
    config = read(env="", envs=entries, horizon=[6, 9], horizon_every=2)
    assert make_horizon(config.worlds[2].horizon) == ScalingInterStepwise((6, 9), 2)


def test_entries_of_envs_are_read_in_the_same_way():
    entry = {"env": "babyai", "eval_split": "dev", "eval_samples": 2, "horizon": [4]}
    config = read(env="", envs=[entry])
    (world,) = config.worlds
    assert (world.eval.split, world.eval.samples, world.eval.horizon) == ("dev", 2, 4)
    assert json.loads(json.dumps(config.as_dict()))["envs"][0]["eval"]["split"] == "dev"


def test_old_keys_of_a_new_config_are_rejected_with_the_lines_to_write():
    old = {"horizon": [2, 4], "horizon_every": 5, "eval_split": "dev", "eval_samples": 3,
           "algorithm": "gigpo", "algorithm_args": {"omega": 0.5},
           "entropy_floor": 0.1}  # fmt: skip
    with pytest.raises(ConfigError) as error:
        method_config({**NEEDED, **old})
    said = str(error.value)
    for line in ("`horizon: {type: stepwise, turns: [2, 4], every: 5}`",
                 "`algorithm: {type: gigpo, omega: 0.5}`", "`eval: {split: dev, samples: 3}`",
                 "leave out entropy_floor: entropy_bonus applies"):  # fmt: skip
        assert line in said
    lines = re.findall(r"`([^`]*)`", said)
    again = {**NEEDED, **{k: v for line in lines for k, v in read_yaml(line).items()}}
    assert method_config(again) == stored_config(
        Path("run"), {**NEEDED, **old, "entropy_floor": None}
    )


def test_a_key_that_is_written_twice_is_rejected(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: m\neval: {samples: 2}\nsteps: 3\neval: {before: false}\n")
    with pytest.raises(ConfigError, match="eval is written twice, in lines 2 and 4; write one"):
        read_config(file)
    file.write_text("a: &a {model: m, env: e}\nb:\n  <<: *a\n  env: f\n")
    assert read_yaml(file.read_text())["b"] == {"model": "m", "env": "f"}
    text = "z: &z {x: 1}\no: {i: &a {<<: *z, x: 2}}\nb: {<<: *a, x: 3}\n"
    assert read_yaml(text)["o"] == {"i": {"x": 2}} and read_yaml(text)["b"] == {"x": 3}
