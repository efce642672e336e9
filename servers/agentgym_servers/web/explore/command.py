"""`agentgym sites`: the embedded web sites in the user's own browser, with a task to do on them."""

from __future__ import annotations

import threading
import webbrowser
from typing import Annotated

import typer
from rich.console import Console


def sites(
    task: Annotated[
        str | None,
        typer.Option(help="Task to start with, such as `shopping/7101/0`. Default: the first one."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the page; the sites take the seven ports after it. 0 selects free ports.",
        ),
    ] = 8700,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Explore the embedded web sites in the browser.

    You are logged in, the task's goal is next to the page, and a button checks your answer.
    """
    from agentgym_servers.web.explore.panel import open_panel  # needs the extra `web`

    console = Console(highlight=False)
    with open_panel(task, port) as (explorer, address):
        console.print(f"{address}   Press Ctrl-C to stop.", markup=False, soft_wrap=True)
        console.print(
            f"Task {explorer.task_id}: {explorer.task.intent}", markup=False, soft_wrap=True
        )
        try:
            if browser and not webbrowser.open(address):
                console.print("No browser was found; open the address in one.")
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print()
