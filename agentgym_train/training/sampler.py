"""The episodes of an optimizer step: draws their tasks, and plays and replaces groups."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from agentgym_env.trajectory import Trajectory
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.worlds import World
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.horizon import Horizon
from agentgym_train.rollout.oversampling import OversamplingPool
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.progress import RolloutBar
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.batch import OverlongPenalty
from agentgym_train.training.task_order import TaskContrast, TaskEpochs, envs_of_step, tasks_of_step

_T = TypeVar("_T")


class StepEpisodes(msgspec.Struct):
    """The episodes of a step on one process."""

    trajectories: list[Trajectory]
    """The episodes to train on, ordered by group."""
    discarded: list[Trajectory] = []
    """The episodes of groups that were replaced."""


@dataclass(frozen=True, slots=True)
class StepWorld:
    """An environment that a run trains in."""

    settings: World
    runner: RolloutRunner
    policy: Policy
    """With the prompt for this environment."""
    horizon: Horizon

    @property
    def env(self) -> str:
        """The id of the environment."""
        return self.runner.env_id

    @property
    def tasks(self) -> Sequence[str]:
        """The tasks that are trained on."""
        return self.runner.tasks.split(self.settings.split)


@dataclass(frozen=True, slots=True)
class Draw:
    """A task of one of the environments."""

    env: int
    task: str


class StepSampler:
    """Runs the groups of one process, in all environments at once.

    Tasks and seeds depend only on the run's seed, the step, and with `sampler: contrast` on the
    earlier steps. Groups are informative if their episodes differ in return; the others have
    no advantage in most algorithms, and `resampling_ratio` replaces them.
    """

    def __init__(
        self, config: RLConfig, worlds: Sequence[StepWorld], *, rank: int, processes: int
    ) -> None:
        self._config = config
        self.worlds = list(worlds)
        self._rank = rank
        self._processes = processes
        self.tasks: Callable[[int], list[Draw]] = self._drawn
        """The tasks of a step's episodes on this process, ordered by group."""
        self.overlong = OverlongPenalty(config.max_tokens, config.overlong_tokens)
        self.contrast: TaskContrast | None = None
        self._draws = config.draws
        if self._draws.tasks or self._draws.envs:
            self.contrast = TaskContrast(self._category)
        self._used: list[list[int]] = [[0] * len(worlds)]
        """Groups of each environment before each step, if environments are drawn by weight."""
        self._epochs: dict[int, TaskEpochs] = {}
        self._pool: OversamplingPool | None = None
        if config.oversampling_ratio:
            self._pool = OversamplingPool(
                worlds[0].runner.concurrency_limits,
                carries=config.unfinished_groups == "carry",
                max_staleness=config.max_staleness,
            )
        self.bar: RolloutBar | None = None
        """Progress bar of the step's episodes."""

    @property
    def dropped(self) -> int:
        """Episodes of the last step that were started and dropped before their end."""
        return self._pool.dropped if self._pool is not None else 0

    def _category(self, env: int, task: str) -> str | None:
        return self.worlds[env].runner.tasks.category(task)

    def play(self, step: int, horizons: Sequence[int], version: int) -> StepEpisodes:
        """Run the episodes of this process with weights `version`.

        `horizons` are the maximum turns in each environment.
        """
        tasks = self.tasks(step)
        starts = self.starts(tasks, step)
        if self.bar is not None:
            self.bar.begin(len(starts))
        try:
            played = self._played(starts, step, horizons, version)
            return self._replaced(played, tasks, step, horizons, version)
        finally:
            if self.bar is not None:
                self.bar.end()

    def is_informative(self, group: Sequence[Trajectory]) -> bool:
        """Whether the episodes of a group that are trained on differ in return."""
        trained = self._config.train_outcomes
        returns = {self.overlong.shaped_return(t) for t in group if t.outcome in trained}
        return len(returns) > 1

    def groups(self, episodes: Sequence[_T]) -> list[list[_T]]:
        """The groups of episodes in their order."""
        size = self._config.num_generations
        return [list(episodes[i : i + size]) for i in range(0, len(episodes), size)]

    def _replaced(
        self,
        played: list[Trajectory],
        tasks: Sequence[Draw],
        step: int,
        horizons: Sequence[int],
        version: int,
    ) -> StepEpisodes:
        """The step's episodes with further groups in place of uninformative ones.

        A group is replaced by one of its own environment.
        """
        ratio = self._config.resampling_ratio
        if not ratio:
            return StepEpisodes(played)
        discarded: list[Trajectory] = []
        groups = self.groups(played)
        envs = [draw.env for draw in tasks[:: self._config.num_generations]]
        further = self._further_groups(math.ceil(ratio * len(groups)), step, without=tasks)
        while True:
            places = [i for i, group in enumerate(groups) if not self.is_informative(group)]
            now = self._fitting([envs[i] for i in places], further)
            if not now:
                break
            further = [group for group in further if group not in now]
            if self.bar is not None:
                self.bar.begin(len(now) * self._config.num_generations)
            starts = [start for group in now for start in group]
            played = self._played(starts, step, horizons, version)
            for group, found in zip(now, self.groups(played), strict=True):
                if self.is_informative(found):
                    place = next(i for i in reversed(places) if envs[i] == group[0].env)
                    places.remove(place)
                    found, groups[place] = groups[place], found
                discarded += found
        return StepEpisodes([trajectory for group in groups for trajectory in group], discarded)

    def _fitting(
        self, envs: Sequence[int], further: Sequence[list[EpisodeSpec]]
    ) -> list[list[EpisodeSpec]]:
        """The first further groups of these environments, one for each."""
        left = list(envs)
        found = []
        for group in further:
            if group[0].env in left:
                left.remove(group[0].env)
                found.append(group)
        return found

    def _played(
        self, starts: list[EpisodeSpec], step: int, horizons: Sequence[int], version: int
    ) -> list[Trajectory]:
        first = self.worlds[0]
        if self._pool is None:
            return first.runner.run(self._everywhere(starts, step, horizons))
        groups = self.groups(starts)
        return first.runner.collect_groups(
            self._pool,
            first.policy.actors(),
            [*groups, *self._further_groups(self._oversampled(len(groups)), step)],
            horizons[0],
            wanted=len(groups),
            step=step,
            version=version,
            instruction=first.policy.instruction,
            on_episode=None if self.bar is None else self.bar.advance,
        )

    async def _everywhere(
        self, starts: Sequence[EpisodeSpec], step: int, horizons: Sequence[int]
    ) -> list[Trajectory]:
        """Play all environments at once; trajectories are in the order of `starts`."""
        places = [
            [place for place, start in enumerate(starts) if start.env == env]
            for env in range(len(self.worlds))
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    world.runner.collecting(
                        world.policy.actors(),
                        [starts[place] for place in own],
                        horizon,
                        step=step,
                        instruction=world.policy.instruction,
                        on_episode=None if self.bar is None else self.bar.advance,
                    )
                )
                for world, own, horizon in zip(self.worlds, places, horizons, strict=True)
            ]
        found = {
            place: trajectory
            for own, task in zip(places, tasks, strict=True)
            for place, trajectory in zip(own, task.result(), strict=True)
        }
        return [found[place] for place in range(len(starts))]

    def starts(self, tasks: Sequence[Draw], step: int) -> list[EpisodeSpec]:
        """The episode specs of the step's groups."""
        first = self._rank * len(tasks)
        return [self._start(draw, step, number) for number, draw in enumerate(tasks, first)]

    def _drawn(self, step: int) -> list[Draw]:
        tasks = self._drawn_everywhere(step)
        local = len(tasks) // self._processes
        own = tasks[self._rank * local : (self._rank + 1) * local]
        return [draw for draw in own for _ in range(self._config.num_generations)]

    def _drawn_everywhere(self, step: int) -> list[Draw]:
        """The tasks of the step's groups on all processes."""
        wanted = self._config.prompts_per_step
        envs = self._envs(step, wanted)
        counts = [envs.count(env) for env in range(len(self.worlds))]
        of_env = [iter(self._tasks_of(env, step, count)) for env, count in enumerate(counts)]
        return [Draw(env, next(of_env[env])) for env in envs]

    def _envs(self, step: int, wanted: int, kind: str = "envs") -> list[int]:
        """The environments of a step's groups."""
        weights = [world.settings.weight for world in self.worlds]
        if self._draws.envs:
            assert self.contrast is not None
            weights = [w * self.contrast.env_weight(env) for env, w in enumerate(weights)]
        return envs_of_step(weights, wanted, draw_seed(kind, self._config.seed, step))

    def _tasks_of(self, env: int, step: int, count: int) -> list[str]:
        """`count` tasks of an environment for a step."""
        config, known = self._config, self.worlds[env].tasks
        if self._draws.tasks:
            assert self.contrast is not None
            parts = ("contrast", config.seed, step, *([env] if env else []))
            return self.contrast.draw(env, known, count, draw_seed(*parts))
        if len(self.worlds) == 1:
            return tasks_of_step(known, config.seed, step, count)
        if self._draws.envs:
            # How many were drawn before depends on what happened, so there are no epochs.
            order = list(known)
            random.Random(draw_seed("tasks", config.seed, step, env)).shuffle(order)
            return [order[i % len(order)] for i in range(count)]
        if env not in self._epochs:
            seed = draw_seed("tasks", config.seed, env)
            self._epochs[env] = TaskEpochs(known, config.prompts_per_step, seed)
        return self._epochs[env].take(self._before(step)[env], count)

    def _before(self, step: int) -> list[int]:
        """Groups of each environment in all steps before this one."""
        while len(self._used) <= step:
            envs = self._envs(len(self._used) - 1, self._config.prompts_per_step)
            last = self._used[-1]
            self._used.append([n + envs.count(env) for env, n in enumerate(last)])
        return self._used[step]

    def _oversampled(self, own: int) -> int:
        return math.ceil(own * self._config.oversampling_ratio)

    def _further_groups(
        self, count: int, step: int, without: Sequence[Draw] = ()
    ) -> list[list[EpisodeSpec]]:
        """Additional groups of this process, of random tasks, each task once if there are enough.

        `without`, and the tasks of the step on other processes, are left out unless there are no
        others.
        """
        size = self._config.num_generations
        known = {*without, *(self._drawn_everywhere(step) if without else ())}
        envs = self._envs(step, count * self._processes, "further")
        of_env = [
            iter(self._further_tasks(env, step, envs.count(env), known))
            for env in range(len(self.worlds))
        ]
        draws = [Draw(env, next(of_env[env])) for env in envs]
        draws = draws[self._rank * count : (self._rank + 1) * count]
        first = self._config.episodes_per_step + self._rank * count * size
        return [
            [
                self._start(draw, step, number)
                for number in range(first + i * size, first + (i + 1) * size)
            ]
            for i, draw in enumerate(draws)
        ]

    def _further_tasks(
        self, env: int, step: int, count: int, without: AbstractSet[Draw]
    ) -> list[str]:
        parts = ("further", self._config.seed, step, *([env] if env else []))
        seed, every = draw_seed(*parts), self.worlds[env].tasks
        tasks = [task for task in every if Draw(env, task) not in without] or list(every)
        if self._draws.tasks:
            assert self.contrast is not None
            return self.contrast.draw(env, tasks, count, seed)
        random.Random(seed).shuffle(tasks)
        return [tasks[i % len(tasks)] for i in range(count)]

    def _start(self, draw: Draw, step: int, number: int) -> EpisodeSpec:
        return EpisodeSpec(
            task=draw.task,
            seed=draw_seed("train", self._config.seed, step, draw.task),
            sample=number,
            group=number // self._config.num_generations,
            split=self.worlds[draw.env].settings.split,
            category=self._category(draw.env, draw.task),
            env=draw.env,
        )
