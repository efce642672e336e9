"""Options of `agentgym eval`, `collect` and `train` as a user writes them."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import get_type_hints

import pytest

from agentgym_env.cli import main
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.cli.train import METHODS
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.keys import (
    boolean_keys,
    config_keys,
    expand_flags,
    key_lines,
    world_keys,
)
from agentgym_train.config.options import FilterOptions, PolicyOptions
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.read import CONFIGS, method_config
from agentgym_train.config.worlds import FROM_RUN

pytestmark = pytest.mark.usefixtures("textcraft_server")
SHORT = ["--env", "textcraft", "--policy", "expert", "--horizon", "40"]
SHORT_COLLECT = ["collect", *SHORT, "--out", "unused"]
SCALE = "{wrapper: agentgym_env.wrappers:ScaleReward, scale: 2}"


def failure(capsys, *words: str) -> str:
    """The one line that a command prints when it fails."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_options_of_a_policy_and_of_a_filter_are_fields_of_their_settings():
    for options, settings in ((PolicyOptions, PolicyConfig), (FilterOptions, EpisodeFilter)):
        own = [field for field in fields(options) if field.name != "settings_of"]
        assert {f.name for f in own} <= {f.name for f in fields(settings)}
        for field in own:
            default = getattr(settings(), field.name)
            shown = {"{}": {}, "auto": None}.get(field.default, field.default)
            assert shown == default, field.name


def test_collect_takes_the_data_type_of_a_model(tmp_path, capsys):
    words = ["collect", *SHORT, "--n", "1", "--dtype", "bfloat16", "--out"]
    with pytest.raises(SystemExit) as end:
        main([*words, str(tmp_path / "run")])
    assert not end.value.code
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["compute_dtype"], config["dtype"]) == ("bfloat16", "float32")
    assert "choose from auto, float32, bfloat16" in failure(capsys, *SHORT_COLLECT, "--dtype", "x")


def test_a_wrapper_of_eval_takes_arguments_as_in_a_config(tmp_path):
    words = [*SHORT, "--limit", "1", "--out", str(tmp_path / "eval"), "--wrapper", SCALE]
    with pytest.raises(SystemExit) as end:
        main(["eval", *words, "--json", str(tmp_path / "report.json")])
    assert not end.value.code
    (episode,), _ = RunStore.open(tmp_path / "eval").trajectories("expert")
    assert episode.reward == 2.0 and episode.score == 1.0


def test_a_wrapper_of_collect_takes_arguments_as_in_a_config(tmp_path):
    words = [*SHORT, "--n", "1", "--out", str(tmp_path / "run"), "--wrapper", SCALE]
    with pytest.raises(SystemExit) as end:
        main(["collect", *words])
    assert not end.value.code
    (episode,), _ = RunStore.open(tmp_path / "run").trajectories("collected")
    assert episode.reward == 2.0
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["wrappers"] == [{"wrapper": "agentgym_env.wrappers:ScaleReward", "scale": 2}]


@pytest.mark.parametrize("command", ["eval", "collect"])
def test_errors_of_a_wrapper_name_the_option_and_not_the_key(command, capsys, tmp_path):
    words = [command, *SHORT, "--out", str(tmp_path / "out"), "--wrapper"]
    said = failure(capsys, *words, SCALE.replace("scale", "scal"))
    assert "'scal'" in said and "Fix or remove it" in said and "`wrappers`" not in said
    assert "--wrapper: " in failure(capsys, *words, "agentgym_env.wrappers")
    assert "--wrapper: " in failure(capsys, *words, "{scale: 2}")
    assert "--wrapper is not valid YAML" in failure(capsys, *words, "{wrapper: a:b")


@pytest.mark.parametrize(
    ("words", "expanded"),
    [
        ("--keep-reasoning", "keep_reasoning=true"),
        ("--keep_reasoning --seed 3", "keep_reasoning=true --seed 3"),
        ("--no-keep-reasoning steps=3", "keep_reasoning=false steps=3"),
        ("--keep-reasoning false --packing null", "keep_reasoning=false packing=null"),
        ("--eval-before=false --no-eval-after", "--eval-before=false eval_after=false"),
        ("keep_reasoning=true", "keep_reasoning=true"),
        # A key with a value takes the next word, whatever it is.
        ("--model --keep-reasoning", "--model --keep-reasoning"),
        ("--model true --keep-reasoning", "--model true keep_reasoning=true"),
        ("--keep-reasoning other.yaml", "keep_reasoning=true other.yaml"),
    ],
)
def test_a_boolean_key_is_a_flag_that_may_have_a_value(words, expanded):
    assert expand_flags(words.split()) == expanded.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--no-keep-reasoning=true", "write --keep-reasoning=true or --keep-reasoning=false"),
        ("--no-keep-reasoning true", "write --keep-reasoning=true or --keep-reasoning=false"),
        ("--keep-reasonin", "did you mean keep_reasoning"),
        ("--no-steps", "unknown key no_steps"),
    ],
)
def test_an_invalid_flag_is_rejected_with_the_way_to_write_it(words, message):
    with pytest.raises(ConfigError, match=message):
        expand_flags(words.split())


def test_a_key_is_a_flag_in_every_method_or_in_none():
    for key in boolean_keys():
        hints = [get_type_hints(config).get(key) for config in CONFIGS.values()]
        assert {hint for hint in hints if hint is not None} <= {bool, bool | None}, key


def test_train_reads_flags_as_values_of_the_config(capsys, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("method: sft\ndata: [x]\nmodel: m\n")
    said = failure(capsys, "train", str(path), "--no-unique", "--keep-reasoning", "--dtype", "x")
    assert "dtype" in said and "unique" not in said and "keep_reasoning" not in said
    assert "write the config file before --unique" in failure(capsys, "train", "--unique", "x")


@pytest.mark.parametrize("method", list(CONFIGS))
def test_keys_lists_each_key_with_its_type_default_and_meaning(method, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", "--keys", method])
    assert not end.value.code
    lines = capsys.readouterr().out.splitlines()
    own = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert own == [key.name for key in config_keys(method)]
    assert set(own) == {f.name for f in fields(CONFIGS[method])}
    inner = [line.split()[0] for line in lines if line.startswith(" ")]
    assert inner == [key.name for key in world_keys(method)]
    inherited = {key.name for key in world_keys(method) if key.default == "the run's"}
    assert inherited == FROM_RUN & set(inner) and inherited < set(own)
    assert ("horizon" in inner, "tasks" in inner) == (
        method in ("rl", "evolve"),
        method == "evolve",
    )
    assert all(re.fullmatch(r" *\w+ +\S.*; (default .+|required)\. \S.*\.", line) for line in lines)


@pytest.mark.parametrize("words", [["--keys"], ["--keys", "--trust"]])
def test_keys_without_a_method_lists_those_of_rl_and_names_the_others(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["train", *words])
    assert not end.value.code
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == key_lines("rl")
    assert all(f"--keys {method}" in last for method in METHODS if method != "rl")


def test_keys_names_what_a_config_must_have():
    lines = [line for line in key_lines("rl") if not line.startswith(" ")]
    required = [line.split()[0] for line in lines if "; required." in line]
    with pytest.raises(ConfigError) as error:
        method_config({"method": "rl"})
    assert sorted(re.findall(r"model|output_dir|env", str(error.value))) == sorted(required)
    assert tuple(CONFIGS) == METHODS
