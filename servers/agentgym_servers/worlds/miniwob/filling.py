"""Scripts that write into fields, and submit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from agentgym_servers.worlds.miniwob.sight import Sight, part

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
