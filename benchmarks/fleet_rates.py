"""Steps per second of 1, 2 and 4 servers of a Ray fleet, next to the same servers started by hand.

    python benchmarks/fleet_rates.py

Both run on this machine at the same time, on its network address, which takes more than loopback,
and are loaded in turn, so that what else runs here hits both. One asynchronous client steps 64
sessions per server in batches. Starts a Ray cluster if none runs, and stops it again.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import requests

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_servers.fleet.directory import FleetDirectory

ENV = "agentgym/TextCraft-v0"
SESSIONS = 64
"""Sessions per server."""
TOKEN = "token-of-the-benchmark"
MAIN = ["-c", "from agentgym_env.cli import main; main()"]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.5)
    args = parser.parse_args()
    print("| servers | by hand, steps/s | fleet, steps/s | fleet / by hand, median of rounds |")
    print("|---|---:|---:|---:|")
    for count in args.servers:
        with fleet(count) as url:
            directory = FleetDirectory(url, "env")
            while len(directory.addresses()) < count:
                time.sleep(0.1)
            with by_hand(count, urlsplit(directory.addresses()[0]).hostname) as addresses:
                pairs = asyncio.run(measure(addresses, url, count, args.rounds, args.seconds))
        ratio = median(fleet / hand for hand, fleet in pairs)
        hand, ray = (median(values) for values in zip(*pairs, strict=True))
        print(f"| {count} | {hand:,.0f} | {ray:,.0f} | {ratio:.3f} |", flush=True)
    subprocess.run([str(Path(sys.executable).parent / "ray"), "stop"], capture_output=True)


async def measure(
    addresses: list[str], url: str, count: int, rounds: int, seconds: float
) -> list[tuple[float, float]]:
    """(by hand, fleet) of each round, in alternating order."""
    pairs = []
    hand_client = AsyncEnvClient(addresses, token=TOKEN)
    async with hand_client as hand, AsyncEnvClient(url) as fleet:
        clients = {"hand": hand, "fleet": fleet}
        opened = {name: await c.open_many(SESSIONS * count) for name, c in clients.items()}
        for sessions in opened.values():
            used = Counter(session.state.server.address for session in sessions)
            assert sorted(used.values()) == [SESSIONS] * count, used
        for number in range(rounds):
            rates = {}
            for name in ("hand", "fleet") if number % 2 else ("fleet", "hand"):
                rates[name] = await rate(clients[name], opened[name], seconds)
            pairs.append((rates["hand"], rates["fleet"]))
    return pairs


async def rate(client: AsyncEnvClient, sessions: list, seconds: float) -> float:
    """Steps per second of all sessions."""
    await client.reset_many([(session, 0, None, None) for session in sessions])
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        replies = await client.step_many([(session, "inventory") for session in sessions])
        assert not any(isinstance(reply, Exception) for reply in replies)
        steps += len(replies)
    return steps / passed


@contextmanager
def by_hand(count: int, host: str) -> Iterator[list[str]]:
    """Addresses of servers that this process starts."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(TOKEN)
        file.flush()
        options = ["--host", host, "--token-file", file.name]
        ports = [8790 + number for number in range(count)]
        started = [
            subprocess.Popen(
                [sys.executable, *MAIN, "serve", ENV, *options, "--port", str(port)],
                stderr=subprocess.DEVNULL,
            )
            for port in ports
        ]
        try:
            addresses = [f"http://{host}:{port}" for port in ports]
            for address in addresses:
                await_health(address)
            yield addresses
        finally:
            for program in started:
                program.terminate()
                program.wait()


@contextmanager
def fleet(count: int) -> Iterator[str]:
    """The address of a fleet of as many servers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.yaml"
        path.write_text(
            f"name: bench\nservers:\n  worlds: {{env: {ENV}, replicas: {count}, "
            "resources: {CPU: 0.1}}\n"
        )
        subprocess.run([sys.executable, *MAIN, "up", path], check=True, capture_output=True)
        try:
            yield "ray://bench"
        finally:
            subprocess.run(
                [sys.executable, *MAIN, "down", "bench"], check=True, capture_output=True
            )


def await_health(address: str) -> None:
    """Wait for a server."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if requests.get(f"{address}/health", timeout=1).ok:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    raise SystemExit(f"{address} did not start")


if __name__ == "__main__":
    main()
