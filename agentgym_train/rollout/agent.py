"""Agents: how a conversation is built around a policy; knows nothing about tokens or engines.

An agent turns what happens into messages. Its own words never pass as the policy's: only what the
policy sampled trains, whatever an agent puts around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agentgym_env.actions import ActionFormat, action_format
from agentgym_env.errors import BadRequest, Outcome
from agentgym_env.registration import load_named


@dataclass(frozen=True, slots=True)
class ContextReset:
    """A new context, in place of one that grew long."""

    opening: str
    """Its first message."""
    keep: int = 0
    """So many of the last exchanges follow, as they were sampled, and the policy goes on from the
    last of them; with 0 the opening has to say everything."""


@dataclass(frozen=True, slots=True)
class Message:
    """What the policy is told next."""

    text: str
    acts: bool = True
    """Whether the answer holds an action; else it is the agent's own, such as a plan."""
    cut: ContextReset | None = None
    """Begin a new context, which is a new training row: sampled tokens stay in the row of the
    context in which they were sampled."""


class Agent:
    """One episode's conversation: the observations as they come. Subclasses say what differs."""

    def __init__(self, form: ActionFormat) -> None:
        self.format = form
        """Where the action stands in the policy's text."""

    def begin(self, observation: str) -> Message:
        """The first observation."""
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """The world's answer to an action."""
        return Message(observation)

    def said(self, text: str) -> Message:
        """The policy's answer to a message that does not act."""
        raise BadRequest(f"the agent {type(self).__name__} asks for actions alone; define `said`")

    def lesson(self, outcome: Outcome, observation: str) -> Message | None:
        """A question after the episode, if it is to be played once more."""
        return None

    def begin_again(self, lesson: str, observation: str) -> Message:
        """The first observation of the episode's repetition, in a context of its own."""
        raise BadRequest(
            f"the agent {type(self).__name__} asks for a lesson; define `begin_again` to use it"
        )


class PlanThenAct(Agent):
    """Plan-and-solve (arXiv:2305.04091): a plan first, in a turn without an environment step."""

    ask = "First write a short plan of how to reach the goal. Do not act yet."
    go = "Now carry out the plan, one action at a time."

    def begin(self, observation: str) -> Message:
        """Ask for the plan."""
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def said(self, text: str) -> Message:
        """The plan is there."""
        return Message(self.go)


class Reflect(Agent):
    """Reflexion (arXiv:2303.11366): after a failure, a lesson, and the same episode once more.

    The trajectory has both trials and the lesson between them. Its reward is the second trial's:
    the first one's are kept in `Turn.info` and do not count, so that to fail first does not pay.
    """

    trials = 2
    ask = (
        "The episode is over, and the goal was not reached. Say in a few sentences what went wrong "
        "and what to do differently. You will start anew with only this in mind."
    )

    def __init__(self, form: ActionFormat) -> None:
        super().__init__(form)
        self._trial = 1

    def lesson(self, outcome: Outcome, observation: str) -> Message | None:
        """Ask for it after a failure, as long as there is another trial."""
        if outcome not in ("failure", "horizon") or self._trial >= self.trials:
            return None
        self._trial += 1
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def begin_again(self, lesson: str, observation: str) -> Message:
        """The lesson, and then the observation."""
        opening = f"What you learned from an earlier trial:\n{lesson}\n\n{observation}"
        return Message(observation, cut=ContextReset(opening))


class Window(Agent):
    """At most `size` exchanges in the context, beside the first observation.

    When they are there, the older half goes. So each context has half as many exchanges again as a
    prompt, and a long episode makes about 2 / size rows a turn; to cut at every turn would make one
    each and encode everything every time.
    """

    def __init__(self, form: ActionFormat, size: int = 8) -> None:
        super().__init__(form)
        if size < 2:
            raise BadRequest(f"a window holds at least 2 exchanges, got {size}; try `window:8`")
        self._size = size
        self._first = ""
        self._seen: list[str] = []
        self._here = 0

    def begin(self, observation: str) -> Message:
        """The first observation stays in every context."""
        self._first, self._seen, self._here = observation, [observation], 0
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """Cut when the window is full."""
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
        return Message(observation, cut=ContextReset(opening, keep))


class Summary(Agent):
    """After each `size` exchanges the policy sums them up, and goes on from its summary alone."""

    ask = "Sum up what happened so far and what matters for the goal. Only this will be left of it."

    def __init__(self, form: ActionFormat, size: int = 8) -> None:
        super().__init__(form)
        if size < 1:
            raise BadRequest(f"a summary is of at least 1 exchange, got {size}; try `summary:8`")
        self._size = size
        self._first = self._last = ""
        self._here = 0

    def begin(self, observation: str) -> Message:
        """The first observation stays in every context."""
        self._first, self._here = observation, 0
        return Message(observation)

    def observed(self, observation: str) -> Message:
        """Ask for a summary when it is time."""
        self._last = observation
        self._here += 1
        if self._here < self._size:
            return Message(observation)
        self._here = 0
        return Message(f"{observation}\n\n{self.ask}", acts=False)

    def said(self, text: str) -> Message:
        """Go on from the summary."""
        opening = f"{self._first}\n\n[Your summary of what followed]\n{text}\n\n{self._last}"
        return Message(self._last, cut=ContextReset(opening))


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
"""The agents whose conversation is the plain one, and whose name is their action format."""
_SIZED: Final = ("window", "summary")


def format_of(agent: str, action_format_name: str) -> ActionFormat:
    """The action format of an agent: its own if its name is one, else the one that is given."""
    own = _FORMATS.get(agent)
    if own is not None and action_format_name not in ("plain", own):
        raise BadRequest(
            f"the agent {agent} has the action format {own}, got {action_format_name!r}; leave "
            "action_format away, or take another agent, such as plain"
        )
    return action_format(own or action_format_name)


def agent_factory(agent: str, form: ActionFormat) -> AgentFactory:
    """A maker of agents by name, `name:SIZE` or `package.module:Class`; tries it once."""
    kind, _, rest = agent.partition(":")
    if kind in _KINDS and (not rest or kind in _SIZED):
        made = _KINDS[kind]
        if rest and not rest.isdecimal():
            raise BadRequest(f"the size of {agent!r} is no number; write, say, {kind}:8")
        sizes = [int(rest)] if rest else []
    elif rest:
        made, sizes = _imported(agent), []
    else:
        raise BadRequest(
            f"no agent {agent!r}; there are {', '.join(_KINDS)}, or name your own as "
            "package.module:Class"
        )
    made(form, *sizes)
    return lambda: made(form, *sizes)


def _imported(name: str) -> Callable[..., Agent]:
    try:
        made: Callable[..., Agent] = load_named(name)
    except (BadRequest, ImportError) as error:
        raise BadRequest(
            f"no agent {name}: {error}. It is package.module:Class, where Class takes an "
            "action format and has the methods of agentgym_train.rollout.agent.Agent"
        ) from error
    return made
