"""The world of time zones: passages, questions and their expert, from the frozen table."""

from __future__ import annotations

import re

from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import Day, Entity, FactBase, Measure, names_in
from agentgym_servers.generated_world.forms import measure_forms, written_list
from agentgym_servers.generated_world.grammar import Words
from agentgym_servers.generated_world.plans import Best, Look, Named, Pair, Plan, Term, known
from agentgym_servers.generated_world.proof import OneSearch
from agentgym_servers.generated_world.prose import told_slots
from agentgym_servers.generated_world.questions import Asker, Corpus
from agentgym_servers.generated_world.solver import Solver
from agentgym_servers.generated_world.world import World
from agentgym_servers.real_facts.zone_table import read_table, zone_facts
from agentgym_servers.real_facts.zone_words import COLOUR, FACTS, LANGUAGE, LEADS, PHRASES
from agentgym_servers.retrieval.passages import Passage

NAME = "timezones"
_SIZES = {"train": 800, "test": 150}
_WEIGHTS = {
    ("lookup", 1): 22,
    ("bridge", 2): 38,
    ("bridge", 3): 10,
    ("bridge", 4): 12,
    ("comparison", 4): 18,
}
# Few offsets are in use, so that they could be guessed; they are asked for less often.
_ASKED = (*PHRASES, "latitude", "longitude", "nearest", "zone")


def timezones() -> World:
    """Countries, their zones and the zones' reference places; no country is in both splits."""
    facts = zone_facts(read_table())
    draws = Draws(NAME, "prose")
    passages = [
        _passage(f"{place:06}", entity, draws)
        for place, entity in enumerate(facts.entities.values())
    ]
    ids = {name: f"{place:06}" for place, name in enumerate(facts.entities)}
    corpus = Corpus(facts, ids, OneSearch(passages))
    questions = {}
    for half, (split, size) in enumerate(_SIZES.items()):
        own = Draws(NAME, split)

        def choose(wordings: tuple[str, str], draws: Draws = own) -> str:
            return wordings[draws.chance(0.5)]

        words = Words(LANGUAGE, str, choose)
        asker = Asker(corpus, _ZoneSampler(facts, own, half), words, _WEIGHTS)
        questions[split] = own.shuffled(asker.ask(split, size, (1, 2, 3, 4)))
    return World(NAME, passages, questions, Solver(LANGUAGE))


class _ZoneSampler:
    """Draws plans that stay within one half of the table."""

    def __init__(self, facts: FactBase, draws: Draws, half: int) -> None:
        self._facts, self._draws, self._half = facts, draws, half
        own = [
            entity.name
            for entity in facts.entities.values()
            if entity.half == half and re.fullmatch(LANGUAGE.name, entity.name)
        ]
        self._zones = [name for name in own if facts.entities[name].kind == "zone"]
        self._countries = [name for name in own if facts.get(name, "zone")]

    def draw(self, kind: str, hops: int) -> Plan | None:
        """A plan of a kind that may take `hops` passages, if it meets no other half's country."""
        draws = self._draws
        term: Term
        if kind == "lookup":
            term = Named(draws.choice(draws.choice((self._zones, self._countries))))
        elif kind == "comparison":
            first, second = draws.sample(self._countries, 2)
            pair = Pair(Look("zone", Named(first)), Look("zone", Named(second)))
            term = Best("latitude", draws.chance(0.5), pair)
        else:
            term = Look("zone", Named(draws.choice(self._countries)))
            if hops > 2:
                term = Look("nearest", term)
            if hops > 3:
                term = Look("zone", term)
        plan = Look(draws.choice(_ASKED), term)
        knowledge = known(plan, self._facts)
        if knowledge is None:
            return None
        met = [*knowledge.met, *names_in(knowledge.answer)]
        entities = [self._facts.entities[name] for name in met if name in self._facts.entities]
        return plan if all(entity.half == self._half for entity in entities) else None


def _passage(id: str, entity: Entity, draws: Draws) -> Passage:
    """What the table says about an entity, in sentences."""
    lead = draws.choice(LEADS[entity.kind])
    left = set(entity.told) - told_slots(lead)
    chosen = []
    for template in draws.shuffled(FACTS[entity.kind]):
        if told_slots(template) <= left:
            left -= told_slots(template)
            chosen.append(template)
    chosen += draws.sample(COLOUR[entity.kind], 3 if entity.kind == "country" else 1)
    sentences = [lead, *draws.shuffled(chosen)]
    texts = {slot: _text(entity, slot) for slot in entity.told}
    text = " ".join(sentence.format(N=entity.name, **texts) for sentence in sentences)
    return Passage(id, f'"{entity.name}"\n{text}')


def _text(entity: Entity, slot: str) -> str:
    value = entity.told[slot]
    if isinstance(value, Measure):
        return measure_forms(value)[0]
    return "" if isinstance(value, int | Day) else written_list(names_in(value))
