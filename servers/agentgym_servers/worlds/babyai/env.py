"""BabyAI: instructions in a grid world of rooms, doors and keys (arXiv:1810.08272), as text."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.tools import Verb
from agentgym_servers.worlds.babyai.oracle import follow_bot
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
from agentgym_servers.worlds.paper import paper_numbers, paper_selections

try:
    import minigrid.envs.babyai.core.roomgrid_level as roomgrid_level
except ModuleNotFoundError as error:
    raise MissingExtra(f"BabyAI needs {error.name}: pip install 'agentgym-sdk[babyai]'") from error

logger = logging.getLogger(__name__)

TRAIN_SEEDS: Final = range(200)

TEST_SEEDS: Final = range(200, 205)

ORIGINAL_LEVELS: Final = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7",
    "GoToObjMazeS7", "GoToImpUnlock", "GoToSeqS5R2", "GoToRedBlueBall", "GoToDoor",
    "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoorLoc", "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug", "Pickup", "UnblockPickup", "PickupLoc", "PickupDistDebug",
    "PickupAbove", "PutNextLocalS6N4", "PutNextS7N4Carrying", "Unlock", "UnlockLocalDist",
    "KeyInBox", "UnlockPickupDist", "BlockedUnlockPickup", "UnlockToUnlock", "ActionObjDoor",
    "FindObjS7", "KeyCorridorS6R3", "OneRoomS20", "MoveTwoAcrossS8N9", "SynthS5R2",
    "SynthLoc", "SynthSeq", "MiniBossLevel", "BossLevel", "BossLevelNoUnlock",
)  # fmt: skip

"""AgentGym's 40 levels: its number n is level n % 40 with seed n // 40."""


@cache
def level_ids() -> dict[str, str]:
    """Level name -> minigrid's id, by name: `GoToRedBall` -> `BabyAI-GoToRedBall-v0`."""
    ids = [env_id for env_id in gymnasium.registry if env_id.startswith("BabyAI-")]
    return {env_id.removeprefix("BabyAI-").rpartition("-v")[0]: env_id for env_id in sorted(ids)}


@cache
def babyai_tasks() -> TaskSet:
    """Every level with 200 seeds to train on and 5 to test on.

    Some levels are twins: with a seed they begin alike. A seed is on one side for all levels, so
    twins are never on two sides.
    """
    splits = {
        name: [f"{level}/{seed}" for level in level_ids() for seed in seeds]
        for name, seeds in (("train", TRAIN_SEEDS), ("test", TEST_SEEDS))
    }
    # The paper's tasks have some seeds that are in no split.
    numbers = {*range(len(ORIGINAL_LEVELS) * TEST_SEEDS.stop), *paper_numbers("babyai")}
    numbered = {n: original_task(n) for n in sorted(numbers)}
    selections = paper_selections("babyai", numbered)
    every = [*splits.values(), *selections.values()]
    return TaskSet(
        splits,
        categories={task: task.partition("/")[0] for ids in every for task in ids},
        aliases={f"babyai_{n}": task for n, task in numbered.items()},
        selections=selections,
    )


@cache
def _tasks_of(levels: tuple[str, ...]) -> TaskSet:
    every, chosen = babyai_tasks(), frozenset(levels)
    splits = {
        name: [task for task in ids if every.category(task) in chosen]
        for name, ids in every.splits.items()
    }
    kept = [task for ids in splits.values() for task in ids]
    return TaskSet(splits, categories={task: task.partition("/")[0] for task in kept})


def tasks_of(levels: Sequence[str]) -> TaskSet:
    """The tasks of some levels, in `train` and `test`. Raises `BadRequest` for an unknown level."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise BadRequest(f"levels is a list of names, such as ['GoToObj'], got {levels!r:.80}")
    for level in levels:
        if level not in level_ids():
            near = difflib.get_close_matches(str(level)[:100], level_ids(), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see `level_ids()`"
            raise BadRequest(f"BabyAI has no level {str(level)[:80]!r}; {hint}")
    return _tasks_of(tuple(levels))


def original_task(data_idx: int) -> str:
    """The task that AgentGym numbers `data_idx`."""
    seed, level = divmod(data_idx, len(ORIGINAL_LEVELS))
    return f"{ORIGINAL_LEVELS[level]}/{seed}"


def make_level(level: str) -> Any:
    """A fresh world of a level, without Gymnasium's wrappers."""
    spec = gymnasium.spec(level_ids()[level])
    entry_point = spec.entry_point
    make: Callable[..., Any] = (
        load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point  # type: ignore[assignment]
    )
    world = make(**spec.kwargs)
    # minigrid's own observation is not used, and is most of the cost of a step.
    world.gen_obs = dict
    return world


def _log(*words: Any) -> None:
    logger.debug("%s", " ".join(map(str, words)))


# minigrid prints each layout that it rejects.
vars(roomgrid_level)["print"] = _log

_MAX_COMMAND = 200

_CHECK = "check available actions"

_LOW_LEVEL = frozenset({"turn left", "turn right", "move forward", "drop", "toggle"})

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
    that is not available changes nothing.

    ## Rewards
    `1 - 0.9 t/T` when the instruction is carried out after `t` of the level's `T` low-level steps;
    else 0.

    ## Termination
    The episode terminates when the instruction is carried out, and when the level says that it can
    no longer be carried out. It is truncated when the level's `T` steps are used up, and after 100
    turns.

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
    - `legacy` (default `False`): words observations as AgentGym does, and like there hides the
      order of instructions ("then" and "after you" become "and")

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
        self._look()
        goal = str(self._world.mission)
        if self._legacy:
            goal = goal.replace(", then", ", and").replace(" after you", " and")
            return f"Your goal: {goal}\n{self._describe()}"
        return f"Your goal: {goal}.\n{self._describe()}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        command = _normal(action, "pickup" if self._legacy else "pick up")
        plan = self._plans.get(command)
        self._invalid = plan is None and command != _CHECK
        if command == _CHECK:
            return self._describe_actions(), 0.0, False
        if plan is None:
            return self._refuse(command), 0.0, False
        before = self._state()
        reward, over = self._carry_out(plan)
        moved = self._state() != before
        self._look()
        if self._legacy and not moved and command not in _LOW_LEVEL:
            observation = f"No change in state.\n{self._describe_actions()}"
        else:
            observation = self._describe(over=over)
        return observation, reward, over and not self._out_of_steps

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

    def truncated(self) -> bool:
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
        return [*self._plans, _CHECK]

    def expert(self) -> Iterator[str]:
        """Follow minigrid's own bot, its steps gathered into the actions that take it furthest.

        It yields nothing where the bot fails or is too slow (docs/babyai.md lists the levels).
        """
        return follow_bot(lambda: (self._world, self._plans))

    def render(self) -> Any:
        """The whole grid as an image (`rgb_array`), or the last observation (`ansi`)."""
        if self.render_mode == "rgb_array":
            return self._world.get_frame()
        return super().render()

    def _look(self) -> None:
        self._view = View(self._world)
        self._plans = self._make_plans()

    def _make_plans(self) -> dict[str, list[int]]:
        """Every action that is possible now, with its low-level steps."""
        world, view = self._world, self._view
        plans: dict[str, list[int]] = {"turn left": [LEFT], "turn right": [RIGHT]}
        # AgentGym offers what only a wall or a box prevents, whatever else is there.
        blocked = view.wall_ahead if self._legacy else view.blocked_ahead
        ahead_is_free = blocked is None or blocked[1] > 1
        if ahead_is_free:
            plans["move forward"] = [FORWARD]
        ways = [(seen, view.way_to(seen.ahead, seen.right)) for seen in view.objects]
        reachable = [(seen, way) for seen, way in ways if way is not None]
        take = "pickup" if self._legacy else "pick up"
        for seen, way in reachable:
            if seen.kind != "door" and world.carrying is None:
                plans[f"{take} {seen.name}"] = [*way, PICKUP]
        if world.carrying is not None and (
            ahead_is_free and getattr(view.front, "type", "door") == "door"
            if self._legacy
            else view.front is None
        ):
            plans["drop"] = [DROP]
        for seen, way in reachable:
            if seen.state == "open":
                plans[f"go through {seen.name}"] = [*way, FORWARD]
            elif self._can_open(seen):
                plans[f"toggle and go through {seen.name}"] = [*way, TOGGLE, FORWARD]
            if seen.is_in_front and self._can_toggle(seen):
                plans["toggle"] = [TOGGLE]
        for seen, way in reachable:
            plans[f"go to {seen.name}"] = way
        return plans

    def _can_toggle(self, seen: Seen) -> bool:
        if self._legacy:
            # AgentGym offers it neither for boxes nor to close a door.
            return seen.state != "open" and self._can_open(seen)
        return seen.kind == "box" or self._can_open(seen)

    def _can_open(self, door: Seen) -> bool:
        if door.state != "locked":
            return door.kind == "door"
        carried = self._world.carrying
        return carried is not None and (carried.type, carried.color) == ("key", door.color)

    def _door_is_open(self) -> bool:
        cell = self._world.grid.get(*self._world.front_pos)
        return cell is not None and cell.type == "door" and bool(cell.is_open)

    def _state(self) -> tuple[Any, ...]:
        """What an action may change, as far as the agent is concerned."""
        world = self._world
        front = world.grid.get(*world.front_pos)
        facing = None if front is None else (id(front), getattr(front, "is_open", None))
        return (*map(int, world.agent_pos), int(world.agent_dir), id(world.carrying), facing)

    def _refuse(self, command: str) -> str:
        if self._legacy:
            text = "The action is not recognized. Please check valid actions."
            return f"{text}\n{self._describe_actions()}"
        shown = command if len(command) <= 80 else f"{command[:77]}..."
        return f'"{shown}" is not possible now.\n{self._describe_actions()}'

    def _describe(self, over: bool = False) -> str:
        look = self._describe_as_agentgym() if self._legacy else self._describe_view()
        if self._legacy and over and self._solved:
            look += "\n The task is completed."
        elif not self._legacy and over:
            look += "\nThe goal is reached." if self._solved else "\nThe goal is not reached."
        return f"{look}\n{self._describe_actions()}"

    def _describe_view(self) -> str:
        lines = [f"{seen.name}: {_place(seen)}" for seen in self._view.objects]
        listed = "You see:\n" + "\n".join(lines) if lines else "You see no objects."
        blocked = self._view.blocked_ahead
        ahead = f"Ahead is a {blocked[0]}, {blocked[1]} away. " if blocked else ""
        return f"{listed}\n{ahead}You carry {self._carried('nothing')}."

    def _describe_as_agentgym(self) -> str:
        parts = [
            f"There is a {seen.name} {_place_as_agentgym(seen)}. " for seen in self._view.objects
        ]
        parts.append("The room has walls around you.")
        ahead = self._view.wall_ahead
        if ahead:
            parts.append(f"You are facing a {ahead[0]} {ahead[1]} steps away.")
        carried = self._carried("")
        parts.append(f"You are {f'carrying {carried}' if carried else 'not carrying anything'}.")
        return "In front of you in this room, you can see several objects: " + " ".join(parts)

    def _describe_actions(self) -> str:
        if self._legacy:
            listed = ", ".join(f'"{action}"' for action in self.available_actions())
            return f"Available actions: [{listed}]"
        return f"Available actions: {', '.join(self.available_actions())}"

    def _carried(self, nothing: str) -> str:
        carried = self._world.carrying
        return nothing if carried is None else f"a {carried.color} {carried.type}"


def _normal(action: str, take: str) -> str:
    """An action as the list has it; both spellings of picking up are understood."""
    command = " ".join(action[:_MAX_COMMAND].lower().split()).removesuffix(".")
    for spelling in ("pick up ", "pickup "):
        if command.startswith(spelling):
            return f"{take} {command.removeprefix(spelling)}"
    return command


def _place(seen: Seen) -> str:
    side = f"{abs(seen.right)} {'right' if seen.right > 0 else 'left'}" if seen.right else ""
    ahead = f"{seen.ahead} ahead" if seen.ahead else ""
    return ", ".join(filter(None, (ahead, side)))


def _place_as_agentgym(seen: Seen) -> str:
    if seen.right == 0:
        return f"right in front of you {seen.ahead} steps away"
    side = "right" if seen.right > 0 else "left"
    return f"{seen.ahead} steps in front of you and {abs(seen.right)} steps to your {side}"
