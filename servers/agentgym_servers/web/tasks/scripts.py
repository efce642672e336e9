"""What a scripted expert does: steps that name what they touch as a reader of the page would."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agentgym_servers.web.actions.calls import Action


class Goto(msgspec.Struct, frozen=True):
    """Open an address."""

    url: str
    """May begin with a placeholder such as `__SHOPPING__`."""


class Click(msgspec.Struct, frozen=True):
    """Click the first element of a role with this name."""

    role: Literal["link", "button", "checkbox", "radio"]
    name: str


class Fill(msgspec.Struct, frozen=True):
    """Replace the text of a field."""

    label: str
    text: str


class Select(msgspec.Struct, frozen=True):
    """Choose from a list."""

    label: str
    option: str
    """Its label, not its value."""


class Stop(msgspec.Struct, frozen=True):
    """End the episode with an answer, which is empty where none is required."""

    answer: str = ""


Step: TypeAlias = Goto | Click | Fill | Select | Stop


class ScriptedTask(msgspec.Struct, frozen=True):
    """A task in WebArena's JSON form, and a script that solves it."""

    config: dict[str, Any]
    """The fields of `test.raw.json`; `task_id` is -1 until somebody numbers the tasks."""
    split: Literal["train", "test"]
    """All tasks of a template are in one split."""
    expert: tuple[Step, ...]
    """Ends with a Stop; begins at the task's `start_url`."""


_FIELDS: Final = ("textbox", "searchbox", "spinbutton", "Date", "combobox")

_LISTS: Final = ("combobox", "listbox")


def action_of(step: Step, tree: str) -> Action | None:
    """The action of a step on a page; None where what it names is not there."""
    match step:
        case Goto(url):
            return Action("goto", (url,))
        case Click(role, name):
            return _at(tree, (role,), name, "click", "left", ())
        case Fill(label, text):
            return _at(tree, _FIELDS, label, "fill", text, False)
        case Select(label, option):
            return _at(tree, _LISTS, label, "select_option", (option,))
        case Stop(answer):
            return Action("send_msg_to_user", (answer,))


def _at(
    tree: str, roles: tuple[str, ...], name: str, kind: str, *rest: str | bool | tuple[str, ...]
) -> Action | None:
    """An action on the first element of one of these roles with this name."""
    either = "|".join(map(re.escape, roles))
    found = re.search(rf"^\s*\[(\w+)\] (?:{either}) {re.escape(repr(name))}(?=,| |$)", tree, re.M)
    return None if found is None else Action(kind, (found[1], *rest))
