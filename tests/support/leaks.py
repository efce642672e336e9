"""Tells where a socket was made that nobody closed; the warning itself names its address only."""

from __future__ import annotations

import socket
import sys
import traceback
from typing import Any

_FRAMES = 12


def trace_sockets() -> None:
    """From now on an unclosed socket prints the stack of its creation, which pytest reports."""
    made: dict[int, traceback.StackSummary] = {}
    make, warn = socket.socket.__init__, socket.SocketType.__del__  # type: ignore[attr-defined]

    def init(self: socket.socket, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        frames = traceback.walk_stack(sys._getframe(1))
        made[id(self)] = traceback.StackSummary.extract(frames, limit=_FRAMES, lookup_lines=False)

    def finalize(self: socket.socket) -> None:
        stack = made.pop(id(self), None)
        if stack is not None and self.fileno() >= 0:
            sys.stderr.write(f"unclosed {self!r}, made at\n{''.join(stack.format())}")
        warn(self)

    socket.socket.__init__ = init  # type: ignore[method-assign]
    socket.socket.__del__ = finalize  # type: ignore[attr-defined]
