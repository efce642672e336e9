"""A level as AgentGym plays it: its texts, the actions that it offers, and why others are not.

Only the end is ours: an action stops where the episode ends, and a success ends it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Final

from agentgym_servers.worlds.babyai.view import (
    DROP,
    FORWARD,
    LEFT,
    PICKUP,
    RIGHT,
    TOGGLE,
    Seen,
    View,
)

_CHECK = "check available actions"
_IN_THE_WAY: Final = frozenset({"wall", "box", "lava", "ball", "key"})
_NO_PATH: Final = "as there is no path leading to it."

# (right, ahead) of a step in each direction, from straight ahead clockwise.
_STEPS: Final = ((0, 1), (1, 0), (0, -1), (-1, 0))
_Pose = tuple[int, int, int]
"""Cells to the right, cells ahead and direction, from where the agent is now."""


def legacy_wording(text: str) -> str:
    """A text about the actions, as these are in AgentGym."""
    for ours, theirs in (
        ("pick up {", "pickup {"),
        ("pick up OBJECT", "pickup OBJECT"),
        ("pen or close the door before you, or open the box", "pen the closed door"),
    ):
        text = text.replace(ours, theirs)
    return text


class LegacyLevel:
    """One episode of a level."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.is_solved = self.is_out_of_steps = False
        self._look()

    @property
    def plans(self) -> dict[str, list[int]]:
        """Every action that is offered, with its low-level steps; some cannot be carried out."""
        return self._plans

    def describe(self) -> str:
        """What is seen and carried, and the actions that are offered."""
        return f"{self._description()}\n{self._offer()}"

    def carry_out(self, action: str) -> tuple[str, bool, float, bool]:
        """(observation, whether it is an action, reward, whether the episode is over)."""
        command = action.lower().strip()
        if "check" in command:
            listed = f"You can take the following actions: {', '.join([*self._plans, _CHECK])}"
            return f"{listed}\n{self._offer()}", True, 0.0, False
        plan = self._plans.get(command)
        if plan is None:
            unknown = "The action is not recognized. Please check valid actions."
            text = self._errors.get(command, unknown) if command else "No change in state."
            return f"{text}\n{self._offer()}", False, 0.0, False
        if not plan:
            return f"No change in state.\n{self._offer()}", True, 0.0, False
        reward, terminated, truncated = self._take(plan)
        self._look()
        self.is_solved = terminated and reward > 0
        self.is_out_of_steps = truncated and not terminated
        completed = "\n The task is completed." if terminated else ""
        text = f"{self._description()}{completed}\n{self._offer()}"
        return text, True, reward if self.is_solved else 0.0, terminated or truncated

    def _take(self, plan: list[int]) -> tuple[float, bool, bool]:
        """Take low-level steps up to the first that changes nothing of what is seen."""
        before = _picture(self._world)
        reward, terminated, truncated = 0.0, False, False
        for action in plan:
            _, reward, terminated, truncated, _ = self._world.step(action)
            after = _picture(self._world)
            if terminated or truncated or after == before:
                break
            before = after
        return float(reward), bool(terminated), bool(truncated)

    def _look(self) -> None:
        self._view = View(self._world)
        self._ways = _explore(self._view, int(self._world.agent_dir))
        self._plans: dict[str, list[int]] = {"turn left": [LEFT], "turn right": [RIGHT]}
        self._errors: dict[str, str] = {}
        self._offer_forward()
        carried = self._world.carrying
        if carried is None:
            liftable = [seen for seen in self._view.objects if seen.kind != "door"]
            self._offer_each("pickup", liftable, [PICKUP])
        self._offer_drop()
        self._offer_doors()
        self._offer_each("go to", self._view.objects, [])

    def _offer_forward(self) -> None:
        barrier = self._barrier()
        if barrier is None or barrier[1] > 1:
            self._plans["move forward"] = [FORWARD]
        else:
            self._errors["move forward"] = (
                "There is a barrier in front of you, you can't move forward."
            )

    def _offer_each(self, verb: str, objects: list[Seen], deed: list[int]) -> None:
        """Offer to walk up to objects; those without a way do not count in the numbers."""
        reached: Counter[str] = Counter()
        for seen in objects:
            name = seen.name.rpartition(" ")[0]
            numbered = f"{verb} {name} {reached[name] + 1}"
            way = self._way(seen)
            if way is None:
                self._errors[numbered] = f"You cannot {numbered}, {_NO_PATH}"
            else:
                self._plans[numbered] = way + deed
                reached[name] += 1

    def _offer_drop(self) -> None:
        if self._world.carrying is None:
            self._errors["drop"] = "You cannot drop the object, as you are not carrying anything."
        elif getattr(self._view.front, "type", None) in _IN_THE_WAY:
            self._errors["drop"] = (
                "You cannot drop the object, as there is already an object in front of you."
            )
        else:
            self._plans["drop"] = [DROP]

    def _offer_doors(self) -> None:
        counts: dict[str, int] = {}
        for door in self._view.objects:
            if door.kind != "door":
                continue
            counts[door.name.rpartition(" ")[0]] = door.number
            through, opening = f"go through {door.name}", f"toggle and go through {door.name}"
            if door.state == "open":
                way = self._way(door, arrive=True)
                if way is None:
                    self._errors[through] = f"You cannot {through}, {_NO_PATH}"
                else:
                    self._plans[through] = way
                continue
            locked = self._locked_out(door)
            if locked:
                self._errors[opening] = f"You cannot {opening}, {locked}"
                continue
            way = self._way(door)
            if way is None:
                # It shows its counts of doors where the number belongs.
                name = door.name.rpartition(" ")[0]
                self._errors[opening] = (
                    f"You cannot toggle and go through {name} {counts}, {_NO_PATH}"
                )
            else:
                self._plans[opening] = [*way, TOGGLE, FORWARD]
            if way == []:
                self._plans["toggle"] = [TOGGLE]
            if door.state == "closed":
                self._errors[through] = (
                    f"You cannot {through}, as it is closed. You should toggle it first."
                )

    def _locked_out(self, door: Seen) -> str:
        """Why a door cannot be unlocked; empty if it can, or is not locked."""
        if door.state != "locked":
            return ""
        carried = self._world.carrying
        if carried is None or carried.type != "key":
            return "as you are not carrying a key."
        if carried.color != door.color:
            return "as the color of the key you are carrying does not match the color of door."
        return ""

    def _way(self, seen: Seen, arrive: bool = False) -> list[int] | None:
        """The steps that bring the agent to face an object, or to stand where it is."""
        goal = (seen.right, seen.ahead)
        for right, ahead, facing in self._ways:
            dx, dy = (0, 0) if arrive else _STEPS[facing]
            if (right + dx, ahead + dy) == goal:
                return _way_back(self._ways, (right, ahead, facing))
        return None

    def _description(self) -> str:
        view, carried, barrier = self._view, self._world.carrying, self._barrier()
        # Walls count as objects, though they are not named.
        if view.objects or view.where(("wall",)):
            listed = "".join(f"There is a {seen.name} {_place(seen)}.  " for seen in view.objects)
            text = f"In front of you in this room, you can see several objects: {listed}"
        else:
            text = "You cannot see any objects within sight."
        text += "The room has walls around you. "
        if barrier is not None:
            text += f"You are facing a {barrier[0]} {barrier[1]} steps away. "
        if carried is None:
            return text + "You are not carrying anything."
        return text + f"You are carrying a {carried.color} {carried.type}."

    def _barrier(self) -> tuple[str, int] | None:
        """(what, cells away) of the nearest wall or box straight ahead, past everything else."""
        found = [
            (ahead, kind)
            for kind in ("wall", "box")
            for right, ahead in self._view.where((kind,))
            if right == 0
        ]
        return min(found)[::-1] if found else None

    def _offer(self) -> str:
        listed = ", ".join(f'"{action}"' for action in [*self._plans, _CHECK])
        return f"Available actions: [{listed}]"


def _place(seen: Seen) -> str:
    if seen.right == 0:
        return f"right in front of you {seen.ahead} steps away"
    side = "right" if seen.right > 0 else "left"
    return f"{seen.ahead} steps in front of you and {abs(seen.right)} steps to your {side}"


def _picture(world: Any) -> bytes:
    """What minigrid shows to the agent."""
    grid, mask = world.gen_obs_grid()
    return bytes(grid.encode(mask).tobytes())


_Ways = dict[_Pose, tuple[_Pose, int] | None]
"""Each pose in the order in which it is reached, with the pose before it and the step."""


def _explore(view: View, direction: int) -> _Ways:
    """Every pose that AgentGym takes for reachable: through doors, and through what is not seen.

    It looks one row further behind the agent when that faces right or down, and one column further
    to the right when it faces down or left. A pose is left by the last of the poses that met it
    before its own turn.
    """
    rows = range(-1 if direction in (0, 1) else 0, 7)
    columns = range(-3, 5 if direction in (1, 2) else 4)
    blocked = view.where(_IN_THE_WAY)
    reached: _Ways = {}
    before: _Ways = {(0, 0, 0): None}
    waiting = deque(before)
    while waiting:
        pose = waiting.popleft()
        reached.setdefault(pose, before[pose])
        for after, action in _next_poses(pose):
            right, ahead, _ = after
            inside = right in columns and ahead in rows
            if inside and after not in reached and (right, ahead) not in blocked:
                before[after] = (pose, action)
                waiting.append(after)
    return reached


def _next_poses(pose: _Pose) -> Iterator[tuple[_Pose, int]]:
    right, ahead, facing = pose
    dx, dy = _STEPS[facing]
    yield (right + dx, ahead + dy, facing), FORWARD
    yield (right, ahead, (facing - 1) % 4), LEFT
    yield (right, ahead, (facing + 1) % 4), RIGHT


def _way_back(ways: _Ways, pose: _Pose) -> list[int]:
    way: list[int] = []
    while (step := ways[pose]) is not None:
        pose, action = step
        way.append(action)
    return way[::-1]
