"""How soon SciWorld's first steps come from a server that was just started, and what they take.

    python benchmarks/sciworld_start.py --sessions 16

Sessions with JVMs of their own (AGENTGYM_SCIWORLD_PER_JVM=1) and sessions that share them take
turns, in the order A B B A, each on a server of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

from world_rates import simulators

from agentgym_env.client.sync import EnvClient
from agentgym_env.launch import local_server
from agentgym_servers.host.bench import machine

TASKS = ("boil", "melt", "find-animal", "lifespan-shortest-lived", "power-component", "find-plant",
         "chemistry-mix", "grow-plant")  # fmt: skip


def main() -> None:
    """Measure both kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--per-jvm", type=int, default=8, help="sessions that share a JVM")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    shown = {1: "a JVM each", args.per_jvm: f"{args.per_jvm} per JVM"}
    found: dict[int, list[dict[str, float]]] = {per_jvm: [] for per_jvm in shown}
    for number in range(args.rounds):
        for per_jvm in list(shown)[:: 1 if number % 2 == 0 else -1]:
            row = measured(per_jvm, args.sessions)
            print(shown[per_jvm], {key: round(value, 2) for key, value in row.items()}, flush=True)
            found[per_jvm].append(row)
    print(f"{machine()}; {args.sessions} sessions; medians of {args.rounds}")
    for per_jvm, rows in found.items():
        medians = {key: round(statistics.median(row[key] for row in rows), 2) for key in rows[0]}
        print(shown[per_jvm], medians)
    if args.json is not None:
        rows = {shown[per_jvm]: rows for per_jvm, rows in found.items()}
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


def measured(per_jvm: int, count: int) -> dict[str, float]:
    """Seconds until all sessions have taken a step; steps per second after that; memory."""
    os.environ["AGENTGYM_SCIWORLD_PER_JVM"] = str(per_jvm)
    with local_server("agentgym/SciWorld-v0") as server, EnvClient(server.address) as client:
        began = time.monotonic()
        sessions = client.open_many(count)
        starts = [(s, i, f"{TASKS[i % len(TASKS)]}/0", None) for i, s in enumerate(sessions)]
        client.reset_many(starts)
        client.step_many([(session, "look around") for session in sessions])
        first = time.monotonic() - began
        rates = []
        for actions in (["inventory", "wait1", "look around"] * 5, ["wait1", "look around"] * 20):
            began = time.monotonic()
            for action in actions:
                client.step_many([(session, action) for session in sessions])
            rates.append(len(actions) * count / (time.monotonic() - began))
        jvms, mb_each = simulators()
    return {
        "first_step_s": first,
        "steps_per_s": rates[0],
        "later_steps_per_s": rates[1],
        "jvms": jvms,
        "mb": jvms * mb_each,
    }


if __name__ == "__main__":
    main()
