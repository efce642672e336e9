"""`agentgym view`: serves run folders on a port."""

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

from agentgym_env.errors import ConfigError
from agentgym_env.trust import Trust
from agentgym_viewer.server import make_app


def view(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")
    ] = 8600,
    index: Annotated[
        Path | None,
        typer.Option(
            help="File of the index that makes the pages fast; created if it does not exist."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = False,
    trust: Trust = False,
) -> None:
    """View runs and trajectories in the browser.

    The pages update while a run is being written.
    """
    console = Console(highlight=False)
    app = make_app(runs, index or _default_index(), host, trusted=trust)
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.print(
            f"[yellow]There is no password: anyone who can reach {host} can read these runs.[/]"
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
                raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
            raise ConfigError(
                f"port {port} of {host} is in use; choose another with --port, or 0 for a free one"
            ) from error
        taken = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken}"
        console.print(f"{address}   Press Ctrl-C to stop.", markup=False, soft_wrap=True)
        if browser:
            webbrowser.open(address)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _default_index() -> Path:
    """The index in the user's cache folder: run folders may be read-only."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "agentgym-sdk" / "view.sqlite"
