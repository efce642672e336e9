"""The episodes of an optimizer step: task order, prefetching and oversampling."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import torch

from agentgym_env.trajectory import Trajectory
from agentgym_train.config.methods import RLConfig
from agentgym_train.rollout.actors import ActorFactory, draw_seed
from agentgym_train.rollout.loop import EpisodeSpec
from agentgym_train.rollout.runner import OversamplingPool, RolloutBar, RolloutRunner

Play = Callable[[], list[Trajectory]]


class AsyncRollouts:
    """Rollouts that are one step off-policy: their weights are one update older.

    The episodes of a step start when those of the previous step are complete, with a copy of the
    weights at that moment. A checkpoint waits for the running episodes and contains them, because
    they cannot be sampled again after the weights have changed.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts-ahead")
        self._step = -1
        self._playing: Future[list[Trajectory]] | None = None

    def begin(self, step: int, play: Play) -> None:
        """Start the episodes of `step` in the background."""
        self._step, self._playing = step, self._thread.submit(play)

    def take(self, step: int) -> list[Trajectory] | None:
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
        kept = {"step": self._step, "trajectories": self._playing.result()}
        _file(folder, rank).write_bytes(msgspec.msgpack.encode(kept))

    def load(self, folder: Path, rank: int) -> None:
        """Load the episodes from a checkpoint's folder."""
        path = _file(folder, rank)
        if not path.is_file():
            return
        kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        self._step, self._playing = kept.step, Future()
        self._playing.set_result(kept.trajectories)

    def close(self, stop: Callable[[], object]) -> None:
        """Cancel the running episodes; `stop` ends the rollouts."""
        playing, self._playing = self._playing, None
        while playing is not None and not playing.done():
            stop()
            wait([playing], timeout=0.1)
        self._thread.shutdown()


class _Kept(msgspec.Struct):
    step: int
    trajectories: list[Trajectory]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"ahead-{rank}.msgpack"


def row_order(rows: int, wanted: int, seed: int, *, shuffle: bool = True) -> list[int]:
    """Indices of `wanted` rows over as many epochs as needed; each epoch has every row once.

    A step may span two epochs, so that all steps have the same number of rows.
    """
    order: list[int] = []
    epoch = 0
    while len(order) < wanted:
        numbers = list(range(rows))
        if shuffle:
            random.Random(f"rows/{seed}/{epoch}").shuffle(numbers)
        order += numbers
        epoch += 1
    return order[:wanted]


def tasks_of_step(tasks: Sequence[str], seed: int, number: int, wanted: int) -> list[str]:
    """The `wanted` tasks of rollout `number`, counted from 0.

    Each epoch shuffles the tasks, in the order of TRL's sampler in an uninterrupted run. The tasks
    that do not fill a step at the end of an epoch are skipped. If there are fewer tasks than
    `wanted`, they repeat within a step.
    """
    steps = max(1, len(tasks) // wanted)
    epoch, place = divmod(number, steps)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(epoch + 1):
        order = torch.randperm(len(tasks), generator=generator).tolist()
    return [tasks[order[i % len(tasks)]] for i in range(place * wanted, (place + 1) * wanted)]


class StepSampler:
    """Runs the groups of one process; tasks and seeds depend only on the run's seed and step."""

    def __init__(
        self,
        config: RLConfig,
        rollout_runner: RolloutRunner,
        new_actors: Callable[[], ActorFactory],
        *,
        instruction: str,
        rank: int,
        processes: int,
    ) -> None:
        self._config = config
        self._rollout_runner = rollout_runner
        self._new_actors = new_actors
        self._instruction = instruction
        self._rank = rank
        self._processes = processes
        self.tasks: Callable[[int], list[str]] = self._drawn
        """The tasks of a step's episodes on this process, ordered by group."""
        self._pool: OversamplingPool | None = None
        if config.oversampling_ratio:
            self._pool = OversamplingPool(
                rollout_runner.concurrency_limits,
                carries=config.unfinished_groups == "carry",
                max_staleness=config.max_staleness,
            )
        self.bar: RolloutBar | None = None
        """Progress bar of the step's episodes."""

    @property
    def dropped(self) -> int:
        """Episodes of the last step that were started and dropped before their end."""
        return self._pool.dropped if self._pool is not None else 0

    def play(self, step: int, horizon: int, version: int) -> list[Trajectory]:
        """Run the episodes of this process with weights `version`, ordered by group."""
        starts = self.starts(self.tasks(step), step)
        if self.bar is not None:
            self.bar.begin(len(starts))
        try:
            return self._played(starts, step, horizon, version)
        finally:
            if self.bar is not None:
                self.bar.end()

    def _played(
        self, starts: list[EpisodeSpec], step: int, horizon: int, version: int
    ) -> list[Trajectory]:
        on_episode = None if self.bar is None else self.bar.advance
        if self._pool is None:
            return self._rollout_runner.collect(
                self._new_actors(),
                starts,
                horizon,
                step=step,
                instruction=self._instruction,
                on_episode=on_episode,
            )
        size = self._config.num_generations
        groups = [starts[i : i + size] for i in range(0, len(starts), size)]
        return self._rollout_runner.collect_groups(
            self._pool,
            self._new_actors(),
            [*groups, *self._further_groups(len(groups), step)],
            horizon,
            wanted=len(groups),
            step=step,
            version=version,
            instruction=self._instruction,
            on_episode=on_episode,
        )

    def starts(self, tasks: Sequence[str], step: int) -> list[EpisodeSpec]:
        """The episode specs of the step's groups."""
        first = self._rank * len(tasks)
        return [self._start(task, step, number) for number, task in enumerate(tasks, first)]

    def _drawn(self, step: int) -> list[str]:
        tasks = tasks_of_step(
            self._rollout_runner.tasks.split(self._config.split),
            self._config.seed,
            step,
            self._config.prompts_per_step,
        )
        local = self._config.prompts_per_step // self._processes
        own = tasks[self._rank * local : (self._rank + 1) * local]
        return [task for task in own for _ in range(self._config.num_generations)]

    def _further_groups(self, own: int, step: int) -> list[list[EpisodeSpec]]:
        """Additional groups for oversampling, of random tasks."""
        count = math.ceil(own * self._config.oversampling_ratio)
        size = self._config.num_generations
        draw = random.Random(draw_seed("further", self._config.seed, step, self._rank))
        tasks = self._rollout_runner.tasks.split(self._config.split)
        first = self._config.episodes_per_step + self._rank * count * size
        return [
            [
                self._start(task, step, number)
                for number in range(first + i * size, first + (i + 1) * size)
            ]
            for i, task in enumerate(draw.choice(tasks) for _ in range(count))
        ]

    def _start(self, task: str, step: int, number: int) -> EpisodeSpec:
        return EpisodeSpec(
            task=task,
            seed=draw_seed("train", self._config.seed, step, task),
            sample=number,
            group=number // self._config.num_generations,
            split=self._config.split,
            category=self._rollout_runner.tasks.category(task),
        )
