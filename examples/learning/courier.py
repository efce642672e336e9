"""Courier: fetch a parcel in a corridor of six rooms and bring it to its goal.

The observation is the whole state, so that even a tiny policy can read it, and a task takes 4 to
12 turns, so that a horizon matters: `agentgym play courier:Courier` in this folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv

ROOMS = 6
ACTIONS = ("left", "right", "take", "give")
FETCHED = 0.25
"""Reward for taking the parcel; the rest of 1 is for giving it at its goal."""


def make_tasks() -> TaskSet:
    """Every start, parcel and goal in which there is something to carry, one in five held out."""
    splits: dict[str, list[str]] = {"train": [], "test": []}
    categories: dict[str, str] = {}
    for start in range(ROOMS):
        for parcel in range(ROOMS):
            for goal in range(ROOMS):
                if start == parcel or parcel == goal:
                    continue
                task = f"{start}-{parcel}-{goal}"
                held_out = (start + 2 * parcel + 3 * goal) % 5 == 0
                splits["test" if held_out else "train"].append(task)
                turns = abs(start - parcel) + abs(parcel - goal) + 2
                categories[task] = "near" if turns <= 5 else "middle" if turns <= 7 else "far"
    return TaskSet(splits, categories)


class Courier(TextEnv):
    """Walk to the parcel, take it, walk to the goal, give it. What is not possible costs a turn.

    Reward: 0.25 for taking the parcel, 0.75 for giving it at its goal, which ends the episode.
    """

    instruction = (
        "Take the parcel and give it at the goal. Rooms are numbered from left to right. "
        "Answer with one word: left, right, take or give."
    )
    tasks = make_tasks()

    def _reset(self, task: str) -> str:
        self.at, self.parcel, self.goal = map(int, task.split("-"))
        self.held = self.delivered = False
        return self._sight()

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action not in ACTIONS:
            return f"Answer with one of: {', '.join(ACTIONS)}. {self._sight()}", 0.0, False
        reward = 0.0
        if action == "left":
            self.at = max(0, self.at - 1)
        elif action == "right":
            self.at = min(ROOMS - 1, self.at + 1)
        elif action == "take" and not self.held and self.at == self.parcel:
            self.held, reward = True, FETCHED
        elif action == "give" and self.held and self.at == self.goal:
            self.delivered, reward = True, 1 - FETCHED
        return self._sight(), reward, self.delivered

    def success(self) -> bool:
        """Whether the parcel is at its goal."""
        return self.delivered

    def available_actions(self) -> list[str]:
        """The four words; those that do nothing here are among them."""
        return list(ACTIONS)

    def expert(self) -> Iterator[str]:
        """The shortest way from wherever things are."""
        while not self.delivered:
            target = self.goal if self.held else self.parcel
            if self.at != target:
                yield "left" if target < self.at else "right"
            else:
                yield "give" if self.held else "take"

    def _sight(self) -> str:
        parcel = "held" if self.held else self._way(self.parcel)
        return f"parcel {parcel}, goal {self._way(self.goal)}"

    def _way(self, room: int) -> str:
        away = room - self.at
        return "here" if not away else f"{'left' if away < 0 else 'right'} {abs(away)}"
