"""`agentgym play` in a real terminal, and with lines that are piped in."""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from commands import agentgym
from waiting import LIMIT_S
from worlds import Guess


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, folder, *words: str) -> None:
        self._fd, child = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from agentgym_env.cli import main; main()", "play", *words],
            stdin=child, stdout=child, stderr=child, cwd=folder, close_fds=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(child)
        self._seen, self._decoder = "", codecs.getincrementaldecoder("utf-8")()

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> str:
        """What is shown up to a pattern."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(pattern, self._seen)):
            assert time.monotonic() < deadline, f"{pattern!r} is not in {self._seen!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                self._seen += self._decoder.decode(os.read(self._fd, 4096))
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def end(self) -> int:
        """Press Ctrl-D and wait."""
        self.type("\x04")
        status = self._process.wait(120)
        os.close(self._fd)
        return status


@pytest.fixture
def terminal(worlds_folder):
    return lambda *words: Terminal(worlds_folder, *words)


def test_tab_completes_an_available_action_and_an_episode_is_played(terminal):
    screen = terminal("faulty:Sound", "--task", "a")
    begin = screen.until("> ")
    assert "Say yes three times." in begin and "task a" not in begin
    for said in (1, 2):
        screen.type("y\t\n")
        assert f"{said} of 3" in screen.until("> $")
    screen.type("?\n")
    assert re.search(r"yes\s+no", screen.until("> $"))
    screen.type("!\n")
    assert "yes" in screen.until("> $")
    screen.type("ye\t\n")
    end = screen.until("another episode")
    assert "solved after 3 turns, return 1" in end and "task a, seed 0" in end
    screen.type("\n")
    assert "seed 1" in screen.until("> $")
    assert screen.end() == 0


def test_an_environment_without_an_expert_says_so():
    ran = agentgym("play", "faulty:NoExpert", stdin="!\n")
    assert ran.status == 0 and "no expert" in ran.out


def test_a_server_is_played_as_well(serve):
    words = ("--server", serve(env_id="worlds:Guess").address, "--task", "5")
    ran = agentgym("play", "worlds:Guess", *words, stdin="!\n5\n")
    assert "> 5\n" in ran.out and "solved after 1 turns" in ran.out
    assert ran.status == 0


def test_lines_that_are_piped_in_are_played():
    ran = agentgym("play", "faulty:Sound", stdin="yes\nyes\nyes\n")
    assert ran.status == 0 and "solved after 3 turns" in ran.out


def test_the_id_of_a_drawn_task_is_shown_after_the_episode_only():
    _, info = Guess().reset(seed=0, options={"split": "test"})
    answer = info["task"]
    ran = agentgym("play", "worlds:Guess", "--split", "test", stdin=f"!\n0\n{answer}\n")
    before, _, end = ran.out.partition("Right!")
    assert "seed 0" in before and "task" not in before and f"> {answer}\n" in before
    assert "solved" in end and f"task {answer}, seed 0\n" in end
