"""BabyAI and SciWorld stepped in the original's manner, as baselines.

BabyAI: each reset makes an environment by `gymnasium.make` and resets it twice, its observation is
drawn at each low-level step, and ways are searched for each object anew. SciWorld: the library's
own `ScienceWorldEnv.step`, which lists every valid action each time. Written from what the
originals do, not from their code.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import gymnasium
from scienceworld import ScienceWorldEnv

from agentgym_env.text_env import TextEnv
from agentgym_servers.worlds.babyai.env import BabyAI
from agentgym_servers.worlds.babyai.levels import level_ids
from agentgym_servers.worlds.babyai.view import FORWARD, LEFT, RIGHT, SIZE, View
from agentgym_servers.worlds.sciworld.tasks import sciworld_tasks

# The heap that ours has; the JVM's own default takes several times as much.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-Xmx48m -XX:+UseSerialGC")


class BabyAIEachAnew(BabyAI):
    """BabyAI with an environment for each episode and a path search for each object."""

    def __init__(self) -> None:
        super().__init__(legacy=True)

    def _reset(self, task: str) -> str:
        self._level = task.partition("/")[0]
        self._world = _Made(gymnasium.make(level_ids()[self._level]))
        super()._reset(task)
        return super()._reset(task)

    def _look(self) -> None:
        self._view = _EachAnew(self._world)
        self._plans = self._make_plans()


class _Made:
    """An environment as `gymnasium.make` returns it, with the world's attributes."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.reset, self.step = env.reset, env.step
        self._world: Any = env.unwrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class _EachAnew(View):
    """Searches for each way by itself, breadth first, until it is found."""

    def way_to(self, forward: int, right: int) -> list[int] | None:
        goal = (SIZE // 2 + right, SIZE - 1 - forward)
        start = (SIZE // 2, SIZE - 1, 0)
        waiting: deque[tuple[tuple[int, int, int], list[int]]] = deque([(start, [])])
        seen = {start}
        while waiting:
            (column, row, direction), way = waiting.popleft()
            dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0))[direction]
            next_cell = (column + dx, row + dy)
            if next_cell == goal:
                return way
            reached = [((column, row, (direction - 1) % 4), LEFT),
                       ((column, row, (direction + 1) % 4), RIGHT)]  # fmt: skip
            if self._is_free(*next_cell):
                reached.append(((*next_cell, direction), FORWARD))
            for pose, action in reached:
                if pose not in seen:
                    seen.add(pose)
                    waiting.append((pose, [*way, action]))
        return None

    def _is_free(self, column: int, row: int) -> bool:
        if not (0 <= column < SIZE and 0 <= row < SIZE and self._visible[column][row]):
            return False
        cell = self._cells[column][row]
        return cell is None or bool(cell.can_overlap())


class SciWorldWrapped(TextEnv):
    """SciWorld through its library's wrapper."""

    instruction = ""

    def __init__(self) -> None:
        self.tasks = sciworld_tasks()  # type: ignore[misc]
        super().__init__()
        self._simulator: Any = ScienceWorldEnv("", envStepLimit=100)

    def _reset(self, task: str) -> str:
        name, _, variation = task.partition("/")
        self._simulator.load(name, int(variation))
        observation, _ = self._simulator.reset()
        return f"{self._simulator.taskdescription()}\n{observation}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, done, _ = self._simulator.step(action)
        return observation, reward / 100, done
