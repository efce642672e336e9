"""Scripts that choose a day in a calendar."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.miniwob.filling import submit
from agentgym_servers.web.miniwob.searching import best_flight, pick_proposal
from agentgym_servers.web.miniwob.sight import Sight, part

_MONTHS: Final = {name: at for at, name in enumerate(calendar.month_name) if name}
_MOST_MONTHS: Final = 24
_DATE: Final = r"(\d\d)/(\d\d)/(\d{4})"


def choose_date(goal: str, sight: Sight) -> Iterator[str]:
    """Choose a day and submit."""
    yield from _pick(goal, sight, sight.find("textbox"))
    yield submit(sight)


def book_flight(goal: str, sight: Sight) -> Iterator[str]:
    """Fill in two airports and a day, search, and book the cheapest or shortest flight."""
    cities = part(goal, r"from: (.*) to: (.*) on \d")
    fields = [one.bid for one in sight.all("textbox")]
    for field, city in zip(fields, cities, strict=False):
        airport = re.compile(rf"{re.escape(city)} \(.*|.* \({re.escape(city)}\)")
        yield from pick_proposal(sight, field, city, airport)
    yield from _pick(goal, sight, fields[-1])
    yield f"click({sight.find('button', 'Search')!r})"
    yield f"click({best_flight(goal, sight)!r})"


def _pick(goal: str, sight: Sight, field: str) -> Iterator[str]:
    """Open a field's calendar, go to the month and click the day."""
    month, day, year = map(int, part(goal, _DATE))
    yield f"click({field!r})"
    for _ in range(_MOST_MONTHS):
        shown = _shown_month(sight)
        if shown == (year, month):
            break
        yield f"click({sight.find('link', 'Next' if shown < (year, month) else 'Prev')!r})"
    yield f"click({sight.find('link', str(day))!r})"


def _shown_month(sight: Sight) -> tuple[int, int]:
    texts = sight.texts()
    months = [_MONTHS[text] for text in texts if text in _MONTHS]
    years = [int(text) for text in texts if text.isdecimal() and len(text) == 4]
    if not months or not years:
        raise LookupError("the page shows no calendar")
    return years[0], months[0]
