"""What the expert searches for, fact by fact; it knows the facts and where they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import msgspec

from agentgym_servers.worlds.search.corpora import FactSearch, Question, SearchWorld
from agentgym_servers.worlds.search.setup import embedded_index
from tools.generated_world.facts import FactBase
from tools.generated_world.grammar import Reading, Understanding
from tools.generated_world.language import Language, Plan, carry_out

BestPassage = Callable[[str], str | None]
"""Query -> the title of the best matching passage."""


def with_searches(world: SearchWorld, facts: FactBase, language: Language) -> SearchWorld:
    """The world with the expert's searches for each of its questions.

    The queries for a fact go on until the best passage of one is the fact's own: an expert that is
    shown more passages by each search stops before, at the query that brings it.
    """
    index = embedded_index(world.passages)
    understanding, reading = Understanding(language), Reading(language)

    @cache
    def best(query: str) -> str | None:
        (hits,) = index.search([query], 1)
        return hits[0].passage.title if hits else None

    def searched(question: Question) -> Question:
        plan = understanding.plan(question.text)
        if plan is None:
            raise ValueError(f"the grammar does not know the question {question.text!r}")
        searches = _searches(plan, facts, reading, best)
        return msgspec.structs.replace(question, searches=searches)

    questions: Mapping[str, list[Question]] = {
        split: [searched(question) for question in of_split]
        for split, of_split in world.questions.items()
    }
    return replace(world, questions=questions)


def _searches(plan: Plan, facts: FactBase, reading: Reading, best: BestPassage) -> list[FactSearch]:
    searches: list[FactSearch] = []
    work = carry_out(plan)
    try:
        wanted = next(work)
        while True:
            fact = facts.get(wanted.subject, wanted.relation)
            # Where a list is tried for a fact that a member has not, its own passage decides.
            title = fact[1] if fact else wanted.subject
            queries = []
            for query in reading.queries(wanted.subject, wanted.relation):
                queries.append(query)
                if best(query) == title:
                    break
            searches.append(FactSearch(title, queries))
            wanted = work.send(fact[0] if fact else None)
    except StopIteration:
        return searches
