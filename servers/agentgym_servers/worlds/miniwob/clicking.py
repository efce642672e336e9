"""Scripts that click on elements, and submit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from agentgym_servers.worlds.miniwob.sight import Sight, part

_OPENS_MS: Final = 500
"""Menus open a moment after the mouse comes."""

_FILE_IDS: Final = 2

_MAX_DRAWN: Final = 200


def click(role: str, pattern: str | None = None) -> Callable[[str, Sight], Iterator[str]]:
    """A script that clicks what has a role and the name that a pattern finds in the sentence."""

    def script(goal: str, sight: Sight) -> Iterator[str]:
        yield _click(sight.find(role, part(goal, pattern)[0] if pattern else None))

    return script


def press(*names: str) -> Callable[[str, Sight], Iterator[str]]:
    """A script that presses buttons with the keyboard, which reaches those that others cover."""

    def script(goal: str, sight: Sight) -> Iterator[str]:
        for name in names:
            yield f"press({sight.find('button', name)!r}, 'Enter')"

    return script


def click_in_dialog(goal: str, sight: Sight) -> Iterator[str]:
    """Click a button of a dialog; its cross is called Close."""
    (name,) = part(goal, r'"([^"]+)"\.$')
    yield _click(sight.find("button", "Close" if name == "x" else name))


def expand_and_submit(goal: str, sight: Sight) -> Iterator[str]:
    """Open a section and press its button."""
    yield _click(sight.find("tab"))
    yield _click(sight.find("button", "Submit"))


def choose(role: str) -> Callable[[str, Sight], Iterator[str]]:
    """A script that clicks all that are named, and submits."""

    def script(goal: str, sight: Sight) -> Iterator[str]:
        (names,) = part(goal, r"^Select (.*) and click Submit\.$")
        for name in [] if names == "nothing" else names.split(", "):
            yield _click(sight.find(role, name))
        yield _click(sight.find("button", "Submit"))

    return script


def choose_from(role: str) -> Callable[[str, Sight], Iterator[str]]:
    """A script that selects options in a list, and submits."""

    def script(goal: str, sight: Sight) -> Iterator[str]:
        (names,) = part(goal, r"^Select (.*) from the (?:scroll )?list and click Submit\.$")
        yield f"select_option({sight.find(role)!r}, {names.split(', ')!r})"
        yield _click(sight.find("button", "Submit"))

    return script


def go_through_menu(goal: str, sight: Sight) -> Iterator[str]:
    """Hover over the menus that lead to an item, and click it."""
    (path,) = part(goal, r"^Select (.*)$")
    *menus, last = path.split(">")
    for menu in menus:
        yield f"hover({sight.find('menuitem', menu)!r})"
        yield f"noop({_OPENS_MS})"
    yield _click(sight.find("menuitem", last))


def go_through_tree(goal: str, sight: Sight) -> Iterator[str]:
    """Open folders until one shows what is looked for."""
    (name,) = part(goal, r'named "(.*)"\.$')
    opened: set[str] = set()
    while name not in sight.texts():
        items = sight.all("listitem")
        # Ids count what is hidden, too: a file is followed by the next after its label.
        files = {
            one.bid for one, after in pairwise(items) if int(after.bid) - int(one.bid) <= _FILE_IDS
        }
        closed = [one.bid for one in items if one.bid not in opened | files]
        if not closed:
            raise LookupError(f"no folder has {name!r}")
        opened.add(closed[0])
        yield _click(closed[0])
    yield _click(_item_named(sight, name))


def mark_odd_and_even(goal: str, sight: Sight) -> Iterator[str]:
    """Press the button on the left of odd numbers and the one on the right of even ones."""
    shown = [one for one in sight.elements() if one.role in ("button", "StaticText")]
    for before, number, after in zip(shown, shown[1:], shown[2:], strict=False):
        if number.role == "StaticText":
            yield _click((before if int(number.name) % 2 else after).bid)
    yield _click(sight.find("button", "Submit"))


def generate_number(goal: str, sight: Sight) -> Iterator[str]:
    """Press a button until the number is right."""
    kind, limit = part(goal, r"(less than|greater than|odd|even)(?: (\d+))?")
    fits: Callable[[int], bool] = {
        "less than": lambda number: number < int(limit),
        "greater than": lambda number: number > int(limit),
        "odd": lambda number: number % 2 == 1,
        "even": lambda number: number % 2 == 0,
    }[kind]
    for _ in range(_MAX_DRAWN):
        yield _click(sight.find("button", "Generate"))
        if fits(int(sight.texts()[0])):
            break
    yield _click(sight.find("button", "Submit"))


def focus_field(goal: str, sight: Sight) -> Iterator[str]:
    """Focus the field that is counted off, or the only one."""
    at = int(part(goal, r"the (\d)")[0]) if "input" in goal else 1
    yield f"focus({sight.all('textbox')[at - 1].bid!r})"


def _item_named(sight: Sight, name: str) -> str:
    for one in sight.all("listitem"):
        if one.text == name or one.text.startswith(f"{name} "):
            return one.bid
    raise LookupError(f"the page shows no item {name!r}")


def _click(bid: str) -> str:
    return f"click({bid!r})"
