"""Episodes for the terminal: one that failed before training, and its task solved afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_env.printable import one_line
from agentgym_env.trajectory import Trajectory

_WIDTH: Final = 78
_SHOWN: Final = 8
"""Turns that are shown of an episode; of a longer one, the first and the last."""


def failed_episode(before: Sequence[Trajectory]) -> Trajectory | None:
    """The failed episode with the fewest turns, and of these the first; None if none failed."""
    return min(_failed(before), key=lambda episode: len(episode.turns), default=None)


def solved_again(
    before: Sequence[Trajectory], after: Sequence[Trajectory]
) -> tuple[Trajectory, Trajectory] | None:
    """(a failed episode, the successful one from the same start), or None if there is none.

    The failed one is that of `failed_episode` if it was solved.
    """
    solved = {(episode.task, episode.seed): episode for episode in after if episode.success}
    failed = [episode for episode in _failed(before) if (episode.task, episode.seed) in solved]
    if (first := failed_episode(failed)) is None:
        return None
    shown = failed_episode(before)
    chosen = shown if shown is not None and (shown.task, shown.seed) in solved else first
    return chosen, solved[chosen.task, chosen.seed]


def episode_lines(episode: Trajectory) -> list[str]:
    """One line per turn, the last line of the observation and the action, and the outcome.

    Texts are cut to the width of a terminal, and turns in the middle of a long episode left out.
    """
    seen = [episode.observation, *(turn.observation for turn in episode.turns)]
    lines = [
        f"  {_last_line(text, _WIDTH // 2):<{_WIDTH // 2}} > {one_line(turn.action, 32)}"
        for text, turn in zip(seen, episode.turns, strict=False)
    ]
    if len(lines) > _SHOWN:
        left = len(lines) - _SHOWN + 1
        lines = [*lines[: _SHOWN // 2], f"  ... {left} turns", *lines[-_SHOWN // 2 + 1 :]]
    return [*lines, f"  {_last_line(seen[-1], _WIDTH)}"]


def _failed(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    return [e for e in episodes if not e.success and e.turns and e.error is None]


def _last_line(text: str, width: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1], width) if lines else ""
