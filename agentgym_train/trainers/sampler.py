"""The episodes of an optimizer step: task order, prefetching and oversampling."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import torch

from agentgym_env.trajectory import Trajectory
from agentgym_train.config.methods import RLConfig
from agentgym_train.rollout.actors import ActorFactory, draw_seed
from agentgym_train.rollout.loop import EpisodeSpec
from agentgym_train.rollout.runner import OversamplingPool, RolloutBar, RolloutRunner
from agentgym_train.trainers.batch import OverlongPenalty


class StepEpisodes(msgspec.Struct):
    """The episodes of a step on one process."""

    trajectories: list[Trajectory]
    """The episodes to train on, ordered by group."""
    discarded: list[Trajectory] = []
    """The episodes of groups that were replaced."""


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


class TaskContrast:
    """How often each task's recent groups were informative: had episodes that differ in return.

    A task's weight is (a + q) / (n + 1), for n groups of which a were informative, and at least
    1/20. q is the same ratio for the task's category, with q = 1 before any group: so a new task
    is judged by the others of its category. Older groups count less.
    """

    FILE = "tasks.json"
    _MEMORY = 0.8
    _CATEGORY_MEMORY = 0.98
    _LEAST = 0.05

    def __init__(self, category: Callable[[str], str | None]) -> None:
        self._category = category
        self._counts: dict[str, tuple[float, float]] = {}
        """Task or `category:NAME` -> decayed a and n."""

    def observe(self, task: str, informative: bool) -> None:
        """Count a group."""
        for name, memory in ((task, self._MEMORY), (self._of(task), self._CATEGORY_MEMORY)):
            found, groups = self._counts.get(name, (0.0, 0.0))
            self._counts[name] = (memory * found + informative, memory * groups + 1)

    def weight(self, task: str) -> float:
        """The relative frequency with which a task is drawn."""
        expected = self._rate(self._of(task), 1.0)
        return max(self._LEAST, self._rate(task, expected))

    def _rate(self, name: str, prior: float) -> float:
        found, groups = self._counts.get(name, (0.0, 0.0))
        return (found + prior) / (groups + 1)

    def _of(self, task: str) -> str:
        return f"category:{self._category(task)}"

    def draw(self, tasks: Sequence[str], wanted: int, seed: int) -> list[str]:
        """`wanted` different tasks by weight; if there are fewer tasks, they repeat.

        The draw is that of Efraimidis and Spirakis (doi:10.1016/j.ipl.2005.11.003): the tasks with
        the largest u^(1/weight), u uniform.
        """
        chance = random.Random(seed)
        keys = {task: chance.random() ** (1 / self.weight(task)) for task in tasks}
        order = sorted(keys, key=lambda task: -keys[task])
        return [order[i % len(order)] for i in range(wanted)]

    def save(self, folder: Path) -> None:
        """Write the counts to a checkpoint's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.FILE).write_bytes(msgspec.json.encode(self._counts))

    def load(self, folder: Path) -> None:
        """Load the counts from a checkpoint's folder."""
        kept = (folder / self.FILE).read_bytes()
        self._counts = msgspec.json.decode(kept, type=dict[str, tuple[float, float]])


class StepSampler:
    """Runs the groups of one process.

    Tasks and seeds depend only on the run's seed, the step, and with `task_sampling: contrast` on
    the earlier steps. Groups are informative if their episodes differ in return; the others have
    no advantage in most algorithms, and `resampling_ratio` replaces them.
    """

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
        self.overlong = OverlongPenalty(config.max_tokens, config.overlong_tokens)
        self.contrast: TaskContrast | None = None
        if config.task_sampling == "contrast":
            self.contrast = TaskContrast(rollout_runner.tasks.category)
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

    def play(self, step: int, horizon: int, version: int) -> StepEpisodes:
        """Run the episodes of this process with weights `version`."""
        tasks = self.tasks(step)
        starts = self.starts(tasks, step)
        if self.bar is not None:
            self.bar.begin(len(starts))
        try:
            played = self._played(starts, step, horizon, version)
            return self._replaced(played, set(tasks), step, horizon, version)
        finally:
            if self.bar is not None:
                self.bar.end()

    def is_informative(self, group: Sequence[Trajectory]) -> bool:
        """Whether the episodes of a group that are trained on differ in return."""
        trained = self._config.train_outcomes
        returns = {self.overlong.shaped_return(t) for t in group if t.outcome in trained}
        return len(returns) > 1

    def groups(self, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """The groups of episodes in their order."""
        size = self._config.num_generations
        return [list(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]

    def _replaced(
        self, played: list[Trajectory], tasks: set[str], step: int, horizon: int, version: int
    ) -> StepEpisodes:
        """The step's episodes with further groups in place of uninformative ones."""
        ratio = self._config.resampling_ratio
        if not ratio:
            return StepEpisodes(played)
        discarded: list[Trajectory] = []
        groups = self.groups(played)
        further = self._further_groups(math.ceil(ratio * len(groups)), step, without=tasks)
        while further:
            places = [i for i, group in enumerate(groups) if not self.is_informative(group)]
            if not places:
                break
            now, further = further[: len(places)], further[len(places) :]
            if self.bar is not None:
                self.bar.begin(len(now) * self._config.num_generations)
            starts = [start for group in now for start in group]
            for found in self.groups(self._played(starts, step, horizon, version)):
                if self.is_informative(found):
                    place = places.pop()
                    found, groups[place] = groups[place], found
                discarded += found
        return StepEpisodes([trajectory for group in groups for trajectory in group], discarded)

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
            [*groups, *self._further_groups(self._oversampled(len(groups)), step)],
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
        known = self._rollout_runner.tasks.split(self._config.split)
        wanted = self._config.prompts_per_step
        if self.contrast is None:
            tasks = tasks_of_step(known, self._config.seed, step, wanted)
        else:
            tasks = self.contrast.draw(
                known, wanted, draw_seed("contrast", self._config.seed, step)
            )
        local = self._config.prompts_per_step // self._processes
        own = tasks[self._rank * local : (self._rank + 1) * local]
        return [task for task in own for _ in range(self._config.num_generations)]

    def _oversampled(self, own: int) -> int:
        return math.ceil(own * self._config.oversampling_ratio)

    def _further_groups(
        self, count: int, step: int, without: AbstractSet[str] = frozenset()
    ) -> list[list[EpisodeSpec]]:
        """Additional groups of random tasks; `without` are left out unless there are no others."""
        size = self._config.num_generations
        seed = draw_seed("further", self._config.seed, step, self._rank)
        every = self._rollout_runner.tasks.split(self._config.split)
        tasks = [task for task in every if task not in without] or every
        if self.contrast is None:
            draw = random.Random(seed)
            drawn = [draw.choice(tasks) for _ in range(count)]
        else:
            drawn = self.contrast.draw(tasks, count, seed)
        first = self._config.episodes_per_step + self._rank * count * size
        return [
            [
                self._start(task, step, number)
                for number in range(first + i * size, first + (i + 1) * size)
            ]
            for i, task in enumerate(drawn)
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
