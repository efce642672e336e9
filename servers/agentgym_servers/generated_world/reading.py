"""Reads facts out of passages: every sentence that tells one, turned into a pattern.

Knows how a language tells facts, and nothing of the facts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentgym_servers.generated_world.facts import Value
from agentgym_servers.generated_world.forms import read_value
from agentgym_servers.generated_world.language import Language
from agentgym_servers.generated_world.proof import STOPWORDS
from agentgym_servers.retrieval.passages import Passage

_SLOT = re.compile(r"\\\{(\w+)\\\}")
_PLAIN_WORD = re.compile(r"(?<![{\w])[a-z]+(?![}\w])")
_TIMES = (1, 3, 6)


class Reading:
    """Finds facts in passages of one language."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._patterns: dict[str, list[re.Pattern[str]]] = {}

    def find(self, passages: Sequence[Passage], subject: str, relation: str) -> Value | None:
        """What passages say that `subject` has by a relation or a list; None where they do not.

        The passage about the subject is read first, then those of whatever the subject may have.
        """
        for passage in passages:
            if passage.title == subject:
                told = self.told(passage.text, relation)
                if told is not None:
                    return told
        known = self._language.by_name.get(relation)
        if known is None or known.inverse is None:
            return None
        for passage in passages:
            told = self.told(passage.text, known.inverse)
            if told == subject or (isinstance(told, tuple) and subject in told):
                return passage.title
        return None

    def queries(self, subject: str, relation: str) -> Iterator[str]:
        """What to search for until a fact is found: the name, then words a passage may use for it.

        Where the name stands in many passages the words are given more weight, by repetition, and
        at last the name less, by one of its words alone.
        """
        known = self._language.by_name.get(relation)
        slots = [known.inverse, relation] if known and known.inverse else [relation]
        words = dict.fromkeys(words for slot in slots for words in self._telling_words(slot))
        yield subject
        for name in dict.fromkeys((subject, *sorted(subject.split(), key=len, reverse=True))):
            for times in _TIMES:
                yield from (" ".join([name, *([phrase] * times)]) for phrase in words)

    def _telling_words(self, slot: str) -> list[str]:
        """The words of each sentence for a slot, without those that any sentence has."""
        return [
            " ".join(word for word in _PLAIN_WORD.findall(template) if word not in STOPWORDS)
            for template in self._templates(slot)
        ]

    def only_here(self, passages: Sequence[Passage], subject: str, relation: str) -> bool:
        """Whether the passage is at hand that alone could tell a fact."""
        known = self._language.by_name.get(relation)
        elsewhere = known is not None and known.inverse is not None
        return not elsewhere and any(passage.title == subject for passage in passages)

    def told(self, text: str, slot: str) -> Value | None:
        """What one passage tells by a relation, a list or an inverse; None where it is silent."""
        if slot not in self._patterns:
            self._patterns[slot] = [self._pattern(template) for template in self._templates(slot)]
        for pattern in self._patterns[slot]:
            match = pattern.search(text)
            if match is not None:
                return read_value(self._language.kind_of(slot), match[slot], self._listed(slot))
        return None

    def _templates(self, slot: str) -> list[str]:
        tables = (self._language.leads, self._language.facts)
        every = [template for table in tables for kind in table for template in table[kind]]
        return [template for template in every if f"{{{slot}}}" in template]

    def _pattern(self, template: str) -> re.Pattern[str]:
        escaped = re.escape(template[0].upper() + template[1:])
        return re.compile(r"(?:^|(?<=[.!?] ))" + _SLOT.sub(self._group, escaped))

    def _group(self, match: re.Match[str]) -> str:
        slot, language = match[1], self._language
        if slot not in language.by_name and slot not in language.by_inverse:
            return r"[\w' /&().-]+?"
        name = language.patterns[language.kind_of(slot)]
        if self._listed(slot):
            name = rf"(?:{name})(?:(?:, | and )(?:{name}))*"
        return f"(?P<{slot}>{name})"

    def _listed(self, slot: str) -> bool:
        return slot not in self._language.by_name and self._language.by_inverse[slot].listed
