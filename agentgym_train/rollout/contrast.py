"""The contrast sampler: draws the tasks whose groups had episodes with different returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentgym_train.rollout.groups import Group
from agentgym_train.rollout.samplers import TaskSource, UniformSampler

_MEMORY: Final = 0.8
_CATEGORY_MEMORY: Final = 0.98
"""Also of an environment."""
_LEAST: Final = 0.05


@dataclass
class ContrastSampler(UniformSampler):
    """Draws by how often recent groups were informative: had episodes with different returns.

    A task's weight is (a + q) / (n + 1), for n groups of which a were informative, and at least
    1/20. q is the same ratio for the task's category, with q = 1 before any group: so a new task
    is judged by the others of its category. Older groups count less. A task that was drawn is not
    drawn again before its group was observed, unless all others were.
    """

    tasks: bool = True
    """Draw tasks by their recent groups and those of their category."""
    envs: bool = False
    """Draw each of `envs` by its weight times the share of its recent groups."""

    def begin(self, sources: Sequence[TaskSource], seed: int) -> None:
        """Nothing is known yet."""
        super().begin(sources, seed)
        self._counts: dict[str, tuple[float, float]] = {}
        """Name of a task, category or environment -> decayed a and n."""
        self._pending: list[list[str]] = [[] for _ in sources]

    def next(self) -> tuple[int, str]:
        """A task by its weight."""
        shares = [self._rate(f"env {i}", 1) if self.envs else 1 for i in range(len(self.sources))]
        weights = [s.weight * max(_LEAST, r) for s, r in zip(self.sources, shares, strict=True)]
        env = self._next_env(weights)
        if not self.tasks:
            return env, self._next_task(env)
        pending, tasks = self._pending[env], self.sources[env].tasks
        del pending[: max(0, len(pending) - len(tasks) + 1)]
        known = set(pending)
        left = [task for task in tasks if task not in known]
        (task,) = self.chance.choices(left, [self.weight(env, task) for task in left])
        pending.append(task)
        return env, task

    def observe(self, group: Group) -> None:
        """Count a group."""
        if group.task in (pending := self._pending[group.env]):
            pending.remove(group.task)
        if not group.returns:
            return
        for name, memory in (
            (f"task {group.env} {group.task}", _MEMORY),
            (self._category(group.env, group.task), _CATEGORY_MEMORY),
            (f"env {group.env}", _CATEGORY_MEMORY),
        ):
            found, groups = self._counts.get(name, (0.0, 0.0))
            self._counts[name] = (memory * found + group.is_informative, memory * groups + 1)

    def weight(self, env: int, task: str) -> float:
        """The relative frequency with which a task is drawn."""
        expected = self._rate(self._category(env, task), 1.0)
        return max(_LEAST, self._rate(f"task {env} {task}", expected))

    def state(self) -> Any:
        """Also the counts, and the tasks whose groups were not yet observed."""
        return {**super().state(), "counts": self._counts, "pending": self._pending}

    def load(self, state: Any) -> None:
        """Go on with what was learned."""
        super().load(state)
        self._counts = {name: (found, groups) for name, (found, groups) in state["counts"].items()}
        self._pending = [list(tasks) for tasks in state["pending"]]

    def _rate(self, name: str, prior: float) -> float:
        found, groups = self._counts.get(name, (0.0, 0.0))
        return (found + prior) / (groups + 1)

    def _category(self, env: int, task: str) -> str:
        return f"category {env} {self.sources[env].tasks[task]}"


SAMPLERS: Final[Mapping[str, type[UniformSampler]]] = {
    "uniform": UniformSampler,
    "contrast": ContrastSampler,
}
"""Type of a sampler -> its class."""
