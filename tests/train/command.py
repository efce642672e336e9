"""The command `agentgym` in processes of its own, which begin with the trainer's libraries loaded.

To load torch, transformers and TRL takes eight seconds of a processor, and the tests start the
command dozens of times. So it is forked from one process that has loaded them and done nothing
else. How it starts from nothing is for `test_fast_failure`, `test_launching` and `test_examples`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path

MAIN = "from agentgym_env.cli import main; main()"
"""The command in a process that starts from nothing: `python -c MAIN WORDS`."""
LOADED = [
    "agentgym_train.runs.agent_evol",
    "agentgym_train.cli.audit",
    "agentgym_train.cli.collect",
    "agentgym_train.cli.evaluate",
    "agentgym_train.cli.exchange",
    "agentgym_train.cli.models",
    "agentgym_train.cli.train",
    "agentgym_train.training.dpo",
    "agentgym_train.training.sft",
    "agentgym_train.training.rl",
]
# The fork server ignores what it cannot import; a module that moved would only make tests slow.
assert all(find_spec(name) for name in LOADED)


class Command:
    """A command that runs; used as a `subprocess.Popen` whose two outputs are one."""

    def __init__(self, *words: object, cwd: Path | None = None) -> None:
        handle, name = tempfile.mkstemp(prefix="command-", suffix=".txt")
        os.close(handle)
        self._said = Path(name)
        weakref.finalize(self, self._said.unlink)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        # A daemon, so that none outlives a test that failed.
        self._process = context.Process(
            target=_run, args=([*map(str, words)], name, cwd), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        self._process.join(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("agentgym", timeout or 0.0, self._said.read_text())
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        return self._said.read_text(encoding="utf-8"), None


def _run(words: list[str], said: str, cwd: Path | None) -> None:
    if cwd is not None:
        os.chdir(cwd)
    # Wide enough that no sentence is cut.
    os.environ["COLUMNS"] = "200"
    with open(said, "wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["agentgym", *words]
    from agentgym_env.cli import main

    main()


def finish(process: Command) -> tuple[int, str]:
    """Its status and what it said."""
    output, _ = process.communicate(timeout=400)
    return process.poll(), output
