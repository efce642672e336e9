"""How many steps a second TextCraft takes: in-process, and over HTTP one by one and in batches.

    python benchmarks/step_rate.py

All roads take the same steps of episodes of 50 turns in one run, so the ratios hold where
the absolute figures do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from agentgym_env.async_client import AsyncEnvClient
from agentgym_env.client import EnvClient
from agentgym_env.launch import local_server
from agentgym_servers.textcraft import TextCraft

ENV_ID = "agentgym/TextCraft-v0"


def main() -> None:
    """Measure every road and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--sessions", type=int, default=64, help="side by side")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    server = local_server(ENV_ID)
    roads: dict[str, Callable[[], int]] = {
        "in-process": lambda: in_process(args.seconds),
        "HTTP, one session": lambda: one_session(server.address, args.seconds),
        f"HTTP, {args.sessions} coroutines": lambda: coroutines(
            server.address, args.sessions, args.seconds
        ),
        f"HTTP, batches of {args.sessions}": lambda: batches(
            server.address, args.sessions, args.seconds
        ),
    }
    rates = {}
    for name, measure in roads.items():
        began = time.perf_counter()
        rates[name] = measure() / (time.perf_counter() - began)
    server.close()
    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}")
    print(f"{'road':<24}{'steps/s':>12}{'of in-process':>16}")
    for name, rate in rates.items():
        print(f"{name:<24}{rate:>12,.0f}{rate / rates['in-process']:>16.3f}")
    if args.json is not None:
        args.json.write_text(json.dumps(rates, indent=2) + "\n")


def in_process(seconds: float) -> int:
    """Steps of one environment in this process."""
    env, steps, seed = TextCraft(), 0, 0
    env.reset(seed=seed)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        steps += 1
        if env.step("inventory")[2] or steps % 50 == 0:
            seed += 1
            env.reset(seed=seed)
    return steps


def one_session(address: str, seconds: float) -> int:
    """Steps of one session, one call a step."""
    with EnvClient(address) as client:
        session, steps = client.open(), 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if steps % 50 == 0:
                session.reset(seed=steps)
            session.step("inventory")
            steps += 1
        session.close()
    return steps


def batches(address: str, sessions: int, seconds: float) -> int:
    """Steps of many sessions in lockstep, one call for all."""
    with EnvClient(address) as client:
        opened, steps = client.open_many(sessions), 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if steps % (50 * sessions) == 0:
                client.reset_many([(session, steps, None, None) for session in opened])
            client.step_many([(session, "inventory") for session in opened])
            steps += sessions
        client.close_many(opened)
    return steps


def coroutines(address: str, sessions: int, seconds: float) -> int:
    """Steps of many coroutines that know nothing of one another, as in a rollout."""

    async def play() -> int:
        client = AsyncEnvClient(address)
        until = time.perf_counter() + seconds

        async def one(number: int) -> int:
            session, steps = await client.open(), 0
            while time.perf_counter() < until:
                if steps % 50 == 0:
                    await session.reset(seed=1000 * number + steps)
                await session.step("inventory")
                steps += 1
            await session.close()
            return steps

        counts = await asyncio.gather(*(one(number) for number in range(sessions)))
        await client.close()
        return sum(counts)

    return asyncio.run(play())


if __name__ == "__main__":
    main()
