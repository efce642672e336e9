"""How dates, numbers and lists are written, and how they are read back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym_servers.generated_world.facts import Day

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
DATE = rf"(?:the )?\d+(?:st|nd|rd|th)?(?: of)? (?:{'|'.join(MONTHS)}) \d+|(?:{'|'.join(MONTHS)}) \d+, \d+"
"""A pattern of every form that `date_forms` gives."""


def date_forms(day: Day) -> tuple[str, ...]:
    """The ways to write a date; the first is the plain one."""
    month = MONTHS[day.month - 1]
    return (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"the {day.day}{ordinal_ending(day.day)} of {month} {day.year}",
    )


def read_date(text: str) -> Day:
    """The date that one of the forms stands for."""
    month = next(place for place, name in enumerate(MONTHS, 1) if name in text)
    day, year = map(int, re.findall(r"\d+", text))
    return Day(year, month, day)


def written_list(names: Sequence[str]) -> str:
    """Names as a sentence gives them: "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def read_list(text: str) -> tuple[str, ...]:
    """The names of a written list."""
    return tuple(re.split(r", | and ", text))


def ordinal_ending(number: int) -> str:
    """What makes an ordinal of a number: st, nd, rd or th."""
    if 11 <= number % 100 <= 13:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
