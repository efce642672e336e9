"""Changes of an action's words: actions that are well-formed, and that no author thought of."""

from __future__ import annotations

import re
from itertools import pairwise

UNKNOWN = "xyzzy"
NUMBERS = ("0", "-1", "1" + "0" * 30)

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d+")


def changed(action: str) -> list[str]:
    """The action with a word replaced, dropped, repeated or swapped, or in another case.

    What is between the words, such as quotes and brackets, stays.
    """
    words = list(_WORD.finditer(action))
    found: dict[str, None] = {}

    def put(start: int, end: int, text: str) -> None:
        found[action[:start] + text + action[end:]] = None

    for number in _NUMBER.finditer(action):
        for text in NUMBERS:
            put(number.start(), number.end(), text)
    for word in words:
        put(word.start(), word.end(), UNKNOWN)
        put(word.start(), word.end(), "")
        put(word.start(), word.end(), f"{word[0]} {word[0]}")
    for one, other in pairwise(words):
        between = action[one.end() : other.start()]
        put(one.start(), other.end(), other[0] + between + one[0])
    for text in (action.upper(), action.title(), f"{action} {UNKNOWN}"):
        found[text] = None
    found.pop(action, None)
    return list(found)
