"""Classes of a notebook or a script are served by processes that cannot import it."""

import subprocess
import sys
import threading

import pytest

import __main__
from agentgym_env import main_module
from agentgym_env.errors import BadRequest, UnknownEnvironment
from agentgym_env.launch import child_environment, local_server
from agentgym_env.registry import env_class
from worlds import Guess

SCRIPT = """
import random
from dataclasses import dataclass

import gymnasium as gym

import agentgym_env
from agentgym_env import TaskSet, TextEnv
from agentgym_env.conformance import check_environment

@dataclass
class Rules:
    word: str

RULES = Rules("open")

class Door(TextEnv):
    instruction = "Open the door."
    tasks = TaskSet({{"train": ["front"], "test": ["back"]}})
    isolated = {isolated}

    def __init__(self, word=RULES.word):
        super().__init__()
        self.word = word

    def _reset(self, task):
        return f"The {{task}} door is closed."

    def _step(self, action):
        done = action == self.word
        return ("It opens." if done else "Nothing happens."), float(done), done

    def expert(self):
        yield self.word

if __name__ == "__main__":
    agentgym_env.register("me/Door-v0", "__main__:Door")
    envs = gym.make_vec("me/Door-v0", num_envs=2, word="push")
    envs.reset(seed=0)
    print(envs.step(["push", "open"])[:3])
    envs.close()
    wrong = [f for f in check_environment("__main__:Door", sessions=4) if not f.passed]
    print("wrong", wrong)
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_a_class_of_a_script_is_served_and_checked(tmp_path, isolated):
    script = tmp_path / "door.py"
    script.write_text(SCRIPT.format(isolated=isolated))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=child_environment(),
        cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'It opens.', 'Nothing happens.'" in done.stdout
    assert done.stdout.endswith("wrong []\n")


def main_class(monkeypatch, **members):
    kind = type("Mine", (Guess,), {"__module__": "__main__", **members})
    monkeypatch.setattr(__main__, "Mine", kind, raising=False)
    return kind


def test_a_changed_class_has_a_server_of_its_own_and_an_equal_one_shares_it(monkeypatch):
    main_class(monkeypatch)
    with local_server("__main__:Mine") as first, local_server("__main__:Mine") as again:
        assert first.address == again.address
        main_class(monkeypatch, instruction="Another one.")
        with local_server("__main__:Mine") as changed:
            assert changed.address != first.address


def test_a_class_that_holds_what_cannot_be_sent_is_named_with_the_remedy(monkeypatch):
    main_class(monkeypatch, lock=threading.Lock())
    with pytest.raises(BadRequest, match=r"Mine cannot be sent .*; define it in a module, or"):
        local_server("__main__:Mine")


def test_other_entry_points_stay_as_they_are_and_an_unknown_class_is_named():
    assert main_module.importable("worlds:Guess") == "worlds:Guess"
    with pytest.raises(UnknownEnvironment, match="only its notebook or script has it"):
        env_class("__main__:Nothing")
    with pytest.raises(BadRequest, match="only its notebook or script has it"):
        local_server("__main__:Nothing")
