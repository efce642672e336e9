"""An environment that hangs, dies and forks on demand; a server's processes must survive it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from agentgym_env import TaskSet, TextEnv


class Rogue(TextEnv):
    """Its actions harm the process that it runs in. Each answers with its process's number."""

    instruction = "Do harm."
    tasks = TaskSet({"train": ["a"]})
    step_timeout_s = 20.0

    def _reset(self, task: str) -> str:
        return str(os.getpid())

    def _step(self, action: str) -> tuple[str, float, bool]:
        word, _, seconds = action.partition(" ")
        if word == "hold":  # the interpreter, by a C call that would take years
            re.match(r"(a+)+$", "a" * 60 + "b")
        if word == "sleep":
            time.sleep(float(seconds))
        if word == "die":
            os._exit(3)
        if word == "swallow":
            self._swallow()
        if word == "fork":
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            return str(child), 0.0, False
        if word == "spawn":
            code = "import time; time.sleep(600)"
            return str(subprocess.Popen([sys.executable, "-c", code]).pid), 0.0, False
        return str(os.getpid()), 0.0, False

    def _swallow(self) -> None:
        while True:
            try:
                while True:
                    time.sleep(0.1)
            except BaseException:
                continue
