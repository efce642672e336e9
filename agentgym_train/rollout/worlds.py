"""The environments of a run, which share an event loop and limits: none, one or several."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym_env.server_token import token_of_file
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.worlds import World
from agentgym_train.event_loop import LoopRunner
from agentgym_train.rollout.horizon import Horizon
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.samplers import TaskSource

if TYPE_CHECKING:
    from agentgym_train.rollout.policy import Policy

_T = TypeVar("_T")


class Worlds(AbstractContextManager["Worlds"]):
    """A `RolloutRunner` for each environment; they share an event loop, so one engine serves all.

    They are in the order of `config.worlds`, which has the settings. A run without an environment
    has none.
    """

    def __init__(
        self, runners: Sequence[RolloutRunner] = (), loop: LoopRunner | None = None
    ) -> None:
        """`loop` is the runners' event loop, which is closed after them."""
        self._runners = list(runners)
        self._loop = loop or LoopRunner()

    def __iter__(self) -> Iterator[RolloutRunner]:
        return iter(self._runners)

    def __len__(self) -> int:
        return len(self._runners)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to completion on the event loop; call it from one thread at a time."""
        return self._runners[0].run(work) if self._runners else self._loop.run(work)

    def run_between_calls(self) -> None:
        """From now on, run the event loop in a thread, so that episodes go on between calls."""
        self._loop.run_between_calls()

    def close(self) -> None:
        """Close the servers, then the event loop."""
        with ExitStack() as stack:
            stack.enter_context(self._loop)
            for runner in self._runners:
                stack.enter_context(runner)

    def __exit__(self, *error: object) -> None:
        self.close()


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

    def source(self) -> TaskSource:
        """The tasks that are trained on."""
        tasks = self.runner.tasks
        known = {task: tasks.category(task) for task in tasks.split(self.settings.split)}
        return TaskSource(self.env, self.settings.weight, known)


def open_worlds(config: RunConfig, processes: int = 1) -> Worlds:
    """Open the environments of a config, for one of `processes`.

    Raises an error if an environment, its server or a split is not available. In RL all
    environments are played at once, and share `concurrency`.
    """
    limits = ConcurrencyLimits(config.limits)
    at_once = len(config.worlds) if isinstance(config, RLConfig) else 1
    runners: list[RolloutRunner] = []
    with ExitStack() as stack:
        loop = stack.enter_context(LoopRunner())
        for world in config.worlds:
            runner = RolloutRunner(
                world.env,
                world.servers,
                token=token_of_file(config.token_file) if world.servers else None,
                env_kwargs=world.env_kwargs,
                concurrency=max(1, config.concurrency // at_once),
                processes=processes,
                limits=limits,
                runner=loop,
                wrappers=world.wrappers or (),
            )
            stack.enter_context(runner)
            for split in (world.split, world.eval.split) if world.stages else (world.eval.split,):
                runner.tasks.split(split)
            runners.append(runner)
        stack.pop_all()
    return Worlds(runners, loop)
