"""A fleet's file: what it may say, and what it is told when it is wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from agentgym_env.errors import ConfigError
from agentgym_servers.fleet.spec import Limits, fleet_of, read_fleet

EXAMPLES = Path(__file__).parents[3] / "examples" / "fleet"
WORLDS = {"env": "agentgym/TextCraft-v0"}


def fleet(**group: object) -> dict[str, object]:
    return {"name": "lab", "servers": {"worlds": {**WORLDS, **group}}}


def test_a_number_and_limits_of_servers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "name: lab\nservers:\n  a: {env: x, replicas: 3}\n"
        "  b: {model: m, replicas: {min: 1, max: 4}}\n"
    )
    read = read_fleet(path)
    assert read.servers["a"].limits == Limits(3, 3)
    assert read.servers["b"].limits == Limits(1, 4)
    assert (read.servers["a"].kind, read.servers["b"].kind) == ("env", "vllm")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "must be a mapping"),
        ({"name": "lab"}, "missing required field `servers`"),
        ({"name": "lab", "servers": {}}, "no servers"),
        ({"name": "a b", "servers": {"w": WORLDS}}, "'a b' must have letters"),
        ({"name": "lab", "servers": {"w/x": WORLDS}}, "'w/x' must have letters"),
        ({"name": "lab", "servers": {"w": {}}}, "either env or model"),
        (fleet(model="m"), "either env or model"),
        (fleet(replicas=0), "replicas must be at least 1"),
        (fleet(replicas={"min": 3, "max": 2}), "3 to 2"),
        (fleet(replica=1), r"servers\.worlds is invalid: .* unknown field `replica`"),
        (fleet(replicas="two"), r"servers\.worlds is invalid: .* at `\$\.replicas`"),
        (fleet(scale_at=0), "scale_at must be above 0"),
        (fleet(drain_s=float("nan")), "drain_s must be a number"),
        (fleet(start_s=-1), "start_s must be a number"),
        (fleet(places=0), "places must be at least 1"),
        (fleet(resources={"CPU": -1}), "resources.CPU must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(values: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fleet_of(values)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("name: [")
    with pytest.raises(ConfigError, match=r"cannot read .*fleet\.yaml"):
        read_fleet(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_fleet(tmp_path / "none.yaml")


def test_counts_do_not_make_servers_old_but_options_do() -> None:
    base = fleet_of(fleet()).servers["worlds"].digest()
    assert fleet_of(fleet(replicas=5, drain_s=1, scale_at=0.5)).servers["worlds"].digest() == base
    assert fleet_of(fleet(options={"workers": 2})).servers["worlds"].digest() != base
    assert fleet_of(fleet(env_kwargs={"a": 1})).servers["worlds"].digest() != base


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*fleet.yaml")), ids=lambda path: path.name)
def test_the_examples_are_fleets(path: Path) -> None:
    assert read_fleet(path).servers


@pytest.mark.parametrize("name", ["kuberay.yaml", "compose.yaml"])
def test_the_other_examples_are_yaml_with_commands_that_exist(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert yaml.safe_load(text)
    assert subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"]).returncode == 0
    for word in re.findall(r"agentgym (\w+) ", text):
        assert word in ("up", "serve", "down", "train"), word
