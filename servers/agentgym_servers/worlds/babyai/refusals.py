"""Why an action of BabyAI is not possible now, in one sentence."""

from __future__ import annotations

import re
from typing import Any, Final

from agentgym_servers.worlds.babyai.view import Seen, View

_NAMED: Final = re.compile(r"(pick up|go to|go through|toggle and go through) (.+)")
_ALONE: Final = ("pick up", "go to", "go through", "toggle and go through")


def why_not(command: str, view: View, carried: Any) -> str:
    """The reason for a command that is not possible; `carried` is a minigrid object or None."""
    if command == "move forward":
        return f"{_front(view)} is before you."
    if command == "drop":
        if carried is None:
            return "you carry nothing."
        return f"{_front(view)} is before you; face a free cell to drop the {_named(carried)}."
    if command == "toggle":
        return _why_no_toggle(view)
    if command in _ALONE:
        return f"write what to {command}, such as {command} OBJECT NUMBER."
    named = _NAMED.fullmatch(command)
    if named is None:
        return "there is no such action."
    verb, name = named.groups()
    target = next((seen for seen in view.objects if seen.name == name), None)
    if target is None:
        return f"you see no {name}; objects are named as in what you see."
    return _why_not_to(verb, target, carried) or f"no free way to the {name} is in view."


def _why_no_toggle(view: View) -> str:
    front = view.front
    if front is None:
        return "nothing is before you; face a door or a box from the next cell."
    if front.type == "door":
        return f"the {front.color} door is locked, and you do not carry a {front.color} key."
    return f"{_front(view)} cannot be opened."


def _why_not_to(verb: str, target: Seen, carried: Any) -> str:
    """Why an object is not one for this verb; empty if it is."""
    if verb == "pick up":
        if target.kind == "door":
            return "a door cannot be picked up."
        return "" if carried is None else f"you carry a {_named(carried)}; drop it first."
    if verb == "go to":
        return ""
    if target.kind != "door":
        return f"a {target.kind} is not a door."
    if verb == "go through" and target.state == "closed":
        return f"it is closed; write toggle and go through {target.name}."
    if verb == "toggle and go through" and target.state == "open":
        return f"it is open; write go through {target.name}."
    key = f"{target.color} key"
    if target.state == "locked" and (carried is None or _named(carried) != key):
        return f"it is locked, and you do not carry a {key}."
    if verb == "go through" and target.state == "locked":
        return f"it is locked; write toggle and go through {target.name}."
    return ""


def _front(view: View) -> str:
    """What is in the next cell."""
    front = view.front
    if front.type == "wall":
        return "a wall"
    if front.type == "door":
        return f"a {front.color} {'locked' if front.is_locked else 'closed'} door"
    return f"a {_named(front)}"


def _named(thing: Any) -> str:
    return f"{thing.color} {thing.type}"
