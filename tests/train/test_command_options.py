"""Options of `agentgym eval`, `collect` and `train` as a user writes them."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from agentgym_env.cli import main
from agentgym_env.run_store import RunStore
from agentgym_train.cli import FilterOptions, PolicyOptions
from agentgym_train.config.base import PolicyConfig
from agentgym_train.config.values import EpisodeFilter

SHORT = ["--env", "textcraft", "--policy", "expert", "--horizon", "40"]
SCALE = "{wrapper: agentgym_env.wrappers:ScaleReward, scale: 2}"


def failure(capsys, *words: str) -> str:
    """The one line that a command prints when it fails."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_the_options_of_a_policy_and_of_a_filter_are_fields_of_their_settings():
    for options, settings in ((PolicyOptions, PolicyConfig), (FilterOptions, EpisodeFilter)):
        assert {f.name for f in fields(options)} <= {f.name for f in fields(settings)}
        for field in fields(options):
            default = getattr(settings(), field.name)
            assert field.default == ("{}" if default == {} else default), field.name


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
    assert "'scal'" in said and "remove it from `--wrapper`" in said and "`wrappers`" not in said
    assert "--wrapper: " in failure(capsys, *words, "agentgym_env.wrappers")
    assert "--wrapper: " in failure(capsys, *words, "{scale: 2}")
    assert "--wrapper is not valid YAML" in failure(capsys, *words, "{wrapper: a:b")
