"""Starts more groups of episodes than a step needs, and takes those that complete first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym_env.trajectory import Trajectory
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.loop import OnEpisode, Rollouts

Group = Sequence[EpisodeSpec]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A group whose episodes are running."""

    version: int
    size: int
    task: asyncio.Task[list[Trajectory]]


class OversamplingPool:
    """Starts more groups than needed and returns the first complete ones.

    Groups are never split, so their baselines stay correct. Groups of short episodes complete
    first. With `carries=False` the other groups are dropped, which **biases training towards tasks
    with short episodes**: long episodes are trained on less, or never. With `carries=True` they
    pause while the weights change and resume in the next step; each token keeps the version of the
    weights that sampled it. Only groups whose first token is more than `max_staleness` updates old
    are dropped. Which groups complete first depends on timing, so two runs with one seed differ.
    Dropped episodes are counted and never become a reward of 0.
    """

    def __init__(
        self, concurrency_limits: ConcurrencyLimits, *, carries: bool, max_staleness: int
    ) -> None:
        self._concurrency_limits = concurrency_limits
        self._carries = carries
        self._max_staleness = max_staleness
        self._under_way: list[_UnderWay] = []
        self.dropped = 0
        """Episodes that were started and dropped in the last step."""

    async def collect(
        self,
        rollouts: Rollouts,
        groups: Sequence[Group],
        horizon: int,
        *,
        wanted: int,
        step: int,
        version: int,
        on_episode: OnEpisode | None = None,
    ) -> list[Trajectory]:
        """Run groups for `step` and return the episodes of the first `wanted` complete ones.

        As many groups run as are given; groups carried over from earlier steps replace the last
        ones. `version` is the version of the current weights.
        """
        self.dropped = 0
        await self._drop([g for g in self._under_way if step - g.version > self._max_staleness])
        for group in groups[: max(0, len(groups) - len(self._under_way))]:
            playing = _play(rollouts, group, horizon, step, on_episode)
            self._under_way.append(_UnderWay(version, len(group), asyncio.create_task(playing)))
        self._concurrency_limits.resume()
        try:
            complete = await self._first(wanted)
            played = [trajectory for group in complete for trajectory in group.task.result()]
        except BaseException:
            await self.close()
            raise
        if self._carries:
            await self._concurrency_limits.pause()
        else:
            await self._drop(self._under_way)
        return played

    async def close(self) -> None:
        """Cancel the running groups."""
        await self._drop(self._under_way)

    async def _first(self, wanted: int) -> list[_UnderWay]:
        """The first complete groups, in the order in which they started."""
        while True:
            done = [group for group in self._under_way if group.task.done()]
            if len(done) >= wanted:
                chosen = done[:wanted]
                self._under_way = [group for group in self._under_way if group not in chosen]
                return chosen
            for group in done:
                group.task.result()  # raises the error of a failed group
            waiting = [group.task for group in self._under_way if not group.task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def _drop(self, groups: Sequence[_UnderWay]) -> None:
        for group in groups:
            group.task.cancel()
        await asyncio.gather(*(group.task for group in groups), return_exceptions=True)
        self.dropped += sum(group.size for group in groups)
        self._under_way = [group for group in self._under_way if group not in groups]


async def _play(
    rollouts: Rollouts, group: Group, horizon: int, step: int, on_episode: OnEpisode | None
) -> list[Trajectory]:
    return await rollouts.collect(group, horizon, step=step, on_episode=on_episode)
