"""Progress bars of episodes, in a terminal or a notebook; knows nothing about who plays them."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agentgym_train.rollout.limits import ConcurrencyLimits

_REDRAWN_EVERY_S = 0.25


def progress_bar(console: Console) -> Progress:
    """A progress bar whose tasks have a `status` field, shown at the end of the line."""
    kind = NotebookProgress if console.is_jupyter else Progress
    return kind(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


def is_redrawn(console: Console) -> bool:
    """Whether a bar moves there; elsewhere, as in a file, it is written once, at its end."""
    return console.is_terminal or console.is_jupyter


class RolloutBar:
    """Progress bar of a step's episodes, visible during rollouts and where it is redrawn."""

    def __init__(self, progress: Progress, concurrency_limits: ConcurrencyLimits) -> None:
        self._progress = progress
        self._concurrency_limits = concurrency_limits
        self._line = progress.add_task("episodes", total=1, visible=False, status="")

    def begin(self, episodes: int, ended: int = 0) -> None:
        """Show the bar for this many episodes, some of which have ended."""
        self._progress.reset(
            self._line,
            total=episodes,
            completed=min(ended, episodes),
            visible=is_redrawn(self._progress.console),
            status=ConcurrencyText(self._concurrency_limits),
        )

    def grow(self, episodes: int) -> None:
        """Wait for this many more."""
        self._progress.update(
            self._line, total=(self._progress.tasks[self._line].total or 0) + episodes
        )

    def advance(self, _: object = None) -> None:
        """Count one finished episode; those that a later step waits for do not exceed the total."""
        if not self._progress.tasks[self._line].finished:
            self._progress.advance(self._line)

    def end(self) -> None:
        """Hide the bar."""
        self._progress.update(self._line, visible=False)


class ConcurrencyText:
    """Current throughput and queue lengths, computed whenever the line is drawn."""

    def __init__(self, concurrency_limits: ConcurrencyLimits) -> None:
        self._concurrency_limits = concurrency_limits
        self._turns, self._tokens = concurrency_limits.turns, concurrency_limits.tokens
        self._began = time.monotonic()

    def __str__(self) -> str:
        turns = self._concurrency_limits.turns - self._turns
        tokens = self._concurrency_limits.tokens - self._tokens
        seconds = max(time.monotonic() - self._began, 1e-3)
        policy, world = (
            self._concurrency_limits.policy.waiting,
            self._concurrency_limits.environment.waiting,
        )
        return (
            f"{turns} turns  {tokens / seconds:.0f} tok/s  waiting: policy {policy}, "
            f"environments {world}"
        )


class NotebookProgress(Progress):
    """A progress bar in the output of a notebook's cell. It is drawn in place, without widgets."""

    _display: Any = None
    _drawn = 0.0

    def start(self) -> None:
        """Show it, unless the console is quiet."""
        if not self.console.quiet:
            from IPython.display import display  # there is a notebook, so it is installed

            self._display = display(self, display_id=True)

    def stop(self) -> None:
        """Draw the last state."""
        self.refresh()

    def refresh(self) -> None:
        """Draw it again."""
        if self._display is not None:
            self._drawn = time.monotonic()
            self._display.update(self)

    def update(self, *args: Any, **values: Any) -> None:
        """Change a task; drawn at once if that was long ago."""
        super().update(*args, **values)
        self._refresh_at_times()

    def advance(self, *args: Any, **values: Any) -> None:
        """Count on; drawn at once if that was long ago."""
        super().advance(*args, **values)
        self._refresh_at_times()

    def _refresh_at_times(self) -> None:
        if time.monotonic() - self._drawn > _REDRAWN_EVERY_S:
            self.refresh()
