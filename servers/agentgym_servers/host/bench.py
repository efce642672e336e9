"""`agentgym bench`: steps per second of an environment, and the latency of one step."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentgym_env.cli.options import EnvId, TokenFile, check_ending, server_token
from agentgym_env.client.sync import EnvClient
from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.launch import local_server
from agentgym_env.printable import UncutTable
from agentgym_env.registry import env_class, full_id
from agentgym_env.remote import checked_card
from agentgym_env.server_token import NO_TOKEN, resolve_token
from agentgym_servers.host.load import (
    Load,
    Play,
    SessionPlayer,
    batched_load,
    close_sessions,
    connected,
    in_process_load,
    open_sessions,
    record_plays,
    single_load,
)

try:
    import uvloop
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"agentgym bench needs {error.name}: pip install 'agentgym-sdk[serve]'"
    ) from error

CONCURRENCY = (1, 16, 64, 256)

_PERCENT = (50, 95, 99)


def bench(
    env_id: EnvId,
    server: Annotated[
        str | None, typer.Option(help="Address of a running server. Default: a local server.")
    ] = None,
    token_file: TokenFile = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of concurrent sessions, separated by commas.")
    ] = ",".join(map(str, CONCURRENCY)),
    seconds: Annotated[float, typer.Option(help="Duration of each measurement, in seconds.")] = 3.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this JSON file.")
    ] = None,
) -> None:
    """Measure steps per second and latency of an environment.

    Compares the environment in this process, single requests and batches.
    """
    env_id = full_id(env_id)
    counts = _parse_counts(concurrency)
    if not seconds > 0:
        raise BadRequest(f"--seconds must be above 0, got {seconds}")
    if json_file is not None:
        check_ending("--json", json_file, ".json")
    token = server_token(token_file, has_server=server is not None)
    if server is not None:
        with EnvClient(server, token=token) as client:
            checked_card(client, env_id)
    token = resolve_token(NO_TOKEN if server is None else token)
    env = env_class(env_id)()
    plays = record_plays(env)
    rows = [_row("in-process", 1, in_process_load(env, plays, seconds))]
    console = Console()
    with console.status("") as status, contextlib.ExitStack() as stack:
        address = server or stack.enter_context(local_server(env_id)).address
        for mode in ("single", "batched"):
            for count in counts:
                status.update(f"{mode}, {count} sessions")
                load = measure(address, mode, count, plays, seconds, token)
                rows.append(_row(mode, count, load))
    report = {"environment": env_id, "machine": machine(), "seconds": seconds, "rows": rows}
    _show(console, report)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")


def measure(
    address: str,
    mode: str,
    count: int,
    plays: Sequence[Play],
    seconds: float,
    token: str | None = None,
) -> Load:
    """One row: `count` sessions, `single` or `batched`."""

    async def run() -> Load:
        async with connected(address, count if mode == "single" else 1, token) as connections:
            names = await open_sessions(connections[0], count)
            if mode == "single":
                actors = [SessionPlayer(c, n) for c, n in zip(connections, names, strict=True)]
                load = await single_load(actors, plays, seconds)
            else:
                load = await batched_load([(connections[0], names)], plays, seconds)
            await close_sessions(connections[0], names)
            return load

    return uvloop.run(run())


def machine() -> str:
    """What the figures were measured on."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )


def _row(mode: str, count: int, load: Load) -> dict[str, Any]:
    return {
        "mode": mode,
        "sessions": count,
        "steps_per_s": round(load.steps_per_s, 1),
        **{f"p{p}_ms": round(load.latency_ms(p), 4) for p in _PERCENT},
    }


def _show(console: Console, report: dict[str, Any]) -> None:
    base = report["rows"][0]["steps_per_s"]
    table = Table("mode", "sessions", "steps/s", "of in-process", *(f"p{p} ms" for p in _PERCENT))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in report["rows"]:
        latencies = (f"{row[f'p{p}_ms']:.3f}" for p in _PERCENT)
        rate = row["steps_per_s"]
        table.add_row(
            row["mode"], str(row["sessions"]), f"{rate:,.0f}", f"{rate / base:.2f}", *latencies
        )
    console.print(f"{report['environment']} on {report['machine']}", highlight=False)
    console.print(UncutTable(table))
    console.print(
        "Random play with at most 20 turns per episode; rates include resets. Latency is per "
        "call: one step, or a batch with one step of each session.",
        highlight=False,
    )


def _parse_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise BadRequest(f"--concurrency is a list such as 1,16,64, got {text!r}")
    return [int(word) for word in words]
