"""RolloutBuffer: fills the batches of a run with groups of episodes."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Trajectory
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.gates import AdmissionGate
from agentgym_train.rollout.groups import Group
from agentgym_train.rollout.progress import RolloutBar

if TYPE_CHECKING:
    from agentgym_train.rollout.worlds import StepWorld

_FILE: Final = "groups-{}.msgpack"


class GroupBatch(msgspec.Struct):
    """The groups of a step on one process, in the order of their draws."""

    trained: list[Group]
    rejected: list[Group] = []
    """Groups that others were played for."""
    dropped: list[Group] = []
    """Groups that grew too old, without their episodes."""


class RolloutBuffer:
    """Plays the groups of one process, and gives each step those that it trains on.

    With `max_age` 0, the groups of a step are played when it asks for them, and everything follows
    from the seed. Above 0, groups also run while the trainer computes: never more than the steps
    can use whose weights will be at most `max_age` updates newer. A step then takes the groups that
    have ended, and those whose oldest token is older are dropped, whole, and counted. Which groups
    these are depends on time, and long episodes are dropped more often.

    A group that the gate rejects is replaced by one of another task in the same environment, as
    long as the step's budget lasts. After that the first ones that were rejected fill the step.
    """

    def __init__(
        self,
        worlds: Sequence[StepWorld],
        gate: AdmissionGate,
        *,
        wanted: int,
        further: int,
        group_size: int,
        max_age: int,
        specs: Callable[[Group], list[EpisodeSpec]],
        returns: Callable[[Sequence[Trajectory]], list[float]],
    ) -> None:
        """A step has `wanted` groups of `group_size`, and plays at most `further` for others.

        `specs` are the episodes of a group, and `returns` gives those that are trained on.
        """
        self._worlds = worlds
        self._gate = gate
        self._wanted, self._further, self._size = wanted, further, group_size
        self._max_age = max_age
        self.specs, self._returns = specs, returns
        self._queue: deque[Group] = deque()
        """Drawn, and not begun."""
        self._running: dict[asyncio.Task[None], Group] = {}
        self._left: dict[Group, int] = {}
        """Episodes of each group that runs which have not ended."""
        self._admitted: list[Group] = []
        self._rejected: list[Group] = []
        self._unreplaced: Counter[int] = Counter()
        """How many of the rejected groups no other is played for, by environment."""
        self._replaceable = 0
        """Groups that may be replaced until the next step."""
        self._dropped: list[Group] = []
        self._ending: set[asyncio.Task[None]] = set()
        """Groups that were dropped, and clean up."""
        self._version = self._next = 0
        """The version of the weights, and the step that is filled next."""
        self._last = 0
        self._horizons: Sequence[int] = ()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self.bar: RolloutBar | None = None
        """Progress bar of the step's episodes."""

    async def begin(self, step: int, steps: int) -> int:
        """Begin step `step` of `steps`; returns how many draws `take` needs.

        The weights have that version by now. Groups that are too old are dropped.
        """
        self._version = self._next = step
        self._last = steps - 1
        self._replaceable = self._further
        for task, group in list(self._running.items()):
            if task.done():  # and its callback is still to come
                self._ended(task)
            elif step - group.version > self._max_age:
                self._drop(task)
        aged = [group for group in self._admitted if not self._is_new(group)]
        self._admitted = [group for group in self._admitted if group not in aged]
        self._dropped += aged
        self._unreplaced &= Counter(group.env for group in self._rejected if self._is_new(group))
        held = len(self._queue) + len(self._running) + self._ready
        return max(0, self._room + self._further - held)

    async def take(self, draws: Sequence[Group], horizons: Sequence[int]) -> GroupBatch:
        """Play and wait until the step is full; `horizons` are the turns in each environment."""
        self._queue.extend(draws)
        self._horizons = horizons
        if self.bar is not None:
            self.bar.begin(self._wanted * self._size, self._ready * self._size)
        try:
            self._start()
            while self._ready < self._wanted and self._running and not self._error:
                self._changed.clear()
                await self._changed.wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            await self.close()
            raise
        finally:
            if self.bar is not None:
                self.bar.end()
        return self._filled()

    async def close(self) -> None:
        """Cancel the groups that run."""
        self._queue.clear()
        tasks = [*self._running, *self._ending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def save(self, folder: Path, rank: int, processes: int) -> None:
        """Write what the steps after a checkpoint need; groups that run begin again in the end."""
        begin = [Group(g.env, g.task, g.number) for g in [*self._running.values(), *self._queue]]
        kept = [*self._admitted, *self._rejected, *begin]
        (folder / _FILE.format(rank)).write_bytes(msgspec.msgpack.encode(kept))
        for path in folder.glob(_FILE.format("*")):  # left by a run of more processes
            if rank == 0 and _rank_of(path) >= processes:
                path.unlink()

    def load(self, folder: Path, rank: int, processes: int) -> None:
        """Go on from a checkpoint, which may be of another number of processes."""
        paths = sorted(folder.glob(_FILE.format("*")), key=_rank_of)
        found = [msgspec.msgpack.decode(path.read_bytes(), type=list[Group]) for path in paths]
        if len(found) == processes:
            own = found[rank]
        else:
            own = sorted(chain(*found), key=lambda group: group.number)[rank::processes]
        for group in own:
            if not group.episodes:
                self._queue.append(group)
            elif group.rejected:
                self._rejected.append(group)
                self._unreplaced[group.env] += 1
            else:
                self._admitted.append(group)

    @property
    def _ready(self) -> int:
        """Groups that a step can be filled with now."""
        return len(self._admitted) + sum(self._unreplaced.values())

    def _filled(self) -> GroupBatch:
        """The step's batch; what is left stays for the next step."""
        self._admitted.sort(key=lambda group: group.number)
        self._rejected.sort(key=lambda group: group.number)
        trained, self._admitted = self._admitted[: self._wanted], self._admitted[self._wanted :]
        usable = [group for group in self._rejected if self._is_new(group)]
        for group in usable:
            if len(trained) < self._wanted and self._unreplaced[group.env]:
                self._unreplaced[group.env] -= 1
                group.rejected = None
                trained.append(group)
        # Of those that are left, the last ones can still fill a step.
        left, kept = Counter(self._unreplaced), []
        for group in reversed(usable):
            if group.rejected and left[group.env]:
                left[group.env] -= 1
                kept.append(group)
        rejected = [group for group in self._rejected if group.rejected and group not in kept]
        self._rejected = kept
        dropped = [Group(group.env, group.task) for group in self._dropped]
        trained.sort(key=lambda group: group.number)
        self._dropped = []
        self._next += 1
        self._start()
        return GroupBatch(trained, rejected, dropped)

    def _is_new(self, group: Group) -> bool:
        """Whether the step may train on it."""
        return self._next - group.oldest <= self._max_age

    @property
    def _room(self) -> int:
        """Groups that the steps can use whose weights are new enough."""
        last = min(self._version + self._max_age, self._last)
        return max(0, last - self._next + 1) * self._wanted

    def _start(self) -> None:
        """Begin groups while there is room."""
        room = self._room - self._ready - len(self._running)
        for _ in range(room):
            ready = (g for g in self._queue if not self._max_age or self._has_slots(g.env))
            if (group := next(ready, None)) is not None:
                self._queue.remove(group)
                self._begin(group)

    def _has_slots(self, env: int) -> bool:
        """Whether another group could be sampled at once: one that waits grows old."""
        live = sum(left for group, left in self._left.items() if group.env == env)
        return live < self._worlds[env].runner.concurrency

    def _begin(self, group: Group) -> None:
        group.version = self._version
        self._left[group] = self._size
        task = asyncio.get_running_loop().create_task(self._play(group))
        self._running[task] = group
        task.add_done_callback(self._ended)

    async def _play(self, group: Group) -> None:
        """Play a group, and decide on it."""
        world = self._worlds[group.env]

        def ended(_: Trajectory) -> None:
            # One that is played again, since its server died, ends twice.
            if self._left.get(group):
                self._left[group] -= 1
            if self.bar is not None:
                self.bar.advance()
            if self._max_age:
                self._start()

        group.episodes = await world.runner.collecting(
            world.policy.actors(), self.specs(group), self._horizons[group.env],
            step=group.version, instruction=world.policy.instruction, on_episode=ended,
        )  # fmt: skip
        group.returns = self._returns(group.episodes)
        group.tokens = max((t.longest_context for t in group.episodes), default=0)
        reason = self._gate.admit(group)
        if reason is not None and not (isinstance(reason, str) and reason):
            raise ConfigError(
                f"{type(self._gate).__name__}.admit returns {reason!r:.80}; it returns None to "
                "train on a group, or why not, as text"
            )
        group.rejected = reason

    def _drop(self, task: asyncio.Task[None]) -> None:
        """Give up a group that runs, without waiting for its end."""
        group = self._running.pop(task)
        del self._left[group]
        self._dropped.append(group)
        self._ending.add(task)
        task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Sort a group, and begin another one in its place if it was rejected."""
        self._changed.set()
        self._ending.discard(task)
        error = None if task.cancelled() else task.exception()
        if (group := self._running.pop(task, None)) is None:
            return
        del self._left[group]
        if task.cancelled() or error is not None:
            self._error = self._error or error
            return
        if group.rejected is None:
            self._admitted.append(group)
        else:
            self._rejected.append(group)
            same = next((other for other in self._queue if other.env == group.env), None)
            if same is None or not self._replaceable:
                self._unreplaced[group.env] += 1
            else:
                self._replaceable -= 1
                self._queue.remove(same)
                self._begin(same)
                if self.bar is not None:
                    self.bar.grow(self._size)
        if self._max_age:
            self._start()


def _rank_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])
