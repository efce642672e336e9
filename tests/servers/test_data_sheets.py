"""The docstring of each environment's class is its data sheet: its sections and its figures."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from agentgym_env import registry
from agentgym_env.errors import MissingExtra

SECTIONS = (
    "Description", "Observation", "Actions", "Rewards", "Termination", "Tasks", "Arguments",
    "Data", "Registered id",
)  # fmt: skip
SPLIT = re.compile(r"\| `(train|dev|test|paper\w*)` \|(.*)\|")
SHEETS = {
    entry.env_id: entry
    for entry in registry.registered()
    if entry.entry_point.startswith("agentgym_servers.")
}


def sheet(env_id: str) -> tuple[type, dict[str, str]]:
    """The class of an id, and the sections of its docstring."""
    module, _, name = SHEETS[env_id].entry_point.partition(":")
    found = getattr(import_module(module), name)
    _, *parts = re.split(r"^## (.+)\n", inspect.getdoc(found), flags=re.MULTILINE)
    return found, dict(zip(parts[::2], parts[1::2], strict=True))


def numbers(text: str) -> set[int]:
    return {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)}


@pytest.mark.parametrize("env_id", SHEETS)
def test_a_data_sheet_has_every_section_the_id_and_the_horizon(env_id):
    _, sections = sheet(env_id)
    assert tuple(sections) == SECTIONS
    assert sections["Registered id"].strip() == f"`{env_id}`"
    assert f"truncated after {SHEETS[env_id].max_episode_steps} turns" in " ".join(
        sections["Termination"].split()
    )


@pytest.mark.parametrize("env_id", SHEETS)
def test_a_data_sheet_names_every_argument_with_its_default(env_id):
    found, sections = sheet(env_id)
    given = inspect.signature(found.__init__).parameters
    arguments = {n: p for n, p in given.items() if n not in ("self", "render_mode")}
    for name, parameter in arguments.items():
        default = repr(parameter.default).replace("'", '"')
        assert f"- `{name}` (default `{default}`): " in sections["Arguments"], name
    assert sections["Arguments"].count("(default ") == len(arguments)


@pytest.mark.parametrize("env_id", SHEETS)
def test_a_data_sheet_has_the_number_of_tasks_of_each_split(env_id):
    found, sections = sheet(env_id)
    try:
        tasks = found().tasks
    except MissingExtra as error:
        pytest.skip(f"its figures cannot be counted: {error}")
    if env_id in ("agentgym/Search-v0", "agentgym/WebArena-v0"):
        # One row a corpus, or a kind of sites.
        rows = {split: sections["Tasks"] for split in (*tasks.splits, *tasks.selections)}
    else:
        rows = dict(SPLIT.findall(sections["Tasks"]))
    assert set(rows) == {*tasks.splits, *tasks.selections}
    for split, ids in {**tasks.splits, **tasks.selections}.items():
        assert len(ids) in numbers(rows[split]), split
