"""`module:name` finds code in the working directory, as the last place, in every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentgym_env.client.sync import EnvClient
from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest, UnknownEnvironment
from agentgym_env.registration import register
from agentgym_env.registry import env_class
from agentgym_env.remote import make_env
from agentgym_env.vector import RemoteVectorEnv

CONSOLE_SCRIPT = Path(sys.executable).with_name("agentgym")
COIN = """
    import coin_sides
    from agentgym_env import TaskSet, TextEnv

    class Coin(TextEnv):
        instruction = "Call it."
        tasks = TaskSet({"train": ["heads"], "test": ["tails"]})
        def _reset(self, task):
            self._side = task
            return "Heads or tails?"
        def _step(self, action):
            return "It lands.", float(action == self._side and action in coin_sides.SIDES), True
        def expert(self):
            yield self._side
"""


def plain_environ() -> dict[str, str]:
    """The variables of a shell: nothing tells Python where to look."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A working directory with an environment, and with files that are called as others are."""
    (tmp_path / "coin.py").write_text(textwrap.dedent(COIN))
    (tmp_path / "coin_sides.py").write_text("SIDES = ('heads', 'tails')\n")
    for taken in ("json", "statistics", "msgspec", "yaml", "agentgym_train"):
        (tmp_path / f"{taken}.py").write_text("raise SystemExit('the working directory shadows')")
    return tmp_path


def python(folder: Path, program: str) -> str:
    """What a program writes in a process that starts as a console script does."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        cwd=folder, env=plain_environ(), capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_working_directory_is_searched_last_and_only_when_needed(folder):
    program = """
        import os, sys
        from agentgym_env.entry_points import load_named
        assert load_named("json:dumps")([1]) == "[1]"
        assert load_named("statistics:fmean")([1.0, 3.0]) == 2.0
        assert os.getcwd() not in sys.path
        print(load_named("coin:Coin").instruction, sys.path.index(os.getcwd()) - len(sys.path))
    """
    assert python(folder, program) == "Call it. -1\n"


def test_a_name_that_is_nowhere_leaves_the_path_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.py").write_text("import no_such_module_at_all")
    before = list(sys.path)
    for missing in ("no_such_module_at_all", "half"):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
            load_named(f"{missing}:Thing")
    with pytest.raises(BadRequest, match="json has no 'nothing'"):
        load_named("json:nothing")
    with pytest.raises(BadRequest, match="must look like module:Class"):
        load_named("json:dumps()")
    assert sys.path == before


def test_a_registered_name_is_not_looked_for_in_the_working_directory(folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = list(sys.path)
    register("tests/Coin-v0", "coin:Coin")
    for name in ("tests/Coin-v0", "coin:Coin"):
        with pytest.raises(UnknownEnvironment, match="No module named 'coin'"):
            env_class(name)
    assert sys.path == before


def test_a_local_server_and_a_vector_of_environments_find_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    env = RemoteVectorEnv("coin:Coin", 2)
    try:
        env.reset(seed=0, options={"task": "heads"})
        assert env.step(["heads", "tails"])[1].tolist() == [1.0, 0.0]
    finally:
        env.close()


def test_gymnasiums_worker_processes_find_it(folder):
    program = """
        from functools import partial
        from gymnasium.vector import AsyncVectorEnv
        from agentgym_env.remote import make_env
        make = partial(make_env, "coin:Coin", "inprocess")
        if __name__ == "__main__":
            envs = AsyncVectorEnv([make, make], shared_memory=False, context="forkserver")
            envs.reset(seed=0, options={"task": "tails"})
            print(envs.step(["heads", "tails"])[1].tolist())
            envs.close()
    """
    assert python(folder, program) == "[0.0, 1.0]\n"


def test_code_that_a_setting_names_is_found_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    make_env("agentgym/WebArena-v0", "inprocess", judge="coin_sides:SIDES").close()
    with pytest.raises(BadRequest, match="the judge 'coin_sides:EDGE' cannot be loaded"):
        make_env("agentgym/WebArena-v0", "inprocess", judge="coin_sides:EDGE")
    sys.modules.pop("coin_sides")


@pytest.mark.parametrize(
    "option", [("--isolate",), pytest.param(("--workers", "2"), marks=pytest.mark.slow)]
)
def test_the_processes_of_serve_find_it(folder, option):
    command = [CONSOLE_SCRIPT, "serve", "coin:Coin", "--port", "0", *option]
    served = subprocess.Popen(
        command, cwd=folder, env=plain_environ(), stderr=subprocess.PIPE, text=True
    )
    try:
        said = ""
        for line in served.stderr:
            said += line
            if found := re.search(r"serving \S+ on (http://\S+)", line):
                break
        else:
            raise AssertionError(said)
        with EnvClient(found[1]) as client:
            session = client.open()
            session.reset(seed=0, task="heads")
            assert session.step("heads").reward == 1.0
    finally:
        served.terminate()
        served.communicate(timeout=120)
