"""The one style of progress bar."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(console: Console) -> Progress:
    """A bar whose tasks carry a `figures` field, shown at the end of the line."""
    return Progress(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}"),
        console=console,
    )
