"""Writes passages: facts as sentences of varied wording, with asides about other entities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from agentgym_servers.generated_world.colour import ASIDES, COLOUR
from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import Day, Entity, FactBase, Value, names_in
from agentgym_servers.generated_world.forms import NUMBERS, date_forms, written_list
from agentgym_servers.generated_world.schema import ARTICLED, CRAFTS
from agentgym_servers.generated_world.sentences import FACTS, LEADS
from agentgym_servers.retrieval.passages import Passage

_FEWEST_WORDS, _MOST_WORDS = 45, 105
_SLOT = re.compile(r"\{(\w+)\}")
_OWN_SLOTS = frozenset(["N", "S", "s", "P", "p", "h", "o", "sort", "a_sort", "makes", "province"])
_ALTERNATIVES = re.compile(r"\[([^]]*)\]")


class Writer:
    """Writes the passages of one world, each entity mentioned now and then in another's."""

    def __init__(self, facts: FactBase, draws: Draws) -> None:
        self._facts, self._draws = facts, draws
        self._cast: dict[tuple[str, int, bool], Iterator[str]] = {}

    def write(self, id: str, entity: Entity) -> Passage:
        """The passage about an entity: it tells all that the entity is said to tell."""
        draws, left = self._draws, set(entity.told)
        lead = draws.choice([t for t in LEADS[entity.kind] if told_slots(t) <= left])
        left -= told_slots(lead)
        sentences = []
        for template in draws.shuffled(FACTS[entity.kind]):
            if told_slots(template) <= left:
                sentences.append(self._sentence(entity, template))
                left -= told_slots(template)
        # An aside comes last: no pronoun after it could mean the entity it mentions.
        first = self._sentence(entity, lead)
        last = self._sentence(entity, draws.choice(ASIDES[entity.kind]))
        words = sum(len(sentence.split()) for sentence in (first, *sentences, last))
        target = draws.between(_FEWEST_WORDS, _MOST_WORDS)
        for template in draws.shuffled(COLOUR[entity.kind]):
            if words >= target:
                break
            sentence = self._sentence(entity, template)
            sentences.insert(draws.between(0, len(sentences)), sentence)
            words += len(sentence.split())
        return Passage(id, f'"{entity.name}"\n{" ".join((first, *sentences, last))}')

    def _sentence(self, entity: Entity, template: str) -> str:
        values = self._values(entity)
        chosen = _ALTERNATIVES.sub(lambda match: self._draws.choice(match[1].split("|")), template)
        text = _SLOT.sub(lambda match: self._fill(match[1], entity, values), chosen)
        return text[0].upper() + text[1:]

    def _values(self, entity: Entity) -> Mapping[str, str]:
        """The words that stand for the entity in one sentence."""
        draws, person = self._draws, entity.kind == "person"
        full = f"the {entity.name}" if entity.kind in ARTICLED else entity.name
        pronoun = entity.gender or "it"
        last = entity.name.rpartition(" ")[2]
        other = last if person else full if entity.kind == "town" else f"the {entity.sort}"
        subject = pronoun if draws.chance(0.6) else other
        possessive = {"she": "her", "he": "his", "it": "its"}[pronoun]
        return {
            "N": full,
            "S": subject,
            "s": subject,
            "P": possessive if subject == pronoun else f"{subject}'s",
            "p": possessive,
            "h": pronoun,
            "o": {"she": "her", "he": "him", "it": "it"}[pronoun],
            "sort": entity.sort,
            "a_sort": f"{'an' if entity.sort[0] in 'aeiou' else 'a'} {entity.sort}",
            "makes": CRAFTS.get(entity.sort, ""),
            "province": entity.province,
        }

    def _fill(self, slot: str, entity: Entity, values: Mapping[str, str]) -> str:
        if slot in values:
            return values[slot]
        if slot.startswith("a_"):
            return self._mention(self._someone(slot.removeprefix("a_"), entity))
        if slot.startswith("n_"):
            return NUMBERS[len(names_in(entity.told[slot.removeprefix("n_")]))]
        relation = self._facts.relations.get(slot)
        return self._value(entity.told[slot], relation is not None and relation.object == "year")

    def _value(self, value: Value, is_year: bool) -> str:
        if isinstance(value, Day):
            return self._draws.choice(date_forms(value))
        if isinstance(value, int):
            return str(value) if is_year else f"{value:,}"
        return written_list([self._mention(name) for name in names_in(value)])

    def _mention(self, name: str) -> str:
        entity = self._facts.entities[name]
        return f"{entity.sort} {name}" if entity.kind == "work" else name

    def _someone(self, kind: str, entity: Entity) -> str:
        """The next of a kind in a shuffled round through the half, so that all have their turn."""
        is_twin = entity.twin_of is not None
        key = (kind, entity.half, is_twin)
        while True:
            name = next(self._cast.get(key, iter(())), None)
            if name is None:
                # Twins mention each other, too: those they are taken for are not to be drowned.
                names = [
                    other.name
                    for other in self._facts.entities.values()
                    if (other.kind, other.half) == (kind, entity.half)
                    and (is_twin or other.twin_of is None)
                ]
                self._cast[key] = iter(self._draws.shuffled(names))
            elif name != entity.name:
                return name


@cache
def told_slots(template: str) -> frozenset[str]:
    """The relations and inverses that a sentence tells."""
    slots = set(_SLOT.findall(template)) - _OWN_SLOTS
    return frozenset(slot for slot in slots if not slot.startswith(("a_", "n_")))
