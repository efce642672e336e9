"""Follows a script in a browser: finds what a step names in the page's tree."""

from __future__ import annotations

import re
from typing import Final

from agentgym_servers.web.action import Action
from agentgym_servers.web.script import Click, Fill, Goto, Select, Step, Stop

_FIELDS: Final = ("textbox", "searchbox", "spinbutton", "Date", "combobox")
_LISTS: Final = ("combobox", "listbox")


def action_of(step: Step, tree: str) -> Action | None:
    """The action that a step stands for on a page; None where what it names is not there."""
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
