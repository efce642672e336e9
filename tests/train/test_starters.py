"""`starter:NAME`: the configs and the small policy that come with the package."""

import pytest

from agentgym_env.errors import ConfigError
from agentgym_train.config.files import local_path, starters
from agentgym_train.config.read import parse_overrides, read_values
from agentgym_train.models.available import check_available, find_local_models
from agentgym_train.models.folders import is_model
from agentgym_train.rollout.policy_spec import parse_policy

WARM = "starter:textcraft/warm_policy"


def test_every_starter_is_a_config_or_a_model():
    names = starters()
    found = {
        "starter:quickstart.yaml",
        "starter:textcraft/rl.yaml",
        "starter:accelerate/fsdp2.yaml",
    }
    assert {WARM, "starter:tower/sft_policy", *found} <= {*names}
    for name in names:
        path = local_path(name)
        assert path.suffix == ".yaml" or is_model(path), name


def test_a_starter_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("starter:textcraft/rl.yaml", "starter:textcraft/rl"):
        assert read_values(name, ["steps=1"])["model"] == WARM
    assert read_values("starter:quickstart", [])["model"] == "starter:tower/warm_policy"
    check_available(WARM)
    policy = parse_policy(WARM)
    assert (policy.kind, policy.model) == ("hf", WARM)
    assert WARM in {model.name for model in find_local_models([tmp_path])}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("starter:textcraft/rll", "starter:textcraft/rl.yaml"),
        ("starter:", WARM),
        ("starter:../../pyproject.toml", WARM),
        ("starter:/etc/hostname", "starter:textcraft/rl.yaml"),
        ("starter:textcraft/warm", WARM),
    ],
)
def test_an_unknown_starter_is_one_error_with_names_that_exist(name, hint):
    for read in (read_values, check_available, parse_policy):
        with pytest.raises(ConfigError, match="there is no starter:") as error:
            read(name)
        assert hint in str(error.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("~nosuchuser/x.yaml", "no home folder is known for ~nosuchuser"),
        ("starter:" + "x" * 5000, "File name too long"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_a_name_that_cannot_be_a_path_is_one_short_error(name, reason):
    for read in (read_values, check_available, local_path):
        with pytest.raises(ConfigError, match=reason) as error:
            read(name)
        assert len(str(error.value)) < 500


def test_a_starter_without_a_name_is_text_on_the_command_line():
    assert parse_overrides(["model=starter:"]) == {"model": "starter:"}
