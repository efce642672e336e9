"""BabyAI's and SciWorld's step rates behind our host, next to the original's manner.

    python benchmarks/world_rates.py --json rates.json

One load generator plays the same recorded episodes against both servers, in one run, at 1, 16 and
64 sessions. It also tells how much memory SciWorld's JVMs take.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil
from fastapi_load import fastapi_server, measure_fastapi

from agentgym_env.launch import local_server
from agentgym_env.registry import env_class, full_id
from agentgym_servers.host.bench import machine, measure
from agentgym_servers.host.load import record_plays

COUNTS = (1, 16, 64)


def main() -> None:
    """Measure each world on both servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default="babyai,sciworld")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    rows = [row for world in args.worlds.split(",") for row in rates(world, args.seconds)]
    print(f"{machine()}; {args.seconds:g} s each")
    print(f"{'world':<10}{'sessions':>9}{'original manner':>17}{'ours, single':>14}{'x':>6}"
          f"{'ours, batched':>15}{'x':>6}{'JVMs':>6}{'MB each':>9}")  # fmt: skip
    for row in rows:
        base, single, batched = row["baseline"], row["single"], row["batched"]
        print(f"{row['world']:<10}{row['sessions']:>9}{base:>17,.0f}{single:>14,.0f}"
              f"{single / base:>6.1f}{batched:>15,.0f}{batched / base:>6.1f}"
              f"{row['jvms']:>6}{row['mb_each']:>9.0f}")  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


def rates(world: str, seconds: float) -> list[dict[str, float | str]]:
    """A row for each number of sessions."""
    env_id = full_id(world)
    env = env_class(env_id)()
    plays = record_plays(env)
    env.close()
    rows = []
    for count in COUNTS:
        with fastapi_server(world) as address:
            baseline = measure_fastapi(address, count, plays, seconds).steps_per_s
        with local_server(env_id) as ours:
            # JVMs start in the first episode here, and when a session is opened there.
            measure(ours.address, "batched", count, plays, 1.0)
            single = measure(ours.address, "single", count, plays, seconds).steps_per_s
            batched = measure(ours.address, "batched", count, plays, seconds).steps_per_s
            jvms, mb_each = simulators()
        row = {"world": world, "sessions": count, "baseline": baseline, "single": single,
               "batched": batched, "jvms": jvms, "mb_each": mb_each}  # fmt: skip
        print(row, flush=True)
        rows.append(row)
    return rows


def simulators() -> tuple[int, float]:
    """How many JVMs run below this process, and the megabytes that each adds (PSS)."""
    children = psutil.Process().children(recursive=True)
    taken = [child.memory_full_info().pss for child in children if child.name() == "java"]
    return len(taken), sum(taken) / 1e6 / max(1, len(taken))


if __name__ == "__main__":
    main()
