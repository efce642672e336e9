"""What a script sees of a page: its elements by role and name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Final, NamedTuple

_QUOTED: Final = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""

_LINE: Final = re.compile(rf"(\t*)(?:\[(\w+)\] )?([A-Za-z]+)(?: ({_QUOTED}))?(.*)")

_VALUE: Final = re.compile(rf"\bvalue=({_QUOTED})")


class Element(NamedTuple):
    """One line of a tree."""

    bid: str
    """Empty where the tree gives no id."""
    role: str
    name: str
    value: str
    """The value of a field."""
    text: str
    """The plain text below it."""


class Sight:
    """A page as it is shown now, each time it is read."""

    def __init__(self, tree: Callable[[], str]) -> None:
        self._tree = tree

    def elements(self) -> list[Element]:
        """All lines of the tree, from its top."""
        lines = [found for line in self._tree().splitlines() if (found := _LINE.fullmatch(line))]
        return [_element(lines, at) for at in range(len(lines))]

    def all(self, role: str) -> list[Element]:
        """Those with a role that can be named in an action."""
        return [one for one in self.elements() if one.role == role and one.bid]

    def texts(self) -> list[str]:
        """The pieces of plain text."""
        return [one.name for one in self.elements() if one.role == "StaticText"]

    def has(self, role: str, name: str | None = None) -> bool:
        """Whether there is one with that role and name."""
        return any(name is None or one.name == name for one in self.all(role))

    def find(self, role: str, name: str | None = None) -> str:
        """The id of the first with that role and name; raises `LookupError`."""
        for one in self.all(role):
            if name is None or one.name == name:
                return one.bid
        raise LookupError(f"the page shows no {role} {name or ''}")

    def shows(self, role: str, text: str) -> str:
        """The id of the first with that role and just that text in it; raises `LookupError`."""
        for one in self.all(role):
            if one.text == text:
                return one.bid
        raise LookupError(f"the page shows no {role} with the text {text!r}")


def part(goal: str, pattern: str) -> tuple[str, ...]:
    """The groups of a pattern in a task's sentence; raises `LookupError`."""
    found = re.search(pattern, goal)
    if found is None:
        raise LookupError(f"the sentence {goal!r} has no {pattern!r}")
    return tuple(group or "" for group in found.groups())


def _element(lines: list[re.Match[str]], at: int) -> Element:
    tabs, bid, role, name, rest = lines[at].groups()
    value = _VALUE.search(rest)
    below: list[str] = []
    for line in lines[at + 1 :]:
        if len(line[1]) <= len(tabs):
            break
        if line[3] == "StaticText" and line[4]:
            below.append(ast.literal_eval(line[4]))
    return Element(
        bid or "",
        role,
        ast.literal_eval(name) if name else "",
        ast.literal_eval(value[1]) if value else "",
        " ".join(below),
    )
