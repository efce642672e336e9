"""BabyAI: instructions in a grid world of rooms, doors and keys (arXiv:1810.08272), as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from agentgym_env.text_env import TextEnv
from agentgym_env.tools import Verb
from agentgym_servers.worlds.babyai.legacy import LegacyLevel, legacy_wording
from agentgym_servers.worlds.babyai.levels import babyai_tasks, make_level, tasks_of
from agentgym_servers.worlds.babyai.oracle import follow_bot
from agentgym_servers.worlds.babyai.refusals import why_not
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

_MAX_COMMAND = 200

_CHECK = "check available actions"

_OBJECT: Final = {"object": "A colour, a kind and a number, such as red ball 1."}

_DOOR: Final = {"door": "A colour, door and a number, such as blue door 2."}


class BabyAI(TextEnv):
    """Carry out an instruction such as "put the red ball next to the grey box".

    ## Description
    The BabyAI levels of minigrid (arXiv:1810.08272) as text: a grid world of rooms, doors, keys,
    balls and boxes, of which you see 7 by 7 cells.

    ## Observation
    The objects in view, each with its colour, state and place; what blocks the way ahead; what you
    carry; and the available actions. The first observation begins with the goal.

    ## Actions
    | action | effect |
    |---|---|
    | `turn left`, `turn right` | turn by 90 degrees |
    | `move forward` | move by one cell at most |
    | `go to OBJECT NUMBER` | walk up to an object and face it |
    | `pick up OBJECT NUMBER` | walk up to an object and take it; you carry one at a time |
    | `drop` | put what you carry into the free cell ahead |
    | `toggle` | open or close the door ahead, or open the box ahead |
    | `go through DOOR NUMBER` | walk into an open door |
    | `toggle and go through DOOR NUMBER` | open a closed or locked door, and walk in |
    | `check available actions` | list the actions again; takes no step of the level |

    A locked door takes the key of its colour. An action stands for one or more low-level steps. One
    that is not available changes nothing; the observation says why.

    ## Rewards
    `1 - 0.9 t/T` when the instruction is carried out after `t` of the level's `T` low-level steps;
    else 0.

    ## Termination
    The episode terminates when the instruction is carried out, and when the level says that it can
    no longer be carried out. It is truncated after 100 turns, and when the level's `T` steps are
    used up.

    ## Tasks
    `LEVEL/SEED` for 96 levels; `babyai_N` is AgentGym's number N. The category is the level.

    | split | seeds | tasks |
    |---|---|---|
    | `train` | 0 to 199 | 19,200 |
    | `test` | 200 to 204 | 480 |
    | `paper` | 45 to 321 | 90 |
    | `paper_train` | 0 to 278 | 810 |

    `paper` and `paper_train` are the tasks of arXiv:2509.08755 (docs/paper_tasks.md); they overlap
    `train` and `test`.

    ## Arguments
    - `levels` (default `None`): names of levels; the splits `train` and `test` then have their
      tasks only, and there are no other splits
    - `legacy` (default `False`): offers actions and words observations as AgentGym does
      (docs/babyai.md), and like there hides the order of instructions ("then" and "after you"
      become "and")

    `render_mode` is `ansi` or `rgb_array`.

    ## Data
    Levels of `minigrid` 3.2 (MIT), made at run time from the task's seed.

    ## Registered id
    `agentgym/BabyAI-v0`
    """

    instruction = (
        "You are in a grid world of rooms and are given a goal. You see the cells before you, up "
        "to 6 ahead and 3 to each side, but not through walls and closed doors. Each turn, answer "
        "with one of the available actions:\n"
        "turn left, turn right, move forward - one cell at most\n"
        "go to OBJECT NUMBER - walk up to an object and face it\n"
        "pick up OBJECT NUMBER - walk up to it and take it; you carry one object at a time\n"
        "drop - put what you carry into the free cell before you\n"
        "toggle - open or close the door before you, or open the box before you\n"
        "go through DOOR NUMBER - walk into an open door\n"
        "toggle and go through DOOR NUMBER - open a closed door, or a locked one if you carry the "
        "key of its colour, and walk into it\n"
        "check available actions - see them again\n"
        "Objects are numbered by distance and numbers change as you move. The fewer cells you "
        "take, the better."
    )
    verbs = (
        Verb("turn left", "Turn left by 90 degrees."),
        Verb("turn right", "Turn right by 90 degrees."),
        Verb("move forward", "Move by one cell at most."),
        Verb("go to {object}", "Walk up to an object and face it.", about=_OBJECT),
        Verb("pick up {object}", "Walk up to an object and take it.", about=_OBJECT),
        Verb("drop", "Put what you carry into the free cell before you."),
        Verb("go through {door}", "Walk into an open door.", about=_DOOR),
        Verb(
            "toggle and go through {door}",
            "Open a closed or locked door and walk into it.",
            about=_DOOR,
        ),
        Verb("toggle", "Open or close the door before you, or open the box before you."),
        Verb("check available actions", "See the available actions again."),
    )
    metadata: dict[str, Any] = {  # noqa: RUF012
        **TextEnv.metadata, "render_modes": ["ansi", "rgb_array"],
    }  # fmt: skip

    def __init__(
        self,
        render_mode: str | None = None,
        legacy: bool = False,
        levels: Sequence[str] | None = None,
    ) -> None:
        self.tasks = babyai_tasks() if levels is None else tasks_of(levels)  # type: ignore[misc]
        if legacy:
            self.instruction = legacy_wording(self.instruction)  # type: ignore[misc]
            self.verbs = tuple(  # type: ignore[misc, assignment]
                replace(verb, pattern=legacy_wording(verb.pattern),
                        description=legacy_wording(verb.description))
                for verb in self.verbs
            )  # fmt: skip
        super().__init__(render_mode)
        self._legacy = legacy
        self._level = ""
        self._world: Any = None

    def _reset(self, task: str) -> str:
        level, _, seed = task.partition("/")
        if level != self._level:
            self._level, self._world = level, make_level(level)
        self._world.reset(seed=int(seed))
        self._solved = self._invalid = self._out_of_steps = False
        goal = str(self._world.mission)
        if self._legacy:
            self._original = LegacyLevel(self._world)
            goal = goal.replace("then", "and").replace("after you", "and")
            return f"Your goal: {goal}\n{self._original.describe()}"
        self._look()
        return f"Your goal: {goal}.\n{self._describe()}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        if self._legacy:
            observation, possible, reward, over = self._original.carry_out(action)
            self._invalid, self._solved = not possible, self._original.is_solved
            self._out_of_steps = self._original.is_out_of_steps
            return observation, reward, over and not self._out_of_steps
        command = _normal(action)
        plan = self._plans.get(command)
        self._invalid = plan is None and command != _CHECK
        if command == _CHECK:
            return self._describe_actions(), 0.0, False
        if plan is None:
            return self._refuse(command), 0.0, False
        reward, over = self._carry_out(plan)
        self._look()
        return self._describe(over=over), reward, over and not self._out_of_steps

    def _carry_out(self, plan: list[int]) -> tuple[float, bool]:
        """Take low-level steps until the plan is done, the world ends, or the way is blocked."""
        for action in plan:
            place = self._world.agent_pos
            _, reward, terminated, truncated, _ = self._world.step(action)
            if terminated or truncated:
                # The rest of the plan would be taken in a world that has ended.
                self._solved = bool(terminated and reward > 0)
                self._out_of_steps = not terminated
                return (float(reward) if self._solved else 0.0), True
            if action == FORWARD and tuple(self._world.agent_pos) == tuple(place):
                break
            if action == TOGGLE and len(plan) > 1 and not self._door_is_open():
                break
        return 0.0, False

    def world_limit(self) -> bool:
        """Whether the level's steps were used up."""
        return self._out_of_steps

    def success(self) -> bool:
        """Whether the instruction was carried out, however late."""
        return self._solved

    def invalid_action(self) -> bool:
        """Whether the last action was not possible."""
        return self._invalid

    def available_actions(self) -> list[str]:
        """What can be done now, as the observation lists it."""
        return [*self._offered(), _CHECK]

    def expert(self) -> Iterator[str]:
        """Follow minigrid's own bot, its steps gathered into the actions that take it furthest.

        It yields nothing where the bot fails or is too slow (docs/babyai.md lists the levels).
        """
        return follow_bot(lambda: (self._world, self._offered()))

    def render(self) -> Any:
        """The whole grid as an image (`rgb_array`), or the last observation (`ansi`)."""
        if self.render_mode == "rgb_array":
            return self._world.get_frame()
        return super().render()

    def _offered(self) -> dict[str, list[int]]:
        return self._original.plans if self._legacy else self._plans

    def _look(self) -> None:
        self._view = View(self._world)
        self._plans = self._make_plans()

    def _make_plans(self) -> dict[str, list[int]]:
        """Every action that is possible now, with its low-level steps."""
        world, view = self._world, self._view
        plans: dict[str, list[int]] = {"turn left": [LEFT], "turn right": [RIGHT]}
        blocked = view.blocked_ahead
        if blocked is None or blocked[1] > 1:
            plans["move forward"] = [FORWARD]
        ways = [(seen, view.way_to(seen.ahead, seen.right)) for seen in view.objects]
        reachable = [(seen, way) for seen, way in ways if way is not None]
        for seen, way in reachable:
            if seen.kind != "door" and world.carrying is None:
                plans[f"pick up {seen.name}"] = [*way, PICKUP]
        if world.carrying is not None and view.front is None:
            plans["drop"] = [DROP]
        for seen, way in reachable:
            if seen.state == "open":
                plans[f"go through {seen.name}"] = [*way, FORWARD]
            elif self._can_open(seen):
                plans[f"toggle and go through {seen.name}"] = [*way, TOGGLE, FORWARD]
            if seen.is_in_front and (seen.kind == "box" or self._can_open(seen)):
                plans["toggle"] = [TOGGLE]
        for seen, way in reachable:
            plans[f"go to {seen.name}"] = way
        return plans

    def _can_open(self, door: Seen) -> bool:
        if door.state != "locked":
            return door.kind == "door"
        carried = self._world.carrying
        return carried is not None and (carried.type, carried.color) == ("key", door.color)

    def _door_is_open(self) -> bool:
        cell = self._world.grid.get(*self._world.front_pos)
        return cell is not None and cell.type == "door" and bool(cell.is_open)

    def _refuse(self, command: str) -> str:
        shown = command if len(command) <= 80 else f"{command[:77]}..."
        reason = why_not(command, self._view, self._world.carrying)
        return f'"{shown}" is not possible now: {reason}\n{self._describe_actions()}'

    def _describe(self, over: bool = False) -> str:
        look = self._describe_view()
        if over:
            look += "\nThe goal is reached." if self._solved else "\nThe goal is not reached."
        return f"{look}\n{self._describe_actions()}"

    def _describe_view(self) -> str:
        lines = [f"{seen.name}: {_place(seen)}" for seen in self._view.objects]
        listed = "You see:\n" + "\n".join(lines) if lines else "You see no objects."
        blocked = self._view.blocked_ahead
        ahead = f"Ahead is a {blocked[0]}, {blocked[1]} away. " if blocked else ""
        carried = self._world.carrying
        held = "nothing" if carried is None else f"a {carried.color} {carried.type}"
        return f"{listed}\n{ahead}You carry {held}."

    def _describe_actions(self) -> str:
        return f"Available actions: {', '.join(self.available_actions())}"


def _normal(action: str) -> str:
    """An action as the list has it; both spellings of picking up are understood."""
    command = " ".join(action[:_MAX_COMMAND].lower().split()).removesuffix(".").rstrip()
    if command.startswith("pickup "):
        return f"pick up {command.removeprefix('pickup ')}"
    return command


def _place(seen: Seen) -> str:
    side = f"{abs(seen.right)} {'right' if seen.right > 0 else 'left'}" if seen.right else ""
    ahead = f"{seen.ahead} ahead" if seen.ahead else ""
    return ", ".join(filter(None, (ahead, side)))
