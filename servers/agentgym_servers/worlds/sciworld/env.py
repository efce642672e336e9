"""SciWorld: elementary science in a simulated house (ScienceWorld, arXiv:2203.07540)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from agentgym_env.errors import BadRequest, EnvironmentFault
from agentgym_env.text_env import TextEnv
from agentgym_servers.worlds.sciworld.actions import (
    INSTRUCTION,
    VERBS,
    accepted,
    instruction_for,
    verbs_for,
)
from agentgym_servers.worlds.sciworld.oracle import gold_path
from agentgym_servers.worlds.sciworld.simulator import Simulator, borrow, find_java, give_back
from agentgym_servers.worlds.sciworld.tasks import parse_simplifications, sciworld_tasks

_MAX_ACTION = 1000
_UNKNOWN = "No known action matches that input."
_AMBIGUOUS = "Ambiguous request"
_READING = re.compile(r"([0-9]+):\t(.*)")
_NUMBER = re.compile(r"[+-]?\d+")
_TOLD = frozenset({"task", "help", "objects"})
"""What the simulator answers at any time, without taking it for an action."""
_RESET_TASK = re.compile(r"\s*reset\s+task\s*", re.ASCII | re.IGNORECASE)
_NO_RESET = "`reset task` is not possible here: what is done stays done."


class SciWorld(TextEnv):
    """Do an experiment, such as boiling water or finding out whether a thing conducts electricity.

    ## Description
    ScienceWorld (arXiv:2203.07540): elementary science in a simulated house with a workshop, a
    kitchen, a greenhouse and other places, simulated in a JVM.

    ## Observation
    The simulator's own text. The first observation is the task and what is seen at the start.

    ## Actions
    | action | effect |
    |---|---|
    | `look around`, `look at OBJECT`, `look in OBJECT`, `read OBJECT` | look |
    | `inventory`, `task` | list what you carry; repeat the task |
    | `open OBJECT`, `close OBJECT` | a door or a container |
    | `go to PLACE` | through an open door |
    | `pick up OBJECT`, `put down OBJECT`, `move OBJECT to OBJECT` | carry things |
    | `pour OBJECT into OBJECT`, `dunk OBJECT into OBJECT`, `mix OBJECT` | handle substances |
    | `activate OBJECT`, `deactivate OBJECT`, `use OBJECT`, `use OBJECT on OBJECT` | use devices |
    | `connect OBJECT to OBJECT`, `disconnect OBJECT` | electrical parts |
    | `eat OBJECT`, `flush OBJECT` | |
    | `focus on OBJECT` | name the thing that the task is about; a wrong one fails the task |
    | `wait`, `wait1` | let ten moves pass, or one |

    An ambiguous action is answered by numbered readings; the next action is a number. `reset task`
    is not available. With `teleportAction` there is `teleport to PLACE` as well.

    ## Rewards
    The increase of the score, which is the share of the task that is done, 0 to 1. The rewards of
    an episode add up to its score. Focusing on a wrong thing sets the score to -1.

    ## Termination
    The episode terminates when the task is done and when it has failed. It is truncated after 100
    turns, and when more than `move_limit` moves are used.

    ## Tasks
    `TASK/VARIATION` for the 30 tasks, in ScienceWorld's own splits; `sciworld_N` is AgentGym's
    number N, 0 to 4638. The category is the task.

    | split | tasks |
    |---|---|
    | `train` | 3,592 |
    | `dev` | 1,796 |
    | `test` | 1,819 |
    | `paper` | 200 |
    | `paper_train` | 2,120 |
    | `paper_clean` | 139 |

    `paper` and `paper_train` are the tasks of arXiv:2509.08755 (docs/paper_tasks.md); they overlap
    the other splits, and share 61 tasks. `paper_clean` is `paper` without these.

    ## Arguments
    - `simplifications` (default `""`): `easy`, or some of `teleportAction`, `openDoors`,
      `openContainers`, `selfWateringFlowerPots`, `noElectricalAction`, as a list or with
      commas; without electrical actions the 4 tasks that need them are left out
    - `move_limit` (default `100`): moves of an episode

    ## Data
    The simulator of `scienceworld` 1.2.3 (Apache-2.0), run at run time; it needs Java 8 or newer.

    ## Registered id
    `agentgym/SciWorld-v0`
    """

    instruction = INSTRUCTION
    verbs = VERBS
    isolated = True
    can_copy = False
    step_timeout_s = 360.0  # a simulator has its own deadline; this one would end its neighbours
    max_sessions = 64  # eight share a JVM

    def __init__(
        self,
        render_mode: str | None = None,
        simplifications: str | Sequence[str] = "",
        move_limit: int = 100,
    ) -> None:
        if not isinstance(move_limit, int) or move_limit < 1:
            raise BadRequest(f"move_limit is a whole number from 1, got {move_limit!r:.80}")
        find_java()  # to report it now, and not in the first episode
        self._simplifications = parse_simplifications(simplifications)
        self._move_limit = move_limit
        self.tasks = sciworld_tasks(self._simplifications)  # type: ignore[misc]
        self.instruction = instruction_for(self._simplifications)  # type: ignore[misc]
        self.verbs = verbs_for(self._simplifications)  # type: ignore[misc, assignment]
        super().__init__(render_mode)
        self._simulator: Simulator | None = None
        self._percent = 0
        self._out_of_moves = False
        self._taken: list[str] = []
        self._valid: list[str] | None = None

    def _reset(self, task: str) -> str:
        name, _, variation = task.partition("/")
        if self._simulator is None or not self._simulator.alive:
            self._simulator = borrow()
        self._simulator.load(name, int(variation), self._simplifications)
        self._percent, self._taken, self._valid = 0, [], None
        self._invalid, self._readings, self._out_of_moves = False, 0, False
        self._name, self._variation = name, int(variation)
        return f"{self._simulator.describe_task()}\n{self._simulator.step('look around')}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        self._invalid = True
        if len(action) > _MAX_ACTION:
            return _UNKNOWN, 0.0, False
        action = action.strip().removesuffix(".").rstrip()
        if _RESET_TASK.fullmatch(action):
            return _NO_RESET, 0.0, False
        simulator = self._running()
        observation = simulator.step(action)
        self._invalid = observation.startswith(_UNKNOWN) or not self._is_a_choice(action)
        if observation.startswith(_AMBIGUOUS):
            observation, self._readings = numbered_apart(observation)
        elif action.lower() not in _TOLD:
            self._readings = 0
        self._valid = None
        self._taken.append(action)
        before, self._percent = self._percent, simulator.score()
        over = simulator.completed() or self._percent < 0
        self._out_of_moves = not over and simulator.moves() > self._move_limit
        return observation, (self._percent - before) / 100, over

    def world_limit(self) -> bool:
        """Whether the moves were used up."""
        return self._out_of_moves

    def success(self) -> bool:
        """Whether the whole task is done."""
        return self._percent >= 100

    def score(self) -> float:
        """The share of the task that is done, 0 to 1, or -1 after a wrong focus."""
        return self._percent / 100

    def invalid_action(self) -> bool:
        """Whether the last action was not understood, or chose none of the meanings listed."""
        return self._invalid

    def available_actions(self) -> list[str]:
        """What the simulator accepts now, some hundreds of actions, or the numbers it asks for.

        It takes the simulator tens of milliseconds, and is asked for once a turn.
        """
        if self._valid is None:
            simulator = self._running()
            listed = simulator.listed_actions()
            if not self._readings:
                listed = accepted(listed, simulator.names_in_reach())
            self._valid = listed
        return list(self._valid)

    def expert(self) -> Iterator[str]:
        """Follow the simulator's own way from the start of the episode.

        It yields nothing when other actions were taken before, or when that way takes more moves
        than the limit allows (docs/sciworld.md lists the tasks).
        """
        path = gold_path(self._name, self._variation, self._simplifications)
        if path.moves > self._move_limit:
            return
        for done in range(len(self._taken), len(path.actions)):
            if self._taken != path.actions[:done]:
                return
            yield path.actions[done]

    def close(self) -> None:
        """Leave the simulator to the next episode."""
        simulator, self._simulator = self._simulator, None
        if simulator is not None:
            give_back(simulator)
        super().close()

    def _is_a_choice(self, action: str) -> bool:
        """Whether an action may follow what was said before: after a list, a number from it."""
        # An empty answer cancels the request, as the list says.
        if not self._readings or not action or action.lower() in _TOLD:
            return True
        return _NUMBER.fullmatch(action) is not None and 0 <= int(action) < self._readings

    def _running(self) -> Simulator:
        if self._simulator is None:
            raise EnvironmentFault("the environment is closed; reset it", "environment_error")
        return self._simulator


def numbered_apart(observation: str) -> tuple[str, int]:
    """A list of readings in which equal ones are told apart, and how many there are."""
    lines = observation.split("\n")
    found = {n: match[2] for n, line in enumerate(lines) if (match := _READING.fullmatch(line))}
    total, so_far = Counter(found.values()), Counter[str]()
    for n, reading in found.items():
        so_far[reading] += 1
        if total[reading] > 1:
            lines[n] += f", {so_far[reading]} of {total[reading]}"
    return "\n".join(lines), len(found)
