"""Which ASGI stack carries the host best: a framework, bare ASGI, another server.

    pip install starlette granian
    python benchmarks/asgi_stacks.py

All serve the same host and world; the load steps with `inventory` alone, so that what is carried
weighs most. `starlette_app` and `bare_app` are what the servers import.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from agentgym_servers.host.app import make_app
from agentgym_servers.host.bench import machine, measure
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.load import Play, batched_load, connected, open_sessions
from agentgym_servers.host.sessions import SessionTable
from agentgym_servers.worlds.textcraft.env import TextCraft

PORT = 8351
PLAYS = [Play(seed, "acacia planks", ("inventory",) * 1000) for seed in range(64)]


def bare_app():
    """Our own application."""
    return make_app(Host(SessionTable(TextCraft, env_id="agentgym/TextCraft-v0")))


def starlette_app():
    """The same host behind a framework's request and response objects."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount

    host = Host(SessionTable(TextCraft, env_id="agentgym/TextCraft-v0"))

    async def endpoint(scope, receive, send):
        request = Request(scope, receive)
        status, content_type, content = host.handle(
            request.method,
            request.url.path,
            body=await request.body(),
            content_type=request.headers.get("content-type", ""),
        )
        await Response(content, status, media_type=content_type)(scope, receive, send)

    return Starlette(routes=[Mount("/", app=endpoint)])


HERE = str(Path(__file__).parent)
UVICORN = ["uvicorn", "--app-dir", HERE, "--factory", "--log-level", "warning", "--port"]
GRANIAN = [
    "granian", "--interface", "asgi", "--working-dir", HERE, "--factory", "--no-ws",
    "--loop", "uvloop", "--log-level", "error", "--port",
]  # fmt: skip
STACKS = {
    "Starlette on uvicorn": [*UVICORN, str(PORT), "asgi_stacks:starlette_app"],
    "bare ASGI on uvicorn": [*UVICORN, str(PORT + 1), "asgi_stacks:bare_app"],
    "bare ASGI on granian": [*GRANIAN, str(PORT + 2), "asgi_stacks:bare_app"],
}


def main() -> None:
    """Measure every stack in turn, round after round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    servers = [subprocess.Popen([sys.executable, "-m", *words]) for words in STACKS.values()]
    try:
        addresses = [f"http://127.0.0.1:{PORT + i}" for i in range(len(STACKS))]
        for address in addresses:
            wait_for(address)
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(args.rounds):
            for name, address in zip(STACKS, addresses, strict=True):
                for mode in ("single", "batched"):
                    load = measure(address, mode, 64, PLAYS, args.seconds)
                    rates.setdefault((name, mode), []).append(load.steps_per_s)
                load = uvloop.run(overlapped(address, args.seconds))
                rates.setdefault((name, "4 in flight"), []).append(load.steps_per_s)
    finally:
        for server in servers:
            server.terminate()
    modes = ("single", "batched", "4 in flight")
    print(f"{machine()}; median of {args.rounds} rounds of {args.seconds:g} s, 64 sessions")
    print(f"{'stack':<24}" + "".join(f"{mode:>14}" for mode in modes))
    for name in STACKS:
        found = [statistics.median(rates[name, mode]) for mode in modes]
        print(f"{name:<24}" + "".join(f"{rate:>14,.0f}" for rate in found))


async def overlapped(address: str, seconds: float):
    """Four batches on their way at once."""
    async with connected(address, 4) as connections:
        batches = [(c, await open_sessions(c, 64)) for c in connections]
        return await batched_load(batches, PLAYS, seconds)


def wait_for(address: str) -> None:
    """Until a server answers."""

    async def knock() -> None:
        async with connected(address, 1):
            pass

    for _ in range(100):
        try:
            return uvloop.run(knock())
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{address} does not answer; are starlette and granian installed?")


if __name__ == "__main__":
    main()
