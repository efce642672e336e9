"""The tasks of ScienceWorld: names, official splits, simplifications, the original numbering."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from agentgym_env.errors import BadRequest, UnknownTask
from agentgym_env.text_env import TaskSet
from agentgym_servers.worlds.paper import paper_selections

VARIATIONS: Final = {
    "boil": (14, 7, 9),
    "melt": (14, 7, 9),
    "freeze": (14, 7, 9),
    "change-the-state-of-matter-of": (14, 7, 9),
    "use-thermometer": (270, 135, 135),
    "measure-melting-point-known-substance": (218, 109, 109),
    "measure-melting-point-unknown-substance": (150, 75, 75),
    "power-component": (10, 5, 5),
    "power-component-renewable-vs-nonrenewable-energy": (10, 5, 5),
    "test-conductivity": (450, 225, 225),
    "test-conductivity-of-unknown-substances": (300, 150, 150),
    "find-living-thing": (150, 75, 75),
    "find-non-living-thing": (150, 75, 75),
    "find-plant": (150, 75, 75),
    "find-animal": (150, 75, 75),
    "grow-plant": (62, 31, 33),
    "grow-fruit": (62, 31, 33),
    "chemistry-mix": (16, 8, 8),
    "chemistry-mix-paint-secondary-color": (18, 9, 9),
    "chemistry-mix-paint-tertiary-color": (18, 9, 9),
    "lifespan-longest-lived": (62, 31, 32),
    "lifespan-shortest-lived": (62, 31, 32),
    "lifespan-longest-lived-then-shortest-lived": (62, 31, 32),
    "identify-life-stages-1": (6, 3, 5),
    "identify-life-stages-2": (4, 2, 4),
    "inclined-plane-determine-angle": (84, 42, 42),
    "inclined-plane-friction-named-surfaces": (692, 346, 348),
    "inclined-plane-friction-unnamed-surfaces": (80, 40, 42),
    "mendelian-genetics-known-plant": (60, 30, 30),
    "mendelian-genetics-unknown-plant": (240, 120, 120),
}
"""Task -> how many variations train, dev and test have; they are numbered in this order."""

SPLITS: Final = ("train", "dev", "test")

NOT_IN_AGENTGYM: Final = frozenset({
    "grow-plant", "grow-fruit", "inclined-plane-determine-angle",
    "inclined-plane-friction-named-surfaces", "inclined-plane-friction-unnamed-surfaces",
    "mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant",
})  # fmt: skip
"""What AgentGym leaves out: its number n is the n-th variation of the other 23 tasks."""

SIMPLIFICATIONS: Final = (
    "teleportAction", "openDoors", "openContainers", "selfWateringFlowerPots", "noElectricalAction",
    "easy",
)  # fmt: skip
"""What makes ScienceWorld easier.

`easy` is the others but openContainers; tasks about electricity keep its actions.
"""

_ELECTRICAL: Final = ("power-component", "test-conductivity")


@cache
def sciworld_tasks(simplifications: str = "") -> TaskSet:
    """Every variation of every task as `TASK/VARIATION`, in its official split.

    Without electrical actions the tasks that need them are left out.
    """
    names = [
        name
        for name in VARIATIONS
        if "noElectricalAction" not in simplifications.split(",")
        or not name.startswith(_ELECTRICAL)
    ]
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in names:
        first = 0
        for split, count in zip(SPLITS, VARIATIONS[name], strict=True):
            splits[split] += [f"{name}/{number}" for number in range(first, first + count)]
            first += count
    categories = {task: task.partition("/")[0] for ids in splits.values() for task in ids}
    numbered = {n: task for n, task in enumerate(_original_order()) if task in categories}
    return TaskSet(
        splits,
        categories,
        aliases={f"sciworld_{n}": task for n, task in numbered.items()},
        selections=paper_selections("sciworld", numbered),
    )


@cache
def _original_order() -> tuple[str, ...]:
    return tuple(
        f"{name}/{number}"
        for name, counts in VARIATIONS.items()
        if name not in NOT_IN_AGENTGYM
        for number in range(sum(counts))
    )


def original_task(data_idx: int) -> str:
    """The task that AgentGym numbers `data_idx`, or `UnknownTask`; below 0 it counts backwards."""
    order = _original_order()
    if not -len(order) <= data_idx < len(order):
        raise UnknownTask(f"AgentGym has the tasks 0 to {len(order) - 1}, got {data_idx}")
    return order[data_idx]


def parse_simplifications(given: str | Sequence[str]) -> str:
    """Simplifications as the simulator takes them: names with commas; raises `BadRequest`."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise BadRequest(f"simplifications are a list of names, got {given!r:.80}")
    names = [name.strip() for name in names if name.strip()]
    unknown = sorted(set(names) - set(SIMPLIFICATIONS))
    if unknown:
        raise BadRequest(
            f"simplifications {unknown} are not known; use {', '.join(SIMPLIFICATIONS)}"
        )
    return ",".join(name for name in SIMPLIFICATIONS if name in names)
