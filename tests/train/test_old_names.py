"""Config keys of earlier versions are rejected with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgym_env.errors import ConfigError
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.files import read_yaml
from agentgym_train.config.old_names import MOVED
from agentgym_train.config.options import settings_of
from agentgym_train.config.read import method_config, read_config, stored_config
from agentgym_train.config.worlds import World

NEEDED = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": "x"}


def test_old_keys_are_rejected_with_the_lines_to_write():
    old = {"eval_split": "dev", "eval_samples": 3, "retries": 4, "kl": 0.1, "entropy_floor": 0.1,
           "compile": True, "async_steps": 1}  # fmt: skip
    with pytest.raises(ConfigError) as error:
        method_config({**NEEDED, **old})
    said = str(error.value)
    for line in ("eval_split: write `eval: {split: VALUE}` instead", "`limits: {retries: VALUE}`",
                 "`beta: VALUE`", "`trainer_args: {torch_compile: VALUE}`", "`max_policy_age: 1`",
                 "leave out entropy_floor: entropy_bonus applies"):  # fmt: skip
        assert line in said


OF_FILTERS = ("least_reward", "least_turns", "most_turns", "most_tokens")


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_key_is_rejected_with_its_new_name(old):
    with pytest.raises(ConfigError, match="of an earlier version") as error:
        EpisodeFilter(**{old: 1}) if old in OF_FILTERS else method_config({**NEEDED, old: 1})
    (line,) = re.findall(r"`([^`]*)`", str(error.value))
    (key,) = read_yaml(line)
    assert key == re.match(r"\w+", MOVED[old])[0]
    assert old in OF_FILTERS or any(is_valid(line, value) for value in VALUES), line


VALUES = ("2", "true", "0.5", "token", "contrast", "linear", "dev", "{}")


def is_valid(line, value):
    """Whether a config takes the line, with a value in the places for one."""
    for place, own in (("NAME", "hf"), ("FIELD", "max_batch"), ("VALUE", value)):
        line = line.replace(place, own)
    envs = [{"env": "agentgym/TextCraft-v0"}, {"env": "agentgym/BabyAI-v0"}]
    try:
        method_config({**NEEDED, "env": "", "envs": envs, **read_yaml(line)})
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", ["least_reward", "eval_split", "horizon_every"])
def test_old_keys_of_an_entry_of_envs_are_rejected(name):
    with pytest.raises(ConfigError, match=f"{name}: write `"):
        World(env="e", **{name: 1})


def test_settings_of_an_old_run_are_rejected_and_not_ignored(tmp_path):
    (tmp_path / "config.yaml").write_text("model: m\ngateway: {port: 3}\n")
    with pytest.raises(ConfigError, match="has keys of an earlier version: gateway: write `agent"):
        settings_of(str(tmp_path), {})


def test_an_old_run_is_not_read_and_the_error_names_its_file():
    with pytest.raises(ConfigError, match=r"run/run.json is not .*`beta: VALUE`.* Edit it in run"):
        stored_config(Path("run"), {**NEEDED, "kl": 0.1})


def test_a_key_that_is_written_twice_is_rejected(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: m\neval: {samples: 2}\nsteps: 3\neval: {before: false}\n")
    with pytest.raises(ConfigError, match="eval is written twice, in lines 2 and 4; write one"):
        read_config(file)
    file.write_text("a: &a {model: m, env: e}\nb:\n  <<: *a\n  env: f\n")
    assert read_yaml(file.read_text())["b"] == {"model": "m", "env": "f"}
    text = "z: &z {x: 1}\no: {i: &a {<<: *z, x: 2}}\nb: {<<: *a, x: 3}\n"
    assert read_yaml(text)["o"] == {"i": {"x": 2}} and read_yaml(text)["b"] == {"x": 3}
