"""How dates, numbers and lists are written, and how they are read back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym_servers.generated_world.facts import Day, Measure, Value

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_MONTH = f"(?:{'|'.join(MONTHS)})"
DATE = rf"(?:the )?\d+(?:st|nd|rd|th)?(?: of)? {_MONTH} \d+|{_MONTH} \d+, \d+"
"""A pattern of every form that `date_forms` gives."""


def date_forms(day: Day) -> tuple[str, ...]:
    """The ways to write a date; the first is the plain one."""
    month = MONTHS[day.month - 1]
    return (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"the {day.day}{ordinal_ending(day.day)} of {month} {day.year}",
    )


def measure_forms(measure: Measure) -> tuple[str, ...]:
    """The ways to write an angle or an offset; the first is how passages write it."""
    whole, rest = divmod(abs(measure.minutes), 60)
    if measure.scale == "offset":
        parts = [
            f"{n} {unit}{'' if n == 1 else 's'}" for n, unit in ((whole, "hour"), (rest, "minute"))
        ]
        side = "ahead of" if measure.minutes > 0 else "behind"
        text = " ".join(part for part in parts if not part.startswith("0 "))
        return (f"{text} {side} UTC",) if text else ("level with UTC",)
    letters = "NS" if measure.scale == "latitude" else "EW"
    letter = letters[measure.minutes < 0]
    word = {"N": "north", "S": "south", "E": "east", "W": "west"}[letter]
    return (
        f"{whole}°{rest:02}' {letter}",
        f"{whole}°{rest:02}'{letter}",
        f"{whole} degrees {rest} minutes {word}",
    )


def read_measure(scale: str, text: str) -> Measure:
    """The angle or offset that the first of the forms stands for."""
    if scale == "offset":
        hours, minutes = (re.search(rf"(\d+) {unit}", text) for unit in ("hour", "minute"))
        size = 60 * int(hours[1] if hours else 0) + int(minutes[1] if minutes else 0)
    else:
        degrees, minute = map(int, re.findall(r"\d+", text))
        size = 60 * degrees + minute
    return Measure(-size if "behind" in text or text[-1] in "SW" else size, scale)


def read_value(kind: str, text: str, listed: bool) -> Value:
    """What a text in a passage stands for: a date, a number, a name or several names."""
    if listed:
        return tuple(re.split(r", | and ", text))
    if kind == "date":
        month = next(place for place, name in enumerate(MONTHS, 1) if name in text)
        day, year = map(int, re.findall(r"\d+", text))
        return Day(year, month, day)
    if kind in ("latitude", "longitude", "offset"):
        return read_measure(kind, text)
    if kind in ("number", "year"):
        return int(text.replace(",", ""))
    return text.partition(" ")[2] if kind == "work" else text


def written_list(names: Sequence[str]) -> str:
    """Names as a sentence gives them: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def ordinal_ending(number: int) -> str:
    """What makes an ordinal of a number: st, nd, rd or th."""
    if 11 <= number % 100 <= 13:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
