"""`agentgym bench`: how many steps a second an environment takes, and how long one waits."""

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

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.launch import local_server
from agentgym_env.registration import env_class, full_id

try:
    import httptools  # noqa: F401
    import uvloop
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"agentgym bench needs {error.name}: pip install 'agentgym-sdk[serve]'"
    ) from error

from agentgym_servers._load import (
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

CONCURRENCY = (1, 16, 64, 256)
_PERCENT = (50, 95, 99)


def bench(
    env_id: Annotated[str, typer.Argument(help="An environment's id, or module:Class.")],
    server: Annotated[
        str | None, typer.Option(help="Address of a running server. Default: a local one.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Sessions side by side, as a comma-separated list.")
    ] = ",".join(map(str, CONCURRENCY)),
    seconds: Annotated[float, typer.Option(help="Length of each measurement.")] = 3.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
) -> None:
    """Measure steps per second and latencies, single and in batches."""
    env_id = full_id(env_id)
    counts = _parse_counts(concurrency)
    if not seconds > 0:
        raise BadRequest(f"--seconds is above 0, got {seconds}")
    env = env_class(env_id)()
    plays = record_plays(env)
    rows = [_row("in-process", 1, in_process_load(env, plays, seconds))]
    console = Console()
    with console.status("") as status, contextlib.ExitStack() as stack:
        address = server or stack.enter_context(local_server(env_id)).address
        for mode in ("single", "batched"):
            for count in counts:
                status.update(f"{mode}, {count} sessions")
                rows.append(_row(mode, count, measure(address, mode, count, plays, seconds)))
    report = {"environment": env_id, "machine": machine(), "seconds": seconds, "rows": rows}
    _show(console, report)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")


def measure(address: str, mode: str, count: int, plays: Sequence[Play], seconds: float) -> Load:
    """One row: `count` sessions, `single` or `batched`."""

    async def run() -> Load:
        async with connected(address, count if mode == "single" else 1) as connections:
            names = await open_sessions(connections[0], count)
            if mode == "single":
                players = [SessionPlayer(c, n) for c, n in zip(connections, names, strict=True)]
                load = await single_load(players, plays, seconds)
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
    table = Table("road", "sessions", "steps/s", "of in-process", *(f"p{p} ms" for p in _PERCENT))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in report["rows"]:
        latencies = (f"{row[f'p{p}_ms']:.3f}" for p in _PERCENT)
        rate = row["steps_per_s"]
        table.add_row(
            row["mode"], str(row["sessions"]), f"{rate:,.0f}", f"{rate / base:.2f}", *latencies
        )
    console.print(f"{report['environment']} on {report['machine']}", highlight=False)
    console.print(table)
    console.print(
        "Random play of at most 20 turns, resets included. Latency is a call's: of one step, or "
        "of a batch of one step for each session.",
        highlight=False,
    )


def _parse_counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise BadRequest(f"--concurrency is a list such as 1,16,64, got {text!r}")
    return [int(word) for word in words]
