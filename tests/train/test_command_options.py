"""Options of `agentgym eval`, `collect` and `train` as a user writes them."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import fields
from typing import get_type_hints

import pytest
from typer.utils import get_params_from_function

from agentgym_env.cli import main
from agentgym_env.cli.main import make_app
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_gateway.settings import GatewaySettings
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.keys import (
    config_keys,
    inner_keys,
    key_lines,
)
from agentgym_train.config.policy import AuditSettings, CollectConfig, PolicyConfig
from agentgym_train.config.read import CONFIGS, boolean_keys, method_config, parse_overrides
from agentgym_train.config.worlds import FROM_RUN
from agentgym_train.evaluation.plan import Evaluation

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


def options_of(command: str) -> dict[str, set[str]]:
    """Parameter -> its options, of a command as it is started."""
    commands = {each.name: each.callback for each in make_app([command]).registered_commands}
    found = get_params_from_function(commands[command])
    return {name: set(found[name].default.param_decls or ()) for name in found}


@pytest.mark.parametrize(
    ("command", "settings", "others"),
    [
        ("eval", PolicyConfig, {"model"}),
        ("eval", Evaluation, {"name", "published", "notes"}),
        ("collect", CollectConfig, {"keep", "method"}),
        ("collect", EpisodeFilter, set()),
        ("export", EpisodeFilter, set()),
        ("audit", AuditSettings, {"model", "compute_dtype", "engine", "agent", "trainer_args"}),
        ("gateway", PolicyConfig, {"agent", "action_format"}),
        ("gateway", GatewaySettings, {"address_file", "crashes"}),
    ],
)
def test_a_new_field_of_the_settings_is_an_option(command, settings, others):
    """Decide for a new field whether the command has it."""
    assert {f.name for f in fields(settings)} - options_of(command).keys() == others


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dtype", "bfloat16"], "--dtype is now --compute-dtype"),
        (["--gateway", '{"port": 1}'], "--gateway is now part of --agent"),
        (["--cuda-graphs"], "--cuda-graphs is now --engine '{type: hf, cuda_graphs: true}'"),
    ],
)
def test_an_old_option_is_rejected_with_the_new_one(words, said, capsys):
    assert said in failure(capsys, "eval", *SHORT, *words)
    if words[0] != "--cuda-graphs":
        assert said in failure(capsys, *SHORT_COLLECT, *words)


@pytest.mark.parametrize("command", [SHORT_COLLECT, ["export", "run", "--out", "x.jsonl"]])
def test_an_old_option_of_the_filter_is_rejected_with_the_new_one(command, capsys):
    for old, new in (("--least-reward", "--min-reward"), ("--most-turns", "--max-turns")):
        assert f"{old} is now {new}" in failure(capsys, *command, old, "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--horizon", "0"], "horizon is at least 1, got 0"),
        (["--turn-max-tokens", "-3"], "turn_max_tokens is at least 1, got -3"),
        (["--compute-dtype", "x"], "compute_dtype must be one of float32, bfloat16, got 'x'"),
        (["--chat-template-kwargs", "[1]"], "chat_template_kwargs must be a mapping, got [1]"),
        (["--env-kwargs", "{a: [}"], "--env-kwargs is not valid YAML"),
        (["--engine", "{type: hf, max_batch: 0}"], "engine.max_batch is at least 1"),
        (["--engine", "vlm"], "engine has no type 'vlm'; choose from hf, vllm, vllm_colocate"),
        (["--agent", "{type: window, sze: 3}"], "unknown key sze in agent of type window"),
    ],
)
def test_the_value_of_an_option_is_checked_as_that_of_a_config(words, said, capsys):
    for command in (["eval"], ["collect", "--out", "unused"]):
        assert said in failure(capsys, *command, "--env", "textcraft", "--policy", "hf:x", *words)


def test_collect_takes_the_data_type_of_a_model(tmp_path):
    words = ["collect", *SHORT, "--n", "1", "--compute-dtype", "bfloat16", "--out"]
    with pytest.raises(SystemExit) as end:
        main([*words, str(tmp_path / "run")])
    assert not end.value.code
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["compute_dtype"], config["dtype"]) == ("bfloat16", "float32")


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
    ("words", "values"),
    [
        ("--keep-reasoning", {"keep_reasoning": True}),
        ("--keep_reasoning --seed 3", {"keep_reasoning": True, "seed": 3}),
        ("--no-keep-reasoning steps=3", {"keep_reasoning": False, "steps": 3}),
        ("--keep-reasoning false --packing null", {"keep_reasoning": False, "packing": None}),
        ("--eval.before=false --no-eval.after", {"eval.before": False, "eval.after": False}),
        ("--engine.cuda-graphs --no-algorithm.scale",
         {"engine.cuda_graphs": True, "algorithm.scale": False}),
        ("keep_reasoning=true", {"keep_reasoning": True}),
        # A key with a value takes the next word, whatever it is.
        ("--model --keep-reasoning", {"model": "--keep-reasoning"}),
        ("--model true --keep-reasoning", {"model": True, "keep_reasoning": True}),
    ],
)  # fmt: skip
def test_a_boolean_key_is_a_flag_that_may_have_a_value(words, values):
    assert parse_overrides(words.split()) == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--no-keep-reasoning true", "'true' is not a setting; write key=value"),
        ("--keep-reasoning other.yaml", "'other.yaml' is not a setting"),
        ("--keep-reasonin", "did you mean keep_reasoning"),
        ("--no-steps", "unknown key no_steps"),
    ],
)
def test_an_invalid_flag_is_rejected_with_the_way_to_write_it(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_overrides(words.split())


def test_a_key_is_a_flag_in_every_method_or_in_none():
    for key in boolean_keys():
        first, _, inner = key.partition(".")
        hints = [get_type_hints(config).get(first) for config in CONFIGS.values()]
        if inner:
            hints = [hint and get_type_hints(hint).get(inner) for hint in hints]
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
    for name in ("envs", "eval", "limits", "engine"):
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name} "))
        below = itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :])
        assert [line.split()[0] for line in below] == [key.name for key in inner_keys(method, name)]
    inner = [key.name for key in inner_keys(method, "envs")]
    inherited = {key.name for key in inner_keys(method, "envs") if key.default == "the run's"}
    assert inherited == FROM_RUN & set(inner) and inherited < set(own)
    assert ("horizon" in inner, "tasks" in inner) == (
        method in ("rl", "evolve"),
        method == "evolve",
    )
    assert all(re.fullmatch(r" *\w+ +\S.*; (default .+|required)\. \S.*\.", line) for line in lines)


def test_keys_names_what_a_config_must_have():
    lines = [line for line in key_lines("rl") if not line.startswith(" ")]
    required = [line.split()[0] for line in lines if "; required." in line]
    with pytest.raises(ConfigError) as error:
        method_config({"method": "rl"})
    assert sorted(re.findall(r"model|output_dir|env", str(error.value))) == sorted(required)


def test_rl_has_at_most_fifty_keys():
    assert len(config_keys("rl")) <= 50
