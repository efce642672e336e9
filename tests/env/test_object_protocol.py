"""What Gymnasium's users do with any environment: copy, pickle, wrap, render and type it."""

import copy
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import gymnasium
import pytest
from gymnasium.wrappers import (
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    TimeAwareObservation,
)

from agentgym_env import RemoteEnv, RemoteVectorEnv
from agentgym_env.cli.new import write_package
from agentgym_env.errors import BadRequest, CannotCopy
from agentgym_env.registry import env_class
from agentgym_env.remote import make_env
from hosting import GUESS
from worlds import Guess

COPIES = {"copy.deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}
WORLDS = ("agentgym/TextCraft-v0", "agentgym/BabyAI-v0", "agentgym/Search-v0", GUESS)


def played(env: gymnasium.Env, turns: int) -> list:
    """Follow the expert for some turns."""
    told = []
    for _ in range(turns):
        action = env.expert_action()
        told.append((action, *env.step(action)))
        if told[-1][3] or told[-1][4]:
            break
    return told


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("env_id", WORLDS)
def test_a_copy_goes_on_where_the_environment_was_and_on_its_own(env_id, way):
    env = gymnasium.make(env_id, server="inprocess")
    env.reset(seed=3)
    if env_id != GUESS:
        played(env.unwrapped, 1)
    twin = COPIES[way](env)
    assert twin.unwrapped is not env.unwrapped
    rest = played(env.unwrapped, 40)
    assert rest and rest[-1][3] and rest[-1][5]["success"]
    # The copy is where the environment was, although that has ended.
    assert played(twin.unwrapped, 40) == rest
    assert twin.reset() == env.reset()


def test_copies_share_what_never_changes():
    env = env_class("agentgym/Search-v0")()
    twin = copy.deepcopy(env)
    assert twin._setup is env._setup and twin.tasks is env.tasks
    assert pickle.loads(pickle.dumps(env))._setup is env._setup
    tasks = pickle.loads(pickle.dumps(env.tasks))
    assert tasks.splits == env.tasks.splits and tasks.aliases == env.tasks.aliases


@pytest.mark.parametrize("way", COPIES)
def test_a_world_from_the_template_can_be_copied(way, tmp_path, monkeypatch):
    name = f"copied_{way[-4:]}"
    write_package(name, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module(name)
    made = next(c for c in vars(module).values() if getattr(c, "__module__", "") == name)
    env = made()
    env.reset(seed=0)
    twin = COPIES[way](env)
    assert played(twin, 40) == played(env, 40)


@pytest.mark.parametrize("way", COPIES)
def test_what_cannot_be_copied_says_what_to_do(serve, way):
    address = serve().address
    served = [RemoteEnv(GUESS, address), RemoteVectorEnv(GUESS, 2, address)]
    for env in served:
        with pytest.raises(CannotCopy, match="server='inprocess'"):
            COPIES[way](env)
        env.close()

    class Elsewhere(Guess):
        can_copy = False

    with pytest.raises(CannotCopy, match="the same task and seed, and repeat"):
        COPIES[way](Elsewhere())
    for env_id in ("agentgym/SciWorld-v0", "agentgym/WebArena-v0", "agentgym/MiniWoB-v0"):
        assert not env_class(env_id).can_copy


@pytest.mark.parametrize("server", ["inprocess", "address"])
def test_gymnasiums_wrappers_of_observations_take_texts(serve, server):
    server = serve().address if server == "address" else server

    def made(wrapper, *arguments, **options):
        return wrapper(gymnasium.make(GUESS, server=server), *arguments, **options)

    env = made(FrameStackObservation, 3, padding_type="zero")
    first, _ = env.reset(seed=0)
    assert first[:2] == ("", "") and first[2].startswith("Hello")
    second = env.step("0")[0]
    assert second == ("", first[2], "'0' is wrong.") and second in env.observation_space
    env.close()

    env = made(DelayObservation, 1)
    assert env.reset(seed=0)[0] == "" and env.step("0")[0] == first[2]
    env.close()

    # A text has no array form: it stays what it is.
    env = made(FlattenObservation)
    assert env.reset(seed=0)[0] == first[2] and first[2] in env.observation_space
    env.close()

    env = made(TimeAwareObservation)
    told, _ = env.reset(seed=0)
    assert told["obs"] == first[2] and told["time"] == 0 and told in env.observation_space
    assert env.step("0")[0]["time"] == 1
    env.close()


BAD_STARTS = [
    ({"seed": True}, "a seed is an int, got True"),
    ({"seed": 2**63}, "a seed is from 0 to 9223372036854775807"),
    ({"seed": 2**200}, "a seed is from 0 to"),
    ({"options": {"task": 3}}, "a task is a str, got 3"),
    ({"options": {"task": ["5"]}}, r"a task is a str, got \['5'\]"),
    ({"options": {"split": 7}}, "a split is a str, got 7"),
    ({"options": {"tsk": "5"}}, "reset options"),
]


@pytest.mark.parametrize(("start", "said"), BAD_STARTS)
def test_a_start_that_cannot_be_is_rejected_alike_here_and_there(serve, start, said):
    for server in ("inprocess", serve().address):
        env = gymnasium.make(GUESS, server=server)
        with pytest.raises(BadRequest, match=said):
            env.reset(**start)
        # Nothing is lost: the next reset starts an episode.
        assert env.reset(seed=0, options={"task": "5"})[1]["task"] == "5"
        env.close()


@pytest.mark.parametrize(
    ("mode", "server", "said"),
    [
        (
            "human",
            "inprocess",
            r"Guess has no render_mode 'human'; use render_mode='ansi' and print",
        ),
        ("rgb_array", "inprocess", "use render_mode='ansi', or leave it out$"),
        ("rgb_array", "address", "server='inprocess' gives them"),
        ("human", "address", "print what render"),
    ],
)
def test_another_render_mode_names_the_remedy(serve, mode, server, said):
    server = serve().address if server == "address" else server
    with pytest.raises(BadRequest, match=said):
        make_env(GUESS, server, render_mode=mode)
    with pytest.raises(BadRequest, match="render_mode='ansi'"):
        RemoteVectorEnv(GUESS, 2, server, render_mode=mode)


PROGRAM = """
import gymnasium
from agentgym_env import EnvironmentLost, TaskSet, TextEnv

class Echo(TextEnv):
    instruction = "Repeat the word."
    tasks = TaskSet({"train": ["a", "b"], "test": ["c"]})
    def _reset(self, task: str) -> str:
        self.word = task
        return task
    def _step(self, action: str) -> tuple[str, float, bool]:
        return "", float(action == self.word), True

env: gymnasium.Env[str, str] = gymnasium.make("agentgym/TextCraft-v0", server="inprocess")
observation, info = env.reset(seed=0, options={"split": "test"})
observation, reward, terminated, truncated, info = env.step("inventory")
print(Echo().step("a")[1] + float(reward), EnvironmentLost("gone").code)
"""


@pytest.mark.slow
def test_a_users_program_passes_mypys_strict_checks(tmp_path):
    pytest.importorskip("mypy.api", reason="needs mypy: make setup")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}",
         str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = program.with_name("wrong.py")
    wrong.write_text(PROGRAM + "\nEcho().step(3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}",
         str(wrong)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "incompatible type" in done.stdout


PACKAGES = (
    "agentgym_env", "agentgym_servers", "agentgym_adapters", "agentgym_train", "agentgym_gateway",
    "agentgym_viewer",
)  # fmt: skip


def test_every_package_ships_its_types():
    for package in PACKAGES:
        (found,) = __import__(package).__path__
        assert (Path(found) / "py.typed").is_file()
