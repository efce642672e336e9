"""The command `agentgym view`."""

from __future__ import annotations

import asyncio
import errno
import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web
from rich.console import Console

from agentgym_env.errors import BadRequest
from agentgym_env.trust import Trust
from agentgym_train.viewer.server import make_app


def view(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold runs.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8600,
    index: Annotated[
        Path | None, typer.Option(help="File of the index; it is made where there is none.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = False,
    trust: Trust = False,
) -> None:
    """Look at runs and trajectories in the browser, live while they go on."""
    console = Console(highlight=False)
    app = make_app(runs, index or _default_index(), host, trusted=trust)
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.print(
            f"[yellow]Everybody who reaches {host} can read these runs: there is no password.[/]"
        )
    try:
        asyncio.run(_serve(app, console, host, port, browser))
    except KeyboardInterrupt:
        console.print()


async def _serve(
    app: web.Application, console: Console, host: str, port: int, browser: bool
) -> None:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BadRequest(f"cannot listen at {host}:{port}: {error}") from error
            raise BadRequest(
                f"port {port} of {host} is taken; name another with --port, or 0 for a free one"
            ) from error
        taken = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken}"
        console.print(f"{address}   Ctrl-C ends it.", markup=False, soft_wrap=True)
        if browser:
            webbrowser.open(address)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _default_index() -> Path:
    """In the user's cache folder: runs may lie where nobody else can write."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "agentgym-sdk" / "view.sqlite"
