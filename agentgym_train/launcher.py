"""`accelerate launch`, except that Ctrl-C is left to the processes that it starts.

Torch's launcher would answer it by ending them at once, and by a traceback. They stop after the
current step, with a checkpoint, as a run of one process does.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

from agentgym_env.errors import INTERRUPTED

_LEFT_TO_TORCH = "SIGTERM,SIGHUP,SIGQUIT"


class _Interrupt:
    """Passes Ctrl-C on to the processes, once for each time."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.came:
            self.came = True
            # That the processes end is what was asked for.
            logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        import psutil

        processes = psutil.Process().children()
        if not processes:  # none was started yet
            sys.exit(INTERRUPTED)
        for process in processes:
            # A process of our own group got it from the terminal; one may have ended just now.
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) != os.getpgrp():
                    process.send_signal(signal.SIGINT)


def main() -> None:
    """Run `accelerate launch` with the arguments of the command line."""
    interrupt = _Interrupt()
    signal.signal(signal.SIGINT, interrupt)
    # These take seconds, in which Ctrl-C may come.
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    arguments = launch_command_parser().parse_args()
    arguments.signals_to_handle = _LEFT_TO_TORCH  # torch's own option, which accelerate passes on
    try:
        launch_command(arguments)
    except (ChildFailedError, SignalException, subprocess.CalledProcessError):
        if not interrupt.came:
            raise
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
