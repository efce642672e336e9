"""TextEnv: the base class of text environments; knows nothing about servers, models or chat.

```python
class Guess(TextEnv):
    instruction = "Guess the number from 1 to 9. Answer with a number."
    tasks = TaskSet({"train": list("123456"), "test": list("789")})

    def _reset(self, task: str) -> str:
        self.number = int(task)
        return "I have a number in mind."

    def _step(self, action: str) -> tuple[str, float, bool]:
        right = action.strip() == str(self.number)
        return ("Right!" if right else "No."), float(right), right
```
"""

from __future__ import annotations

import difflib
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, SupportsFloat, SupportsIndex

import gymnasium
import numpy as np

from agentgym_env.errors import (
    BadRequest,
    CannotCopy,
    EnvironmentFault,
    EpisodeOver,
    UnknownSplit,
    UnknownTask,
)
from agentgym_env.gymnasium_text import Translation, translation
from agentgym_env.spaces import TextSpace, clean_text
from agentgym_env.tools import ACT, ToolSpec, Verb, specs_of


class TaskSet:
    """Task ids in named splits that share no task, with optional categories for evaluation tables.

    `aliases` are other names that `reset` accepts, such as another project's numbers.
    `selections` are further lists by name, such as another project's evaluation tasks: they are
    used like splits, but may share tasks with splits and with each other, or have their own.

    Order is part of the contract: `split("test")[0]` is the same task on every machine.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[str]],
        categories: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        selections: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not splits or not any(splits.values()):
            raise ValueError("a TaskSet needs at least one split with one task")
        self._splits = MappingProxyType({name: tuple(ids) for name, ids in splits.items()})
        self._selections = MappingProxyType(
            {name: tuple(ids) for name, ids in (selections or {}).items()}
        )
        self._split_of: dict[str, str] = {}
        for name, ids in self._splits.items():
            for task in ids:
                _check_is_text(task, name)
                if task in self._split_of:
                    raise ValueError(
                        f"task {task!r} is listed twice: in split {self._split_of[task]!r} and in "
                        f"{name!r}; splits share no task"
                    )
                self._split_of[task] = name
        for name, ids in self._selections.items():
            self._add_selection(name, ids)
        self._categories = MappingProxyType(dict(categories or {}))
        self._aliases = MappingProxyType(dict(aliases or {}))

    @property
    def splits(self) -> Mapping[str, tuple[str, ...]]:
        """Split name -> its task ids, in order."""
        return self._splits

    def _add_selection(self, name: str, ids: Sequence[str]) -> None:
        if name in self._splits:
            raise ValueError(f"{name!r} is a split and a selection; give them different names")
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(f"selection {name!r} is empty, or lists a task twice")
        for task in ids:
            _check_is_text(task, name)
            self._split_of.setdefault(task, name)

    @property
    def selections(self) -> Mapping[str, tuple[str, ...]]:
        """Selection name -> its task ids, in order."""
        return self._selections

    @property
    def aliases(self) -> Mapping[str, str]:
        """Alias -> task id."""
        return self._aliases

    @property
    def ids(self) -> tuple[str, ...]:
        """Every task id, split after split, then those that only selections have."""
        return tuple(self._split_of)

    def split(self, name: str) -> tuple[str, ...]:
        """The task ids of one split or selection; raises `UnknownSplit`."""
        found = self._splits if name in self._splits else self._selections
        if name not in found:
            known = ", ".join(map(repr, [*self._splits, *self._selections]))
            raise UnknownSplit(f"no split {name!r}; available: {known}")
        return found[name]

    def canonical(self, task: str) -> str:
        """The id of a task, given by its id or an alias."""
        return self._aliases.get(task, task)

    def split_of(self, task: str) -> str:
        """The split of `task`, or its selection if it is in no split.

        Raises `UnknownTask` with the nearest ids.
        """
        task = self.canonical(task)
        if task not in self._split_of:
            near = difflib.get_close_matches(str(task)[:100], self._split_of, n=3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
            examples = [*self.ids[:2], *list(self._aliases)[:1]]
            others = f"such as {', '.join(map(repr, examples))}"
            raise UnknownTask(f"no task {str(task)[:100]!r} among {len(self)}; {hint or others}")
        return self._split_of[task]

    def category(self, task: str) -> str | None:
        """The world's own category of a task (TextCraft's depth, BabyAI's level), if it has one."""
        return self._categories.get(task)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it never changes, and may be long

    def __reduce__(self) -> tuple[type[TaskSet], tuple[dict[str, Any], ...]]:
        parts = (self._splits, self._categories, self._aliases, self._selections)
        return type(self), tuple(map(dict, parts))

    def __contains__(self, task: object) -> bool:
        return task in self._split_of

    def __len__(self) -> int:
        return len(self._split_of)


def _check_is_text(task: object, split: str) -> None:
    if not isinstance(task, str):
        raise TypeError(f"task ids are strings, got {task!r} in split {split!r}")


OPTION_KEYS = frozenset({"task", "split"})
MAX_SEED: Final = 2**63 - 1
"""The largest seed: the largest integer that every JSON and MessagePack reader supports."""
_STARTS = 800
_TEST_STARTS = 200


class TextEnv(gymnasium.Env[str, str]):
    """A text environment: observations and actions are strings.

    A subclass sets `instruction` and `tasks` and writes `_reset` and `_step`; it may write
    `available_actions`, `expert`, `world_limit`, `success`, `score`, `invalid_action`, `details`
    and `render`. It draws randomness from `self.rng` only, which is seeded by the episode's seed
    and task: the same pair gives the same episode in every process. An invalid action is answered
    by an observation, never an exception.
    """

    instruction: ClassVar[str]
    """The instruction for the policy, given before the first observation."""
    tasks: ClassVar[TaskSet]
    default_split: ClassVar[str] = "train"
    """The split that `reset` draws from if neither a task nor a split is given."""

    isolated: ClassVar[bool] = False
    """Whether a server steps it in separate processes: for environments that block or may crash."""
    step_timeout_s: ClassVar[float] = 60.0
    """Timeout of one reset or step on a server, after which its episode is lost; a server may set
    another. It ends the code by an exception, or kills the process of an isolated environment."""

    max_sessions: ClassVar[int] = 16_384
    """Maximum sessions per server, for environments with expensive sessions; a server may set
    another."""

    can_copy: ClassVar[bool] = True
    """Whether `copy.deepcopy` and `pickle` give an independent environment in the same state. It
    is false where the state is in another program, such as a browser."""

    verbs: ClassVar[Sequence[Verb]] = ()
    """The forms of its actions, from which tools are derived."""

    observation_space = TextSpace()
    action_space = TextSpace()
    # A text has no frame rate, but Gymnasium's checker wants one declared.
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    rng: random.Random
    """The episode's randomness. Only `random()` is stable across Python versions."""
    episode_seed: int
    """The episode's seed, for a simulator that takes one; use `rng` for everything else."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.set_render_mode(render_mode)
        self.env_errors: list[str] = []
        """Names of failed services, such as a search engine; a server counts and clears them."""
        self._task: str | None = None
        self._turn = 0
        self._over = True
        self._terminated = False
        self._return = 0.0
        self._observation = ""
        self._expert: Iterator[str] | None = None
        self._expert_turn = -1
        self._expert_action: str | None = None

    def set_render_mode(self, render_mode: str | None) -> None:
        """Set what `render` returns; raises `BadRequest` for a mode that `metadata` lacks."""
        check_render_mode(render_mode, type(self).__name__, self.metadata["render_modes"])
        self.render_mode = render_mode

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: everything but the oracle, which begins anew from the current state."""
        if not self.can_copy:
            raise CannotCopy(
                f"{type(self).__name__} cannot be copied or pickled; make a second one, reset it "
                "with the same task and seed, and repeat the actions"
            )
        return {**self.__dict__, "_expert": None, "_expert_turn": -1}

    @classmethod
    def for_serving(cls, settings: Mapping[str, Any]) -> type[TextEnv]:
        """The class whose `isolated`, `step_timeout_s` and `max_sessions` a server uses.

        `settings` are the constructor's arguments. Default: this class, whatever they are.
        """
        return cls

    @classmethod
    def from_gymnasium(
        cls,
        env: str | Callable[[], gymnasium.Env[Any, Any]],
        describe: Callable[[Any, gymnasium.Env[Any, Any]], str] | None = None,
        parse: Sequence[str] | Callable[[str], Any] | None = None,
        *,
        instruction: str | None = None,
        refused: float = 0.0,
        **settings: Any,
    ) -> type[TextEnv]:
        """A subclass of `GymnasiumText` for an environment of Gymnasium's with discrete actions.

        `env` is its id, made with `settings`, or a callable that makes it. `describe` writes an
        observation as text, given the environment too; default: its numbers. `parse` is the names
        of the actions, in the order of their numbers, or a function from a text to an action, or
        to None for a text that is not an action; default: the numbers. The reward of such a text
        is `refused`.
        """
        translated = translation(env, describe, parse, settings)
        attributes = {
            "__doc__": f"{translated.title} of Gymnasium, as text.",
            "instruction": instruction or translated.instruction,
            "translation": translated,
            "names": translated.names,
            "refused": refused,
        }
        return type(translated.class_name, (GymnasiumText,), attributes)

    @abstractmethod
    def _reset(self, task: str) -> str:
        """Start `task` and return the first observation."""

    @abstractmethod
    def _step(self, action: str) -> tuple[str, float, bool]:
        """Apply one action; return the observation, this step's reward, and whether it ended."""

    def available_actions(self) -> list[str] | None:
        """The available actions, or None if the environment does not list them."""
        return None

    def tool_specs(self) -> list[ToolSpec]:
        """Its actions as tools. Default: those of `verbs`, or one tool that takes an action."""
        return specs_of(self.verbs) if self.verbs else [ACT]

    def expert(self) -> Iterator[str]:
        """Yield the oracle's actions from the current state on; `self` may be read between them."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    def has_expert(self) -> bool:
        """Whether the environment has an expert. Default: whether the class defines one."""
        return type(self).expert is not TextEnv.expert

    def expert_thought(self) -> str:
        """Why the oracle takes its next action, in words; default: empty.

        Called after `expert_action`. Demonstrations in the format `react` contain it.
        """
        return ""

    def world_limit(self) -> bool:
        """Whether the last step used up the environment's own limit; default: it has none.

        `terminated` is the end of the task, `truncated` that of a limit: the return of an episode
        that was truncated could have been higher.
        """
        return False

    def success(self) -> bool:
        """Whether the task is solved. Default: it ended with a positive return."""
        return self._terminated and self._return > 0

    def score(self) -> float:
        """The environment's own score. Default: the sum of rewards so far."""
        return self._return

    def invalid_action(self) -> bool | None:
        """Whether the last action was invalid; None if this is not known."""
        return None

    def details(self) -> dict[str, str | int | float]:
        """Further entries of the info: texts and finite numbers."""
        return {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        `options` may name `task` (an id of `tasks`) or `split` (draw one of its tasks). The info
        holds `task` and `seed`; resetting with both again gives the same episode.
        """
        super().reset(seed=seed)
        check_seed(seed)
        episode_seed = draw_episode_seed(self.np_random) if seed is None else seed
        self._task = task = choose_task(self.tasks, self.default_split, episode_seed, options)
        self.episode_seed = int(episode_seed)
        self.rng = random.Random(f"{episode_seed}/{task}")
        self._turn, self._return, self._over, self._terminated = 0, 0.0, False, False
        self._expert, self._expert_turn = None, -1
        observation = self._reset(task)
        if not isinstance(observation, str):
            raise EnvironmentFault(
                f"{type(self).__name__}._reset returned a {type(observation).__name__}; return "
                "the observation alone, a str"
            )
        self._observation = clean_text(observation)
        return self._observation, {**self._info(), "seed": self.episode_seed}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply one action; raises `EpisodeOver` outside an episode, `BadRequest` on non-text."""
        if not isinstance(action, str):
            raise BadRequest(f"an action is a str, got {type(action).__name__}")
        if self._over:
            reason = "no episode was started" if self._task is None else "the episode has ended"
            raise EpisodeOver(f"{reason}; call reset() before step()")
        observation, reward, terminated = self._checked(self._step(clean_text(action)))
        self._turn += 1
        self._terminated, truncated = bool(terminated), bool(self.world_limit())
        self._over = self._terminated or truncated
        value = self._finite("reward", reward)
        self._return += value
        self._observation = clean_text(observation)
        info, invalid = self._info(), self.invalid_action()
        if invalid is not None:
            info = {"invalid_action": bool(invalid), **info}
        return self._observation, value, self._terminated, truncated, info

    def _checked(self, result: Any) -> tuple[str, float, bool]:
        """What `_step` returned, if it may be that; a float for `ended` is a swapped reward."""
        match result:
            case (str() as observation, reward, ended) if not isinstance(ended, float | str):
                if not isinstance(reward, str):
                    return observation, reward, ended
        raise EnvironmentFault(
            f"{type(self).__name__}._step returned {result!r:.200}; return "
            "(observation, reward, ended): a str, a number and a bool"
        )

    def expert_action(self) -> str | None:
        """The oracle's action for this turn, None if it has none left; repeated calls are safe."""
        if self._over:
            raise EpisodeOver("the expert needs an episode; call reset() first")
        if self._expert_turn != self._turn:
            if self._expert is None:
                self._expert = self.expert()
            self._expert_action = next(self._expert, None)
            self._expert_turn = self._turn
        return self._expert_action

    def render(self) -> Any:
        """The last observation (`ansi`); other modes are the subclass's."""
        return self._observation if self.render_mode == "ansi" else None

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            name: self._plain(name, value) for name, value in self.details().items()
        }
        info["task"] = self._task
        info["turn"] = self._turn
        info["success"] = bool(self.success())
        info["score"] = self._finite("score", self.score())
        return info

    def _plain(self, name: str, value: str | int | float) -> str | int | float:
        if isinstance(value, float):
            return self._finite(f"detail {name!r}", value)
        if isinstance(value, str | int):
            return value
        raise EnvironmentFault(
            f"{type(self).__name__} gave the detail {name!r} as {type(value).__name__}; details "
            "are texts and numbers"
        )

    def _finite(self, what: str, number: SupportsFloat) -> float:
        value = float(number)
        if math.isfinite(value):
            return value
        raise EnvironmentFault(
            f"{type(self).__name__} gave the {what} {value}; rewards, scores and details are finite"
        )


class GymnasiumText(TextEnv):
    """A `TextEnv` around a Gymnasium environment; `TextEnv.from_gymnasium` makes subclasses.

    Tasks: numbers in the splits `train` (0 to 799) and `test` (800 to 999). They are starts: the
    environment's randomness is seeded by the episode's seed and its task.
    Reward: the environment's. Success: it ended, and its last reward was above 0.
    """

    translation: ClassVar[Translation]
    names: ClassVar[tuple[str, ...]]
    """Names of the actions, in the order of their numbers; empty where only `parse` knows them."""
    refused: ClassVar[float] = 0.0
    """Reward for a text that is not an action. Where another turn costs, and waiting does not, a
    policy learns to write such texts: let that cost too."""

    tasks = TaskSet(
        {
            "train": [str(number) for number in range(_STARTS)],
            "test": [str(number) for number in range(_STARTS, _STARTS + _TEST_STARTS)],
        }
    )

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.env = self.translation.make()
        """The environment of Gymnasium's."""
        self.observation: Any = None
        """Its last observation."""
        self._native_info: dict[str, Any] = {}
        self._reward = 0.0
        self._truncated = False

    def _reset(self, task: str) -> str:
        self.observation, self._native_info = self.env.reset(seed=int(self.rng.random() * 2**31))
        self._reward, self._truncated = 0.0, False
        return self.translation.describe(self.observation, self.env)

    def world_limit(self) -> bool:
        """Whether the environment's own time limit was reached."""
        return self._truncated

    def _step(self, action: str) -> tuple[str, float, bool]:
        chosen = self.translation.parse(action)
        if chosen is None:
            text = self.translation.describe(self.observation, self.env)
            return f"{self.translation.reject(action)}\n{text}", self.refused, False
        self.observation, reward, ended, self._truncated, self._native_info = self.env.step(chosen)
        self._reward = float(reward)
        text = self.translation.describe(self.observation, self.env)
        return text, self._reward, bool(ended)

    def success(self) -> bool:
        """Whether the environment ended with a reward above 0."""
        return self._terminated and self._reward > 0

    def available_actions(self) -> list[str] | None:
        """The actions' names; where the environment gives an `action_mask`, those it allows."""
        allowed = self._native_info.get("action_mask")
        if allowed is None:
            return list(self.names) or None
        return [name for name, is_allowed in zip(self.names, allowed, strict=False) if is_allowed]

    def tool_specs(self) -> list[ToolSpec]:
        """One tool, whose argument is the name of an action."""
        if not self.names:
            return super().tool_specs()
        schema = {"type": "string", "enum": list(self.names)}
        parameters = {"type": "object", "properties": {"action": schema}, "required": ["action"]}
        return [ToolSpec(ACT.name, ACT.description, parameters, ACT.pattern)]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
        super().close()


def draw_episode_seed(generator: np.random.Generator) -> int:
    """The seed of an episode without one: the same for client and server."""
    # PCG64's raw stream is stable over numpy versions; Generator's methods are not.
    return int(generator.bit_generator.random_raw()) >> 12


def choose_task(
    tasks: TaskSet, default_split: str, episode_seed: int, options: dict[str, Any] | None
) -> str:
    """The task of an episode: the given one, or one drawn with the episode's seed."""
    check_options(options)
    options = options or {}
    task, split = options.get("task"), options.get("split")
    check_names(task, split)
    if task is None:
        ids = tasks.split(default_split if split is None else split)
        return ids[int(random.Random(f"task/{episode_seed}").random() * len(ids))]
    home = tasks.split_of(task)
    selected = tasks.selections.get(split or "", ())
    if split not in (None, home) and tasks.canonical(task) not in selected:
        raise BadRequest(f"task {task!r} is in split {home!r}, not in {split!r}")
    return tasks.canonical(str(task))


def check_names(task: object, split: object) -> None:
    """Raise `BadRequest` for a task or a split that is not a text."""
    for name, text in (("task", task), ("split", split)):
        if text is not None and not isinstance(text, str):
            raise BadRequest(f"a {name} is a str, got {text!r:.100}")


def check_seed(seed: object) -> None:
    """Raise `BadRequest` for a seed that is not a whole number, is negative or too large."""
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, SupportsIndex):
        raise BadRequest(f"a seed is an int, got {seed!r:.100}")
    if not 0 <= seed.__index__() <= MAX_SEED:
        raise BadRequest(f"a seed is from 0 to {MAX_SEED}, got {seed}")


def check_render_mode(
    render_mode: str | None, named: str, modes: Sequence[str] | None = None
) -> None:
    """Raise `BadRequest` for a render mode that is not one of `modes`.

    By default these are the modes of an environment behind a server.
    """
    served = TextEnv.metadata["render_modes"]
    if render_mode is None or render_mode in (served if modes is None else modes):
        return
    remedy = " and print what render() returns" if render_mode == "human" else ", or leave it out"
    if modes is None:
        remedy += ". Where the class draws pictures, server='inprocess' gives them"
    available = " or ".join(f"render_mode={mode!r}" for mode in modes or served)
    raise BadRequest(f"{named} has no render_mode {render_mode!r}; use {available}{remedy}")


def check_options(options: Mapping[str, Any] | None) -> None:
    """Raise `BadRequest` for options that `reset` does not know."""
    unknown = set(options or {}) - OPTION_KEYS
    if unknown:
        raise BadRequest(
            f"reset options {sorted(unknown)} are not known; use {sorted(OPTION_KEYS)}"
        )
