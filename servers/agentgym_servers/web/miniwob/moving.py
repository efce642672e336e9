"""Scripts that move sliders by the keyboard, and items of a list by the mouse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.miniwob.filling import submit
from agentgym_servers.web.miniwob.sight import Sight, part

_FAR: Final = 6
_MOST_MOVES: Final = 200


def set_slider(goal: str, sight: Sight) -> Iterator[str]:
    """Bring a slider to a number."""
    yield from _slide(sight, 0, int(part(goal, r"Select (-?\d+) with")[0]))
    yield submit(sight)


def set_sliders(goal: str, sight: Sight) -> Iterator[str]:
    """Bring several sliders to their numbers."""
    for at, number in enumerate(part(goal, r"\[(\d+),(\d+),(\d+)\]")):
        yield from _slide(sight, at, int(number))
    yield submit(sight)


def slider_and_box(goal: str, sight: Sight) -> Iterator[str]:
    """Bring a slider to a number and check one of three boxes."""
    number, box = part(goal, r"Select (-?\d+) with the slider, click the (\d)")
    yield from _slide(sight, 0, int(number))
    yield f"click({sight.all('checkbox')[int(box) - 1].bid!r})"
    yield submit(sight)


def sort_numbers(goal: str, sight: Sight) -> Iterator[str]:
    """Drag numbers up until they are in order."""
    for _ in range(_MOST_MOVES):
        items = sight.all("listitem")
        numbers = [int(one.text) for one in items]
        wrong = [at for at, n in enumerate(sorted(numbers)) if numbers[at] != n]
        if not wrong:
            break
        smallest = numbers.index(min(numbers[wrong[0] :]), wrong[0])
        yield f"drag_and_drop({items[smallest].bid!r}, {items[wrong[0]].bid!r})"
    yield submit(sight)


def _slide(sight: Sight, which: int, number: int) -> Iterator[str]:
    """Reach the next slider and bring it to a number: by pages while it is far, then by ones."""
    yield "keyboard_press('Tab')"
    now, page = _numbers(sight)[which], _FAR
    for _ in range(_MOST_MOVES):
        if now == number:
            return
        far = abs(number - now) > page
        keys = ("PageUp", "PageDown") if far else ("ArrowRight", "ArrowLeft")
        yield f"keyboard_press({keys[number < now]!r})"
        before, now = now, _numbers(sight)[which]
        page = max(page, abs(now - before))
    raise LookupError(f"the slider stays at {now} and does not come to {number}")


def _numbers(sight: Sight) -> list[int]:
    return [int(text) for text in sight.texts() if re.fullmatch(r"-?\d+", text)]
