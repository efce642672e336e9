"""An isolated world that writes into its server's channel, or says too much: it alone is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import requests

from attacking import MIB
from hosting import Served

pytestmark = pytest.mark.slow
WORLD = """
import os, sys
import msgspec
from worlds import Guess

class Evil(Guess):
    def _step(self, action):
        channel = int(sys.argv[1])
        if action == "long":
            return "x" * 100_000_000, 0.0, False
        if action == "endless":
            os.write(channel, (2**32 - 1).to_bytes(4, "big") + bytes(100_000))
        if action == "no frame":
            os.write(channel, (3).to_bytes(4, "big") + b"xyz")
        if action == "no answer":
            for number in range(60):
                frame = msgspec.msgpack.encode([number, b"not json"])
                os.write(channel, len(frame).to_bytes(4, "big") + frame)
        return super()._step(action)
"""


@pytest.mark.parametrize("action", ["long", "endless", "no frame", "no answer"])
def test_an_isolated_world_that_says_what_cannot_be_read_loses_its_own_sessions(tmp_path, action):
    (tmp_path / "evil.py").write_text(WORLD)
    support = Path(__file__).parents[1] / "support"
    (tmp_path / "worlds.py").write_text((support / "worlds.py").read_text())
    server = Served(tmp_path, "evil:Evil", "--port", "0", "--isolate", "--workers", "2")
    try:
        url = f"{server.address()}/v1"

        def call(path: str, *items: dict) -> list[dict]:
            return requests.post(f"{url}/{path}", json=items, timeout=60).json()

        names = [opened["session"] for opened in call("sessions", {}, {})]
        call("reset", *({"session": name} for name in names))
        before = psutil.Process(server.process.pid).memory_info().rss
        (evil,) = call("step", {"session": names[0], "turn": 1, "action": action})
        (other,) = call("step", {"session": names[1], "turn": 1, "action": "0"})
        (opened,) = call("sessions", {})
        grown = psutil.Process(server.process.pid).memory_info().rss - before
    finally:
        server.stop()
    assert evil["error"]["code"] == "environment_error"
    assert "0" in other["observation"]
    assert opened["session"]
    assert grown < 60 * MIB
    sys.stdout.write(f"{action}: {evil['error']['message']}; +{grown / MIB:.0f} MiB\n")
