"""Plays the episodes of the next step while the current one is trained on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from agentgym_train.training.sampler import StepEpisodes

Play = Callable[[], StepEpisodes]


class AsyncRollouts:
    """Rollouts that are one step off-policy: their weights are one update older.

    The episodes of a step start when those of the previous step are complete, with a copy of the
    weights at that moment. A checkpoint waits for the running episodes and contains them, because
    they cannot be sampled again after the weights have changed.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts-ahead")
        self._step = -1
        self._playing: Future[StepEpisodes] | None = None

    def begin(self, step: int, play: Play) -> None:
        """Start the episodes of `step` in the background."""
        self._step, self._playing = step, self._thread.submit(play)

    def take(self, step: int) -> StepEpisodes | None:
        """Wait for the episodes of `step`; None if they were not started."""
        playing, self._playing = self._playing, None
        if playing is None:
            return None
        played = playing.result()
        return played if step == self._step else None

    def save(self, folder: Path, rank: int) -> None:
        """Wait for the running episodes and write them to a checkpoint's folder."""
        if self._playing is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        kept = _Kept(self._step, self._playing.result())
        _file(folder, rank).write_bytes(msgspec.msgpack.encode(kept))

    def load(self, folder: Path, rank: int) -> None:
        """Load the episodes from a checkpoint's folder."""
        path = _file(folder, rank)
        if not path.is_file():
            return
        kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        self._step, self._playing = kept.step, Future()
        self._playing.set_result(kept.played)

    def close(self, stop: Callable[[], object]) -> None:
        """Cancel the running episodes; `stop` ends the rollouts."""
        playing, self._playing = self._playing, None
        while playing is not None and not playing.done():
            stop()
            wait([playing], timeout=0.1)
        self._thread.shutdown()


class _Kept(msgspec.Struct):
    step: int
    played: StepEpisodes


def _file(folder: Path, rank: int) -> Path:
    return folder / f"ahead-{rank}.msgpack"
