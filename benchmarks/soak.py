"""Thousands of live sessions on one TextCraft server, all of them stepping, for a minute.

    python benchmarks/soak.py

It fails if a step fails, if the server's memory still grows after the first ten seconds, or if a
session is left once the load has gone and their time to live has passed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
import urllib.request

import psutil
import uvloop

from agentgym_servers.host.bench import machine
from agentgym_servers.host.load import (
    Load,
    Play,
    batched_load,
    connected,
    open_sessions,
    record_plays,
)
from agentgym_servers.worlds.textcraft.env import TextCraft

BATCH = 64
SETTLED_S = 10.0
ALLOWED_GROWTH = 0.02
"""Of the resident memory, from its peak in the settled first part to the end."""


def main() -> None:
    """Run the load, then wait for the reaper."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ttl", type=float, default=5.0, help="seconds a session may stand idle")
    args = parser.parse_args()
    process, address = serve(args.ttl)
    try:
        load, memory = uvloop.run(soak(process.pid, address, args.sessions, args.seconds))
        live = metric(address, "agentgym_sessions")
        settled = max(mb for at, mb in memory if SETTLED_S <= at <= 2 * SETTLED_S)
        last = memory[-1][1]
        print(f"{machine()}; {args.sessions} sessions, {args.seconds:g} s")
        print(f"steps {load.steps:,}, {load.steps_per_s:,.0f} a second, no error")
        print(f"call latency p50 {load.latency_ms(50):.1f} ms, p99 {load.latency_ms(99):.1f} ms")
        print("resident MB at s:", ", ".join(f"{at:.0f}: {mb:.1f}" for at, mb in memory[::10]))
        print(f"peak MB from 10 to 20 s {settled:.1f}, at the end {last:.1f}")
        time.sleep(args.ttl + 3)
        left, reaped = metric(address, "agentgym_sessions"), metric(address, REAPED)
        print(f"sessions live under load {live}, left after the TTL {left}, reaped {reaped}")
    finally:
        process.terminate()
        process.wait()
    if live != args.sessions or left or reaped != args.sessions:
        sys.exit("sessions were lost, or are left")
    if last > settled * (1 + ALLOWED_GROWTH):
        sys.exit("memory still grows after the first ten seconds")


REAPED = "agentgym_sessions_reaped_total"


async def soak(
    pid: int, address: str, sessions: int, seconds: float
) -> tuple[Load, list[tuple[float, float]]]:
    """The load, and the server's resident megabytes over time."""
    plays: list[Play] = record_plays(TextCraft())
    async with connected(address, sessions // BATCH) as connections:
        names = await open_sessions(connections[0], sessions)
        batches = [
            (connection, names[i * BATCH : (i + 1) * BATCH])
            for i, connection in enumerate(connections)
        ]
        watching = asyncio.create_task(watch(pid, seconds))
        load = await batched_load(batches, plays, seconds)
        return load, await watching


async def watch(pid: int, seconds: float) -> list[tuple[float, float]]:
    """(seconds, megabytes) once a second."""
    server, began = psutil.Process(pid), time.monotonic()
    samples = []
    while (at := time.monotonic() - began) < seconds:
        samples.append((at, server.memory_info().rss / 2**20))
        await asyncio.sleep(1)
    return samples


def serve(ttl_s: float) -> tuple[subprocess.Popen[str], str]:
    """A server with a short time to live."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "agentgym_servers", "textcraft", "--port", "0",
            "--session-ttl", str(ttl_s),
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr or ():
        if found := re.search(r"serving \S+ on (http://\S+)", line):
            return process, found[1]
    sys.exit("the server did not start")


def metric(address: str, name: str) -> int:
    """One figure of the server's page."""
    with urllib.request.urlopen(address + "/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return int(re.search(rf"^{name} (\d+)", page, re.M)[1])


if __name__ == "__main__":
    main()
