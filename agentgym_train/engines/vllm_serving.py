"""A vLLM server that ends with the process that started it: `python -m` of this module.

Arguments are those of vLLM's own server. Its standard input is a pipe that the owner holds open.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_owner() -> None:
    """Wait until the owner closes the pipe, or dies; then end the whole process group."""
    # Not sys.stdin: a thread that waits in its buffer makes Python abort when the program ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    if os.getpid() != os.getpgrp():
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    # The console script asks for a distribution named vllm, which builds for a CPU are not.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
