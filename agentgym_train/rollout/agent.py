"""Agents: how a conversation is built around a policy; knows nothing about tokens or engines.

An agent turns observations into messages. Only tokens that the policy sampled are trained on,
whatever text an agent adds.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final

from agentgym_env.actions import ActionFormat, action_format
from agentgym_env.entry_points import AGENTS, load_named, plugin, plugins
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError, Outcome
from agentgym_train.config.checks import Typed, check_keys, type_and_fields, type_of


@dataclass(frozen=True, slots=True)
class ContextReset:
    """Starts a new context in place of a long one."""

    opening: str
    """Its first message."""
    keep: int = 0
    """Number of latest exchanges that follow the opening, with the ids that were sampled. With 0
    the opening must contain everything."""


@dataclass(frozen=True, slots=True)
class Message:
    """The next message to the policy."""

    text: str
    acts: bool = True
    """Whether the response contains an action; False for a non-action turn, such as a plan."""
    context_reset: ContextReset | None = None
    """Start a new context, which is a new training row: sampled tokens stay in the row of the
    context in which they were sampled."""


class Agent:
    """The conversation of one episode: observations as they come. Subclasses change parts of it."""

    trials: int = 1
    """Trials that an episode is planned for. They share its horizon: with two, the first has half
    of the turns, and the second what is left."""

    def __init__(self, form: ActionFormat) -> None:
        self.format = form
        """How the policy writes an action."""

    def begin(self, observation: str) -> Message:
        """The first observation."""
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """The observation after an action."""
        return Message(observation)

    def after_non_action(self, text: str) -> Message:
        """Follows the response to a message with `acts=False`."""
        raise ConfigError(
            f"the agent {type(self).__name__} requests a non-action turn; define `after_non_action`"
        )

    def reflection(self, outcome: Outcome, observation: str) -> Message | None:
        """A question after the episode, if there is to be another trial; None ends it."""
        return None

    def begin_again(self, reflection: str, observation: str) -> Message:
        """The first observation of another trial, in a new context."""
        raise ConfigError(
            f"the agent {type(self).__name__} asks for a reflection; define `begin_again` to use it"
        )


class PlanThenAct(Agent):
    """Plan-and-solve (arXiv:2305.04091): a plan first, in a turn without an environment step."""

    ask = "First write a short plan of how to reach the goal. Do not act yet."
    go = "Now carry out the plan, one action at a time."

    def begin(self, observation: str) -> Message:
        """Ask for the plan."""
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def after_non_action(self, text: str) -> Message:
        """Ask for actions after the plan."""
        return Message(self.go)


class Reflect(Agent):
    """Reflexion (arXiv:2303.11366): after a failure, a reflection, and the same episode once more.

    Both trials share the horizon. The trajectory has both, and the reflection between them. Only
    the rewards of the second trial count, so that failing first is not rewarded; `Turn.info` keeps
    those of the first.
    """

    trials = 2
    ask = (
        "The episode is over, and the goal was not reached. Say in a few sentences what went wrong "
        "and what to do differently. You will start anew with only this in mind."
    )

    def __init__(self, form: ActionFormat) -> None:
        super().__init__(form)
        self._trial = 1

    def reflection(self, outcome: Outcome, observation: str) -> Message | None:
        """Ask for a reflection after a failure, while trials are left."""
        if outcome not in ("failure", "horizon", "world_limit") or self._trial >= self.trials:
            return None
        self._trial += 1
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def begin_again(self, reflection: str, observation: str) -> Message:
        """The reflection, then the observation."""
        opening = f"What you learned from an earlier trial:\n{reflection}\n\n{observation}"
        return Message(observation, context_reset=ContextReset(opening))


class Window(Agent):
    """At most `size` exchanges in the context, after the first observation.

    When the context is full, the older half is dropped, so a long episode has about 2 / size rows
    per turn. Dropping one exchange per turn would need one row per turn.
    """

    def __init__(self, form: ActionFormat, size: int = 8) -> None:
        super().__init__(form)
        if size < 2:
            raise ConfigError(f"a window has at least 2 exchanges, got {size}; try `window:8`")
        self._size = size
        self._first = ""
        self._seen: list[str] = []
        self._here = 0

    def begin(self, observation: str) -> Message:
        """The first observation stays in every context."""
        self._first, self._seen, self._here = observation, [observation], 0
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """Start a new context when the window is full."""
        self._seen.append(observation)
        self._here += 1
        if self._here < self._size:
            return Message(observation)
        self._here = keep = self._size // 2
        left_out = len(self._seen) - 1 - keep
        turns = "turn is" if left_out == 1 else "turns are"
        opening = (
            f"{self._first}\n\n[{left_out} earlier {turns} left out]\n\n{self._seen[-1 - keep]}"
        )
        return Message(observation, context_reset=ContextReset(opening, keep))


class Summary(Agent):
    """After every `size` exchanges the policy summarizes them; the context restarts from that."""

    ask = "Sum up what happened so far and what matters for the goal. Only this will be left of it."

    def __init__(self, form: ActionFormat, size: int = 8) -> None:
        super().__init__(form)
        if size < 1:
            raise ConfigError(f"a summary has at least 1 exchange, got {size}; try `summary:8`")
        self._size = size
        self._first = self._last = ""
        self._here = 0

    def begin(self, observation: str) -> Message:
        """The first observation stays in every context."""
        self._first, self._here = observation, 0
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """Ask for a summary after every `size` exchanges."""
        self._last = observation
        self._here += 1
        if self._here < self._size:
            return Message(observation)
        self._here = 0
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def after_non_action(self, text: str) -> Message:
        """Continue from the summary."""
        opening = f"{self._first}\n\n[Your summary of what followed]\n{text}\n\n{self._last}"
        return Message(self._last, context_reset=ContextReset(opening))


AgentFactory = Callable[[], Agent]
_KINDS: Final[dict[str, Callable[..., Agent]]] = {
    "plain": Agent,
    "react": Agent,
    "act_only": Agent,
    "plan_then_act": PlanThenAct,
    "reflect": Reflect,
    "window": Window,
    "summary": Summary,
}
_FORMATS: Final = {"react": "react", "act_only": "act"}
"""Agents with the plain conversation and an action format of their own."""
_WITH_TOOLS: Final = frozenset({"plain", "window"})
"""Agents whose every turn is an action."""
_SIZED: Final = ("window", "summary")


def format_of(agent: Typed, action_format_name: str) -> ActionFormat:
    """The action format of an agent: its own if its name is one, else the one that is given."""
    name = type_of(agent)
    if action_format_name == "tools" and name.partition(":")[0] in _KINDS.keys() - _WITH_TOOLS:
        raise ConfigError(
            f"the agent {name} has turns without a tool call; with action_format tools use the "
            f"agent {' or '.join(sorted(_WITH_TOOLS))}, or your own"
        )
    own = _FORMATS.get(name)
    if own is not None and action_format_name not in ("plain", own):
        raise ConfigError(
            f"the agent {name} has the action format {own}, got {action_format_name!r}; leave "
            "action_format away, or take another agent, such as plain"
        )
    return action_format(own or action_format_name)


def agent_factory(agent: Typed, form: ActionFormat) -> AgentFactory:
    """A maker of agents: of a type, `name:SIZE` or `package.module:Class`; tries it once.

    Further fields of `agent` are arguments of a class of the user, or the size of a window.
    """
    name, values = type_and_fields(agent)
    kind, _, rest = name.partition(":")
    if is_black_box(agent):
        raise ConfigError(
            f"the agent {name[:80]!r} is a program of its own, which needs a policy whose tokens "
            "are sampled here: a model (hf:PATH_OR_ID) or a vLLM server"
        )
    if kind in _KINDS and (not rest or kind in _SIZED):
        made = _KINDS[kind]
        check_keys(f" in agent of type {kind}", values, ["size"] if kind in _SIZED else [])
        if rest and not rest.isdecimal():
            raise ConfigError(f"the size of {name!r} is not a number; write, for example, {kind}:8")
        if rest and "size" in values:
            raise ConfigError(f"the size is given twice: {name!r}, and size {values['size']!r:.80}")
        if rest:
            values["size"] = int(rest)
        elif type(values.get("size", 1)) is not int:
            raise ConfigError(f"agent.size must be an integer, got {values['size']!r:.80}")
    elif rest:
        made = _own(name, form, values)
    else:
        raise ConfigError(
            f"no agent {name!r}; choose from {', '.join(_KINDS)}, or name your own as "
            f"package.module:Class, {_black_boxes(name)}"
        )
    made(form, **values)
    return lambda: made(form, **values)


def with_type(agent: Typed) -> Typed:
    """The agent with a type: YAML reads `command: python agent.py` as a mapping without one."""
    if isinstance(agent, dict) and "type" not in agent:
        for name, target in agent.items():
            if is_black_box(name):
                rest = {key: value for key, value in agent.items() if key != name}
                return {"type": f"{name}:{'' if target is None else target}", **rest}
    return agent


def is_black_box(agent: Typed) -> bool:
    """Whether an agent is a program of its own: one of a kind that is an entry point."""
    return _black_box_kind(agent) is not None


def black_box(agent: Typed) -> Any:
    """The `rollout.black_box.BlackBox` of an agent, with its settings; None for other agents.

    Raises `ConfigError` if it is invalid.
    """
    kind = _black_box_kind(agent)
    if kind is None:
        return None
    name, settings = type_and_fields(agent)
    try:
        made = kind.load()(name.partition(":")[2].strip(), settings)
    except AgentGymError:
        raise
    except Exception as error:
        # Code of another package may fail in any way.
        raise ConfigError(
            f"the agent {kind.name} of {kind.value} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(made, "connect"):
        raise ConfigError(
            f"the agent {kind.name} of {kind.value} is no `BlackBox`: it has no method `connect`"
        )
    return made


def _black_box_kind(agent: Typed) -> EntryPoint | None:
    kind = type_of(agent).partition(":")[0]
    return None if kind in _KINDS else plugin(AGENTS, kind)


def _black_boxes(agent: str) -> str:
    """The kinds of black boxes, for an error about an agent that may have meant one."""
    kinds = sorted(point.name for point in plugins(AGENTS))
    meant = agent.partition(":")[0].strip().lower()
    near = difflib.get_close_matches(meant, [*kinds, *_KINDS], n=1)
    meant = f"; did you mean {near[0]}?" if near else ", or of a package that is not installed"
    return f"or a black box: {', '.join(kinds)}{meant}"


def _own(name: str, form: ActionFormat, values: Mapping[str, Any]) -> Callable[..., Agent]:
    """A class of the user; raises `ConfigError` if it makes no agent."""
    try:
        make: Callable[..., Agent] = load_named(name)
    except (BadRequest, ImportError) as error:
        raise ConfigError(
            f"no agent {name}: {error}. It is package.module:Class, where Class takes an "
            "action format and has the methods of agentgym_train.rollout.agent.Agent; "
            f"{_black_boxes(name)}"
        ) from error
    check_makes_agent(make, name, form, values)
    return make


def check_makes_agent(
    make: Callable[..., Any], name: str, form: ActionFormat, values: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` if what a user passed as a class makes no agent."""
    otherwise = f"for a function that plays an episode by itself, write `callable:{name}`"
    if inspect.iscoroutinefunction(make):
        raise ConfigError(f"the agent {name} is a coroutine function; {otherwise}")
    try:
        made = make(form, **values)
    except Exception as error:
        # The user's code may fail in any way.
        raise ConfigError(
            f"the agent {name} cannot be made: {type(error).__name__}: {error}; {otherwise}"
        ) from error
    if not hasattr(made, "begin"):
        raise ConfigError(f"the agent {name} makes a {type(made).__name__}, no Agent; {otherwise}")
