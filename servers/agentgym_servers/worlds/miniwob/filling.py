"""Scripts that click on elements, write into fields, and submit."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
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


_MAX_TRIES: Final = 3

_HEX: Final = {
    "black": "000000", "white": "FFFFFF", "aqua": "00FFFF", "blue": "0000FF", "gray": "808080",
    "green": "008000", "lime": "00FF00", "maroon": "800000", "navy": "000080", "olive": "808000",
    "purple": "800080", "red": "FF0000", "silver": "C0C0C0", "teal": "008080", "yellow": "FFFF00",
    "pink": "FFC0CB", "magenta": "FF00FF", "gold": "FFD700", "orange": "FFA500",
}  # fmt: skip


def answer(reply: Callable[[str, Sight], str], role: str = "textbox", at: int = -1) -> Callable[
    [str, Sight], Iterator[str]
]:  # fmt: skip
    """A script that writes what `reply` finds into one field, and submits."""

    def script(goal: str, sight: Sight) -> Iterator[str]:
        yield _fill(sight.all(role)[at].bid, reply(goal, sight))
        yield submit(sight)

    return script


def submit(sight: Sight) -> str:
    """Press the button that is for it."""
    return f"click({sight.find('button', 'Submit')!r})"


def quoted(goal: str, sight: Sight) -> str:
    """The texts in quotes in the sentence."""
    return part(goal, r'"([^"]*)"')[0]


def in_case(goal: str, sight: Sight) -> str:
    """The texts in quotes, in upper or lower case."""
    text = quoted(goal, sight)
    return text.upper() if "upper case" in goal else text.lower()


def date(goal: str, sight: Sight) -> str:
    """A date as a field of that kind takes it."""
    month, day, year = part(goal, r"(\d+)/(\d+)/(\d+)")
    return f"{year}-{month}-{day}"


def time(goal: str, sight: Sight) -> str:
    """A time as a field of that kind takes it."""
    hour, minute, half = part(goal, r"(\d+):(\d+)\s(AM|PM)")
    return f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}"


def number(goal: str, sight: Sight) -> str:
    """The number in the sentence."""
    return part(goal, r"(-?\d+)")[0]


def counted_word(goal: str, sight: Sight) -> str:
    """The word of a paragraph that is counted off, without its comma or stop."""
    at = int(part(goal, r"the (\d+)")[0])
    return re.sub(r"[^A-Za-z]", "", sight.all("paragraph")[0].text.split()[at - 1])


def last_word(goal: str, sight: Sight) -> str:
    """The last word of a longer text."""
    return sight.all("textbox")[0].value.split()[-1].removesuffix(".")


def letters(goal: str, sight: Sight) -> str:
    """The letters that are shown one by one."""
    return "".join(sight.texts())


def table_value(goal: str, sight: Sight) -> str:
    """The value beside a name in a table."""
    return _table(sight)[part(goal, r"value of (.*) into")[0]]


def product(goal: str, sight: Sight) -> str:
    """The result of a sum, a difference or a product."""
    left, sign, right = part(sight.texts()[0], r"(\d+) ([x+-]) (\d+)")
    return str(_calculate(int(left), sign, int(right)))


def unknown(goal: str, sight: Sight) -> str:
    """The x of an equation."""
    left, sign, right, result = part(sight.texts()[0], r"(\w+) ([+-]) (\w+) = (-?\d+)")
    if left == "x":
        return str(_calculate(int(result), "-" if sign == "+" else "+", int(right)))
    return str(int(result) - int(left) if sign == "+" else int(left) - int(result))


def color(goal: str, sight: Sight) -> str:
    """A colour as six hexadecimal digits."""
    if "#" in goal:
        return part(goal, r"#([0-9a-f]{6})")[0].upper()
    return _HEX[part(goal, r"Select (\w+)")[0]]


def copy_text(goal: str, sight: Sight) -> Iterator[str]:
    """Copy the value of one field into the empty one."""
    fields = sight.all("textbox")
    full = [one.value for one in fields if one.value]
    at = int(part(goal, r"the (\d)")[0]) - 1 if "from the" in goal else 0
    empty = [one.bid for one in fields if not one.value]
    yield _fill(empty[0], full[at])
    yield submit(sight)


def fill_both(goal: str, sight: Sight) -> Iterator[str]:
    """Write the same into two fields."""
    for one in sight.all("textbox"):
        yield _fill(one.bid, quoted(goal, sight))
    yield submit(sight)


def fill_from_table(goal: str, sight: Sight) -> Iterator[str]:
    """Write the value of each label into the field after it."""
    table = _table(sight)
    labels = [one.text.removesuffix(":") for one in sight.all("LabelText")]
    for label, field in zip(labels, sight.all("textbox"), strict=True):
        yield _fill(field.bid, table[label])
    yield submit(sight)


def log_in(goal: str, sight: Sight) -> Iterator[str]:
    """Write name and password; a message that comes between is answered with Cancel."""
    for at, text in enumerate(part(goal, r'username "(.*)" and the password "(.*)" into')):
        for _ in range(_MAX_TRIES):
            yield _fill(sight.all("textbox")[at].bid, text)
            if sight.has("button", "Cancel"):
                yield f"click({sight.find('button', 'Cancel')!r})"
            if sight.all("textbox")[at].value:
                break
    yield f"click({sight.all('button')[0].bid!r})"


def guess(goal: str, sight: Sight) -> Iterator[str]:
    """Halve what is left of 0 to 9."""
    low, high = 0, 9
    while low <= high:
        middle = (low + high) // 2
        yield _fill(sight.find("spinbutton"), str(middle))
        yield submit(sight)
        if "lower" in sight.texts()[0]:
            high = middle - 1
        else:
            low = middle + 1


def radio_and_number(goal: str, sight: Sight) -> Iterator[str]:
    """Check one of three buttons and fill one of three fields."""
    radio, text, field = part(goal, r'the (\d)\w+ radio .* number "(.*)" into the (\d)')
    yield f"click({sight.all('radio')[int(radio) - 1].bid!r})"
    yield _fill(sight.all("textbox")[int(field) - 1].bid, text)
    yield submit(sight)


def option_and_button(goal: str, sight: Sight) -> Iterator[str]:
    """Choose from a list, then press one of three buttons."""
    option, button = part(goal, r'^Choose (.*) from the dropdown, .* labeled "(.*)"\.$')
    yield f"select_option({sight.find('combobox')!r}, {option!r})"
    yield f"click({sight.find('button', button)!r})"


def sign(goal: str, sight: Sight) -> Iterator[str]:
    """Read an agreement to its end, sign and press a button; or cancel at once."""
    if "name" in goal:
        name, button = part(goal, r'the name "(.*)" then press "(.*)"')
        yield f"hover({sight.all('textbox')[0].bid!r})"
        yield "scroll(0, 20000)"
        yield _fill(sight.find("textbox", "Name"), name)
    else:
        button = "Cancel"
    yield f"click({sight.find('button', button)!r})"


def scroll_text(goal: str, sight: Sight) -> Iterator[str]:
    """Go to an end of a long text."""
    key = "Control+Home" if "to the top" in goal else "Control+End"
    yield f"press({sight.find('textbox')!r}, {key!r})"
    yield submit(sight)


def _fill(bid: str, text: str) -> str:
    return f"fill({bid!r}, {text!r})"


def _table(sight: Sight) -> dict[str, str]:
    cells = [one.name for one in sight.all("cell")]
    return dict(zip(cells[::2], cells[1::2], strict=True))


def _calculate(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "x": left * right}[sign]
