"""Action formats: how a policy's text contains its action. Parsing never raises.

Reasoning, which models mark in their own ways, is not part of what a format reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from agentgym_env.errors import BadRequest
from agentgym_env.reasoning import reply_of

_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ActionError:
    """Why a text contains no action; the message becomes the policy's next observation."""

    message: str


UNFINISHED: Final = ActionError(
    "The turn ended inside its reasoning, so it has no action. Reason more briefly, then act."
)
"""A text that is nothing but the beginning of reasoning."""


class ActionFormat(Protocol):
    """How a policy writes its actions."""

    @property
    def name(self) -> str:
        """Its name in configs."""
        ...

    @property
    def instructions(self) -> str:
        """The instructions for the policy about the format; may be empty."""
        ...

    def parse(self, text: str) -> str | ActionError:
        """The action in a policy's text."""
        ...

    def render(self, action: str, thought: str = "") -> str:
        """The text of a demonstration; `parse(render(action))` is the action, stripped.

        An action cannot contain a mark of reasoning, except in quotation marks.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """The whole text, stripped, is the action."""

    name: str = "plain"
    instructions: str = ""

    def parse(self, text: str) -> str | ActionError:
        """The text without reasoning and the space around it."""
        reply = reply_of(text)
        return UNFINISHED if reply is None else reply.strip()

    def render(self, action: str, thought: str = "") -> str:
        """The action; the format has no place for a thought."""
        return action


@dataclass(frozen=True, slots=True)
class ReAct:
    """`Thought:` and then `Action:` (Yao et al., arXiv:2210.03629).

    Exactly one line begins with `Action:`; everything after it is the action. Two of them are an
    error, since the policy wrote the world's answer itself.
    """

    name: str = "react"
    instructions: str = "Answer in this form:\nThought:\nyour reasoning\n\nAction:\nyour action"

    def parse(self, text: str) -> str | ActionError:
        """The text after the only `Action:`."""
        return _after_the_marker(text)

    def render(self, action: str, thought: str = "") -> str:
        """A thought and an action."""
        return f"Thought:\n{thought}\n\nAction:\n{action}"


@dataclass(frozen=True, slots=True)
class Act:
    """Only `Action:`: ReAct without the thought."""

    name: str = "act"
    instructions: str = "Answer in this form:\nAction:\nyour action"

    def parse(self, text: str) -> str | ActionError:
        """The text after the only `Action:`."""
        return _after_the_marker(text)

    def render(self, action: str, thought: str = "") -> str:
        """The action; the format has no place for a thought."""
        return f"Action:\n{action}"


@dataclass(frozen=True, slots=True)
class Tools:
    """Calls of the environment's tools, in the syntax of the model's chat template.

    Only a chat knows both, and reads and writes them; see `Chat.form`.
    """

    name: str = "tools"
    instructions: str = ""

    def parse(self, text: str) -> str | ActionError:
        """Raises `BadRequest`: a text alone does not show which syntax it has."""
        raise BadRequest("the action format tools needs a chat template, and this text has none")

    def render(self, action: str, thought: str = "") -> str:
        """Raises `BadRequest`, as `parse` does."""
        raise BadRequest("the action format tools needs a chat template to write an action")


FORMATS: Final[dict[str, ActionFormat]] = {
    "plain": Plain(),
    "react": ReAct(),
    "act": Act(),
    "tools": Tools(),
}


def action_format(name: str) -> ActionFormat:
    """The format with this name; raises `BadRequest` with the available names."""
    if name not in FORMATS:
        raise BadRequest(f"no action format {name!r}; available: {', '.join(FORMATS)}")
    return FORMATS[name]


def _after_the_marker(text: str) -> str | ActionError:
    reply = reply_of(text)
    if reply is None:
        return UNFINISHED
    places = list(_ACTION.finditer(reply))
    if not places:
        return ActionError('There is no action. Write "Action:" and then one action.')
    if len(places) > 1:
        return ActionError(
            f'There are {len(places)} actions. Write "Action:" once and then one action.'
        )
    return reply[places[0].end() :].strip()
