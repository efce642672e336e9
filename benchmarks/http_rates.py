"""TextCraft's step rate: in-process, behind FastAPI, and behind our host, one by one and batched.

    python benchmarks/http_rates.py --json rates.json

One load generator drives every server with the same recorded episodes in one run, round after
round, so the ratios hold where the absolute figures do not. The load runs on one core and the
server on another.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import uvloop
from fastapi_load import fastapi_server, measure_fastapi

from agentgym_env.launch import local_server
from agentgym_servers.host.bench import machine, measure
from agentgym_servers.host.load import (
    MAX_TURNS,
    Load,
    Play,
    batched_load,
    connected,
    in_process_load,
    open_sessions,
    record_plays,
)
from agentgym_servers.worlds.textcraft.env import TextCraft

ENV_ID = "agentgym/TextCraft-v0"
IN_PROCESS = "in-process, one core"
BASELINE = "FastAPI, sync handlers, 64 sessions"
SINGLE = "our host, 64 sessions, one a call"
BATCHED = "our host, batches of 64"
OVERLAPPED = "our host, batches of 64, 4 in flight"


def main() -> None:
    """Measure every road several times and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of all roads, one after another")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    # Whole episodes of 20 turns: the sessions of a batch then start and end together.
    plays = [play for play in record_plays(TextCraft()) if len(play.actions) == MAX_TURNS]
    with fastapi_server("textcraft") as fastapi, local_server(ENV_ID) as ours:
        roads: dict[str, Callable[[], Load]] = {
            IN_PROCESS: lambda: in_process_load(TextCraft(), plays, args.seconds),
            BASELINE: lambda: measure_fastapi(fastapi, 64, plays, args.seconds),
            SINGLE: lambda: measure(ours.address, "single", 64, plays, args.seconds),
            BATCHED: lambda: measure(ours.address, "batched", 64, plays, args.seconds),
            OVERLAPPED: lambda: measure_overlapped(ours.address, 64, 4, plays, args.seconds),
        }
        rounds = [
            {name: road().steps_per_s for name, road in roads.items()} for _ in range(args.rounds)
        ]
    print(f"{machine()}; median of {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'road':<38}{'steps/s':>10}{'x FastAPI':>11}{'of in-process':>15}")
    for name in roads:
        rate = statistics.median(r[name] for r in rounds)
        to_baseline = statistics.median(r[name] / r[BASELINE] for r in rounds)
        to_in_process = statistics.median(r[name] / r[IN_PROCESS] for r in rounds)
        print(f"{name:<38}{rate:>10,.0f}{to_baseline:>11.1f}{to_in_process:>15.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine(), "rounds": rounds}, indent=2) + "\n")


def measure_overlapped(
    address: str, size: int, in_flight: int, plays: list[Play], seconds: float
) -> Load:
    """Several batches on their way at once: the server need not wait for the load."""

    async def run() -> Load:
        async with connected(address, in_flight) as connections:
            batches = [(c, await open_sessions(c, size)) for c in connections]
            return await batched_load(batches, plays, seconds)

    return uvloop.run(run())


if __name__ == "__main__":
    main()
