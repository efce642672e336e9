"""SciWorld's actions: how they are worded, and which of those that are listed are accepted now."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from agentgym_env.tools import Verb

INSTRUCTION: Final = (
    "You are in a house with a workshop, a kitchen, an art studio, a greenhouse, a foundry and "
    "other places, and are given a task to do there. Each turn, answer with one action:\n"
    "look around, look at OBJECT, look in OBJECT, read OBJECT, inventory, task\n"
    "open OBJECT, close OBJECT - a door or a container\n"
    "go to PLACE - through an open door\n"
    "pick up OBJECT, put down OBJECT, move OBJECT to OBJECT\n"
    "pour OBJECT into OBJECT, dunk OBJECT into OBJECT\n"
    "mix OBJECT - mix what a container holds\n"
    "activate OBJECT, deactivate OBJECT, use OBJECT on OBJECT, use OBJECT\n"
    "connect OBJECT to OBJECT, disconnect OBJECT - electrical parts\n"
    "eat OBJECT, flush OBJECT\n"
    "focus on OBJECT - say which thing the task is about; a wrong one fails the task\n"
    "wait - for ten moves; wait1 - for one\n"
    "When a request is ambiguous, answer with the number of the one you mean. Moves are "
    "limited."
)

VERBS: Final = (
    Verb("look around", "See the place that you are in."),
    Verb("look at {object}", "See what an object is like."),
    Verb("look in {object}", "See what is in a container."),
    Verb("read {object}"),
    Verb("inventory", "See what you carry."),
    Verb("task", "See the task again."),
    Verb("open {object}", "Open a door or a container."),
    Verb("close {object}", "Close a door or a container."),
    Verb("go to {place}", "Go through an open door."),
    Verb("pick up {object}"),
    Verb("put down {object}"),
    Verb("move {object} to {target}"),
    Verb("pour {object} into {target}"),
    Verb("dunk {object} into {target}"),
    Verb("mix {object}", "Mix what a container holds."),
    Verb("activate {object}", "Turn a device on."),
    Verb("deactivate {object}", "Turn a device off."),
    Verb("use {object} on {target}", tool="use_on"),
    Verb("use {object}"),
    Verb("connect {part} to {target}", "Connect electrical parts."),
    Verb("disconnect {part}", "Disconnect an electrical part."),
    Verb("eat {object}"),
    Verb("flush {object}"),
    Verb("focus on {object}", "Say which thing the task is about; a wrong one fails the task."),
    Verb("wait", "Wait for ten moves."),
    Verb("wait1", "Wait for one move."),
    Verb("{number:int}", "Choose one of the meanings of an ambiguous request.", "choose"),
)

_TELEPORT: Final = Verb("teleport to {place}", "Go to any place at once, through no door.")
_ONLY_IN_ELECTRICAL_TASKS: Final = "electrical parts, in tasks about electricity"
_HOLE: Final = re.compile(r"\{[^}]+\}")
_NO_WORDS: Final = frozenset({"a", "an", "the"})
"""What the simulator passes over."""


def instruction_for(simplifications: str) -> str:
    """The instruction with the actions that there are under these simplifications."""
    lines = []
    for line in INSTRUCTION.split("\n"):
        if line.startswith("connect "):
            if _has(simplifications, "noElectricalAction"):
                continue
            if _has(simplifications, "easy"):
                line = line.replace("electrical parts", _ONLY_IN_ELECTRICAL_TASKS)
        lines.append(line)
        if line.startswith("go to ") and _has(simplifications, "teleportAction", "easy"):
            lines.append("teleport to PLACE - to any place at once, through no door")
    return "\n".join(lines)


def verbs_for(simplifications: str) -> tuple[Verb, ...]:
    """The verbs that there are under these simplifications."""
    verbs: list[Verb] = []
    for verb in VERBS:
        if "connect {part}" in verb.pattern:
            if _has(simplifications, "noElectricalAction"):
                continue
            if _has(simplifications, "easy"):
                about = f"{verb.description.removesuffix('.')}, in tasks about electricity."
                verb = replace(verb, description=about)
        verbs.append(verb)
        if verb.pattern == "go to {place}" and _has(simplifications, "teleportAction", "easy"):
            verbs.append(_TELEPORT)
    return tuple(verbs)


def _has(simplifications: str, *names: str) -> bool:
    return not set(names).isdisjoint(simplifications.split(","))


def accepted(listed: Sequence[str], in_reach: Collection[str]) -> list[str]:
    """The listed actions that name nothing but what is in reach.

    The simulator lists actions on all that is in a room, closed containers included, and then does
    not understand those whose objects are out of reach.
    """
    known = {_plain(name) for name in in_reach}
    is_known = cache(lambda name: _plain(name) in known)
    return [action for action in listed if _is_understood(action, is_known)]


def _is_understood(action: str, is_known: Callable[[str], bool]) -> bool:
    if action.startswith("teleport to "):
        return True  # every place is in its reach
    for before, between in _FORMS.get(action.partition(" ")[0], ()):
        if not action.startswith(before):
            continue
        rest = action[len(before) :]
        if between is None:
            if not rest:
                return True
        elif not between:
            if is_known(rest):
                return True
        else:
            # A name may contain the word between them: "door to kitchen".
            parts = rest.split(between)
            for n in range(1, len(parts)):
                if is_known(between.join(parts[:n])) and is_known(between.join(parts[n:])):
                    return True
    return False


def _forms() -> dict[str, list[tuple[str, str | None]]]:
    """First word -> what stands before the first hole, and between two; None without a hole."""
    forms: dict[str, list[tuple[str, str | None]]] = {}
    for verb in VERBS:
        before, *others = _HOLE.split(verb.pattern)
        forms.setdefault(before.partition(" ")[0], []).append(
            (before, others[0] if others else None)
        )
    return forms


_FORMS: Final = _forms()


def _plain(name: str) -> str:
    return " ".join(word for word in name.lower().split() if word not in _NO_WORDS)
