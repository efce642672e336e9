"""A process of worlds: answers the server over an inherited socket, one step at a time.

Run by `workers.WorldProcess` as `python -m agentgym_servers.host.world_process FD`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import sys
import threading
import time

import msgspec

from agentgym_env.causes import in_one_line
from agentgym_env.errors import AgentGymError, EnvironmentFault
from agentgym_env.launch import failure_report
from agentgym_servers.host.channel import Answer, Ask, answer, pack_frame, read_frame_from
from agentgym_servers.host.logs import configure_logs, event, where
from agentgym_servers.host.metrics import Figures
from agentgym_servers.host.sessions import reap_period_s
from agentgym_servers.host.settings import ServeSettings, session_table

logger = logging.getLogger(__name__)

_GRACE_S = 5.0


def main() -> None:
    """Serve until the server closes the connection."""
    with socket.socket(fileno=int(sys.argv[1])) as line:
        asked: queue.Queue[Ask | None] = queue.Queue()
        threading.Thread(target=_listen, args=(line, asked), daemon=True).start()
        first = asked.get()
        if first is not None:
            _serve(line, first, asked)


def _serve(line: socket.socket, first: Ask, asked: queue.Queue[Ask | None]) -> None:
    settings = msgspec.json.decode(first.body, type=ServeSettings)
    configure_logs(sys.stderr, settings.log_level, as_json=settings.log_json)
    try:
        with in_one_line(settings.entry_point, f"{settings.env_id} cannot be made"):
            table = session_table(settings, int(first.path))
    except AgentGymError as error:
        if isinstance(error, EnvironmentFault) and error.__cause__ is not None:
            event(logger, logging.ERROR, "world_not_made", where=where(error.__cause__))
        # The server may have ended, because another process failed.
        with contextlib.suppress(OSError):
            line.sendall(
                pack_frame(Answer(first.number, msgspec.json.encode(failure_report(error))))
            )
        sys.exit(1)
    line.sendall(pack_frame(Answer(first.number, b"")))
    period_s = reap_period_s(table.ttl_s)
    reap_at = time.monotonic() + period_s
    while True:
        if time.monotonic() >= reap_at:
            # One at a time: the end of a world may take long, and others wait meanwhile.
            reap_at = time.monotonic() + (0.0 if table.reap(1) else period_s)
        try:
            ask = asked.get(timeout=max(0.0, reap_at - time.monotonic()))
        except queue.Empty:
            continue
        if ask is None:
            table.shutdown()
            return
        line.sendall(answer(table, Figures(), ask))


def _listen(line: socket.socket, asked: queue.Queue[Ask | None]) -> None:
    """Read questions; at the end of them see to it that this process ends too."""
    # The main thread closes the line when it ends.
    with contextlib.suppress(OSError):
        while (content := read_frame_from(line)) is not None:
            asked.put(msgspec.msgpack.decode(content, type=Ask))
    asked.put(None)
    time.sleep(_GRACE_S)
    # A world that never returns holds the main thread; nobody is left to wait for it.
    os._exit(1)


if __name__ == "__main__":
    main()
