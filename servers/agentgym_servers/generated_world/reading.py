"""Reads facts out of passages: every sentence that tells one, turned into a pattern.

Knows how encyclopedia sentences are built, and nothing of the facts behind them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from agentgym_servers.generated_world.facts import Value
from agentgym_servers.generated_world.forms import DATE, read_date, read_list
from agentgym_servers.generated_world.schema import MAKERS, RELATIONS
from agentgym_servers.generated_world.sentences import FACTS, LEADS
from agentgym_servers.retrieval.passages import Passage

_RELATIONS = {relation.name: relation for relation in RELATIONS}
_INVERSES = {relation.inverse: relation for relation in RELATIONS if relation.inverse}
_PERSON = r"[A-Z]\w+ [A-Z]\w+"
_NAMES = {
    "person": _PERSON,
    "town": r"[A-Z]\w+",
    "river": r"River [A-Z]\w+",
    "work": rf"(?:{'|'.join(MAKERS)}) [A-Z]\w*(?: (?:(?:of|in|at|for) )?[A-Z]\w*)*",
    "date": DATE,
    "year": r"\d+",
    "number": r"[\d,]+",
}
_SLOT = re.compile(r"\\\{(\w+)\\\}")


def find(passages: Sequence[Passage], subject: str, relation: str) -> Value | None:
    """What the passages say that `subject` has by a relation or a list; None where they do not.

    The passage about the subject is read first, then those of whatever the subject may have.
    """
    for passage in passages:
        if passage.title == subject:
            told = _told(passage.text, relation)
            if told is not None:
                return told
    known = _RELATIONS.get(relation)
    if known is None or known.inverse is None:
        return None
    for passage in passages:
        told = _told(passage.text, known.inverse)
        if told == subject or (isinstance(told, tuple) and subject in told):
            return passage.title
    return None


def search_words(relation: str) -> list[str]:
    """What to search for beside a name when the name alone did not bring the fact."""
    known = _RELATIONS.get(relation)
    slots = [relation, known.inverse] if known and known.inverse else [relation]
    return [
        " ".join(re.findall(r"(?<![{\w])[a-z]+(?![}\w])", template))
        for slot in reversed(slots)
        for template in _templates(slot)
    ]


def _told(text: str, slot: str) -> Value | None:
    for pattern in _patterns(slot):
        match = pattern.search(text)
        if match is not None:
            return _value(slot, match[slot])
    return None


def _value(slot: str, text: str) -> Value:
    kind = _kind(slot)
    if kind == "date":
        return read_date(text)
    if kind in ("number", "year"):
        return int(text.replace(",", ""))
    known = _INVERSES.get(slot)
    if known is not None and known.listed:
        return read_list(text)
    return text.partition(" ")[2] if kind == "work" else text


def _kind(slot: str) -> str:
    """What fills a slot: a relation's object, or the subject of the relation it inverts."""
    return _RELATIONS[slot].object if slot in _RELATIONS else _INVERSES[slot].subject


@cache
def _templates(slot: str) -> tuple[str, ...]:
    every = [template for kind in LEADS for template in (*LEADS[kind], *FACTS[kind])]
    return tuple(template for template in every if f"{{{slot}}}" in template)


@cache
def _patterns(slot: str) -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(r"(?:^|(?<=[.!?] ))" + _SLOT.sub(_group, re.escape(_capital(template))))
        for template in _templates(slot)
    )


def _group(match: re.Match[str]) -> str:
    slot = match[1]
    if slot not in _RELATIONS and slot not in _INVERSES:
        return r"[\w' ]+?"
    name = _NAMES.get(_kind(slot), r"[A-Z]\w+ [A-Z]\w+")
    if slot in _INVERSES and _INVERSES[slot].listed:
        name = rf"{name}(?:(?:, | and ){name})*"
    return f"(?P<{slot}>{name})"


def _capital(template: str) -> str:
    return template[0].upper() + template[1:]
