"""Nothing that a stored file names is imported or connected to without `--trust`."""

from __future__ import annotations

import inspect
import re
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import commands
from agentgym_env import wrappers
from agentgym_env.errors import BadRequest
from agentgym_env.registry import env_class, registered
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_env.trust import (
    HARMLESS_TEXTS,
    HARMLESS_WRAPPERS,
    NEEDS_TRUST,
    names_in,
    require_trust,
)

CODE = """
    from pathlib import Path
    from agentgym_env import TaskSet, TextEnv

    Path("imported").touch()

    class World(TextEnv):
        instruction = ""
        tasks = TaskSet({"train": ["1"], "test": ["2"]})
        def __init__(self, render_mode=None, judge=None, mood=1):
            super().__init__(render_mode)
        def _reset(self, task): return "Go."
        def _step(self, action): return "Done.", 1.0, True

    reply = print
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A working directory in which the module `evil` leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "evil.py").write_text(textwrap.dedent(CODE))
    yield tmp_path
    sys.modules.pop("evil", None)


def stored(folder: Path, env: str, run: dict) -> str:
    store = RunStore.create(folder / "run", run)
    turn = Turn("x", "x", "Done.", 1.0)
    store.append_trajectories(
        "p", [Trajectory(env, "1", 0, "", "Go.", [turn], "success", "p", 9, success=True)]
    )
    return "run"


def agentgym(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    ran = commands.agentgym(*words, folder=folder)
    sys.modules.pop("evil", None)
    return ran.status, ran.text


NAMED = {
    "env": "evil:World",
    "env_kwargs": {"judge": "os:system", "log": "notes", "deep": {"list": [{"index": "/etc"}]}},
    "servers": ["http://evil"],
    "wrappers": ["evil:Outer", {"wrapper": "agentgym_env.wrappers:StepPenalty", "penalty": "x"}],
}
PLACES = [
    "env", "env_kwargs.judge", "env_kwargs.log", "env_kwargs.deep.list[0].index", "servers[0]",
    "wrappers[0]", "wrappers[1].penalty",
]  # fmt: skip


def test_everything_that_is_not_known_to_be_harmless_is_found_by_its_place():
    assert list(names_in(NAMED)) == PLACES


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("textcraft", {"legacy": True}),
        ("agentgym/WebArena-v0", {"layout": "agentgym", "seed": 3, "judge": None}),
        ("search", {"corpus": "synthetic:7", "topk": 2}),
        ("agentgym/BabyAI-v0", {"levels": ["GoToObj", "PickupLoc"]}),
        ("sciworld", {"simplifications": "openDoors,teleportAction"}),
    ],
)
def test_numbers_and_the_choices_of_an_environment_need_no_trust(env, kwargs):
    assert names_in({"env": env, "env_kwargs": kwargs}) == {}


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("agentgym/WebArena-v0", {"layout": "other"}),
        ("search", {"corpus": "notes"}),
        ("search", {"levels": ["GoToObj"]}),
        ("evil:World", {"layout": "agentgym"}),
        ("tests/Unknown-v0", {"layout": "agentgym"}),
        ("agentgym/OpenEnv-v0", {"address": "x"}),
        ("textcraft", {"host": 0}),
        ("textcraft", {"model": {"trust_remote_code": True}}),
    ],
)
def test_other_texts_and_switches_need_trust(env, kwargs):
    assert names_in({"env": env, "env_kwargs": kwargs}, keys=["env_kwargs"])


def test_every_text_that_an_environment_of_ours_takes_is_in_a_list():
    for entry in registered():
        if not entry.env_id.startswith("agentgym/"):
            continue
        for parameter in inspect.signature(env_class(entry.env_id).__init__).parameters.values():
            place, kind = f"{entry.env_id}.{parameter.name}", str(parameter.annotation)
            is_free = ("str" in kind or "Any" in kind) and "Literal" not in kind
            if is_free and parameter.name != "render_mode":
                assert (place in HARMLESS_TEXTS) != (place in NEEDS_TRUST), place


def test_every_wrapper_of_ours_that_needs_no_trust_takes_numbers_alone():
    for name in HARMLESS_WRAPPERS:
        _, _, *arguments = inspect.signature(getattr(wrappers, name).__init__).parameters.values()
        assert all(re.fullmatch(r"(int|float)( \| None)?", a.annotation) for a in arguments), name


@pytest.mark.parametrize("odd", [None, 3, [], ["a:b"], {"x": [None, {"y": 1.5}]}, "\x1b[2Ja:b"])
def test_settings_of_any_shape_are_read(odd):
    for key in NAMED:
        for text in names_in({"env": "textcraft", key: odd}).values():
            assert text in ("a:b", "\x1b[2Ja:b", "3", "1.5")


def test_the_error_lists_all_names_with_their_places_in_one_line():
    require_trust("run", names_in(NAMED), trusted=True)
    require_trust("run", {}, trusted=False)
    with pytest.raises(BadRequest) as error:
        require_trust("run", names_in(NAMED) | {"x": "\x1b[2J\n"}, trusted=False)
    for place in PLACES:
        assert f"{place}=" in str(error.value)
    assert "env='evil:World'" in str(error.value) and "--trust" in str(error.value)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


def test_replay_imports_what_a_file_names_only_if_it_is_trusted(folder):
    run = stored(folder, "evil:World", {"config": {"env_kwargs": {"judge": "evil:reply"}}})
    status, said = agentgym(folder, "replay", run)
    assert status == 2, said
    assert "p.jsonl:1 env='evil:World'" in said and "env_kwargs.judge='evil:reply'" in said
    assert not (folder / "imported").exists()
    # A client of AgentGym's own servers takes the instruction from the class here.
    status, said = agentgym(folder, "replay", run, "--server", "agentgym+http://127.0.0.1:9")
    assert status == 2 and "p.jsonl:1 env='evil:World'" in said
    assert not (folder / "imported").exists()
    status, said = agentgym(folder, "replay", run, "--trust")
    assert status == 0 and "1 of 1 episodes agree" in said


def test_replay_trusts_what_the_user_names(folder):
    run = stored(folder, "evil:World", {"config": {"env_kwargs": {"judge": "evil:reply"}}})
    status, said = agentgym(folder, "replay", run, "--env", "evil:World")
    assert status == 2 and "env_kwargs.judge" in said and "p.jsonl" not in said
    assert not (folder / "imported").exists()
    words = ("--env", "evil:World", "--env-kwargs", '{"judge": "evil:reply"}')
    assert agentgym(folder, "replay", run, *words)[0] == 0
    RunStore(folder / "run").write_json("run.json", {"config": {"env_kwargs": {"mood": 2}}})
    assert agentgym(folder, "replay", run, "--env", "evil:World")[0] == 0


def test_replay_connects_to_no_address_of_a_file(folder):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        run = stored(
            folder, "agentgym/OpenEnv-v0", {"config": {"env_kwargs": {"address": address}}}
        )
        status, said = agentgym(folder, "replay", run)
        assert status == 2 and f"env_kwargs.address='{address}'" in said
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_export_imports_nothing_that_a_file_names(folder):
    stored(folder, "evil:World", {})
    words = ("--format", "conversations", "--out", "out.json")
    status, said = agentgym(folder, "export", "run/trajectories/p.jsonl", *words)
    assert status == 0 and (folder / "out.json").is_file(), said
    assert not (folder / "imported").exists()
