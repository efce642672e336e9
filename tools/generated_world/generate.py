"""Makes a world from its spec: facts, passages, questions."""

from __future__ import annotations

from agentgym_servers.worlds.search.corpora import SearchWorld
from tools.generated_world.facts import (
    ARTICLED,
    HALVES,
    MAKERS,
    RELATIONS,
    Draws,
    Entity,
    WorldSpec,
    unfold,
)
from tools.generated_world.grammar import OneSearch, Solver, Words
from tools.generated_world.language import (
    DATE,
    DEGREES,
    GROUPS,
    PHRASES,
    TOTALS,
    Language,
)
from tools.generated_world.prose import FACTS, LEADS, Writer
from tools.generated_world.questions import (
    WEIGHTS,
    Asker,
    Corpus,
    HalfSampler,
)

_GENRES = "|".join(MAKERS)

LANGUAGE = Language(
    relations=RELATIONS,
    leads=LEADS,
    facts=FACTS,
    patterns={
        "person": r"[A-Z]\w+ [A-Z]\w+",
        "town": r"[A-Z]\w+",
        "building": r"[A-Z]\w+ [A-Z]\w+",
        "academy": r"[A-Z]\w+ [A-Z]\w+",
        "event": r"[A-Z]\w+ [A-Z]\w+",
        "river": r"River [A-Z]\w+",
        "work": rf"(?:{_GENRES}) [A-Z]\w*(?: (?:(?:of|in|at|for) )?[A-Z]\w*)*",
        "date": DATE,
        "year": r"\d+",
        "number": r"[\d,]+",
    },
    name=rf"(?:the (?:(?:{_GENRES}) )?)?([A-Z]\w*(?: (?:(?:of|in|at|for|the) )*[A-Z]\w*)*)",
    phrases=PHRASES,
    groups=GROUPS,
    degrees=DEGREES,
    totals=TOTALS,
)

solver = Solver(LANGUAGE)
"""Solves the questions of every generated world; it knows how they are worded, and no fact."""


def generate(spec: WorldSpec) -> SearchWorld:
    """The world of a spec: the same on every machine, and in every process."""
    facts = unfold(spec)
    writer = Writer(facts, Draws("prose", spec.seed))
    order = Draws("order", spec.seed).shuffled(list(facts.entities.values()))
    ids = {entity.name: f"{place:06}" for place, entity in enumerate(order)}
    passages = [writer.write(ids[entity.name], entity) for entity in order]
    corpus = Corpus(facts, ids, OneSearch(passages))
    in_test = spec.questions // 10
    sizes = {"train": spec.questions - in_test, "test": in_test}
    questions = {}
    for split, half in HALVES.items():
        draws = Draws("questions", spec.seed, split)

        def mention(name: str) -> str:
            return _mention(facts.entities[name])

        def choose(wordings: tuple[str, str], draws: Draws = draws) -> str:
            return wordings[draws.chance(spec.paraphrase)]

        words = Words(LANGUAGE, mention, choose)
        asker = Asker(corpus, HalfSampler(facts, draws, half), words, WEIGHTS)
        questions[split] = draws.shuffled(asker.ask(split, sizes[split], spec.hops))
    return SearchWorld(str(spec), passages, questions)


def _mention(entity: Entity) -> str:
    """An entity as a question names it."""
    if entity.kind == "work":
        return f"the {entity.sort} {entity.name}"
    return f"the {entity.name}" if entity.kind in ARTICLED else entity.name
