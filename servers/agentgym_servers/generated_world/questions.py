"""Questions: drawn, answered from the facts, worded, and proved to need several searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from agentgym_env.errors import BadRequest
from agentgym_servers.generated_world.answers import answer_forms, normal
from agentgym_servers.generated_world.facts import FactBase
from agentgym_servers.generated_world.grammar import Words
from agentgym_servers.generated_world.plans import Member, Plan, known, names_of, shape
from agentgym_servers.generated_world.proof import OneSearch
from agentgym_servers.generated_world.world import Question

Weights = Mapping[tuple[str, int], int]
"""(kind, hops) -> how much there is of it, next to the others."""
_MOST_MISSES = 3_000
"""After so many draws in a row that came to nothing, a category counts as exhausted."""


class Sampler(Protocol):
    """Draws plans; many come to nothing, and the caller draws again."""

    def draw(self, kind: str, hops: int) -> Plan | None:
        """A plan of a kind that may take `hops` passages; None where the draw came to nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """What questions are asked about: facts, the passages that tell them, and one search."""

    facts: FactBase
    ids: Mapping[str, str]
    """Entity -> the id of its passage."""
    search: OneSearch


class Asker:
    """Asks questions about one half of a world."""

    def __init__(self, corpus: Corpus, sampler: Sampler, words: Words, weights: Weights) -> None:
        self._facts, self._ids, self._search = corpus.facts, corpus.ids, corpus.search
        self._sampler, self._words, self._weights = sampler, words, weights
        self._asked: set[Plan] = set()
        self._numbers: dict[tuple[str, int], int] = {}

    def ask(self, split: str, size: int, hops: tuple[int, ...]) -> list[Question]:
        """`size` questions of the given hops, category after category."""
        quotas = _quotas(self._weights, size, hops)
        questions: list[Question] = []
        for kind, hop in quotas:
            questions += self._some(split, kind, hop, quotas[kind, hop])
        # What a small world cannot give in one category it gives in the plainest ones.
        for hop in hops:
            kind = "lookup" if hop == 1 else "bridge"
            questions += self._some(split, kind, hop, size - len(questions))
        if len(questions) < size:
            raise BadRequest(
                f"{len(self._ids)} passages hold {len(questions)} of {size} {split} questions with "
                f"hops {hops}: ask for fewer questions or for more passages"
            )
        return questions

    def _some(self, split: str, kind: str, hops: int, size: int) -> list[Question]:
        """Up to `size` more questions of one category."""
        questions: list[Question] = []
        missed = 0
        while len(questions) < size and missed < _MOST_MISSES:
            plan = self._sampler.draw(kind, hops)
            number = self._numbers.get((kind, hops), 0)
            id = f"{split}/{kind}-{hops}/{number:05}"
            question = self._question(id, kind, hops, plan) if plan else None
            missed += 1
            if question is not None:
                missed = 0
                questions.append(question)
                self._numbers[kind, hops] = number + 1
        return questions

    def _question(self, id: str, kind: str, hops: int, plan: Plan) -> Question | None:
        """The question for a plan, unless it is too easy, too hard, or was asked before."""
        knowledge = known(plan, self._facts)
        if knowledge is None or len(knowledge.needed) != hops or len(knowledge.subjects) < hops:
            return None
        text = self._words.question(plan)
        answers = answer_forms(knowledge.answer)
        named = names_of(plan)
        if plan in self._asked or any(normal(answer) in normal(text) for answer in answers):
            return None
        if any(name in text for name in knowledge.met if name not in named):
            return None
        support = [self._ids[owner] for owner in knowledge.needed]
        if hops > 1 and not self._search.misses(text, self._hidden(plan, support, answers[0])):
            return None
        self._asked.add(plan)
        entities = list(dict.fromkeys((*named, *knowledge.met, *self._entity(answers[0]))))
        return Question(id, text, answers, hops, kind, support, shape(plan), entities)

    def _hidden(self, plan: Plan, support: list[str], answer: str) -> list[str]:
        """The passages that one search must not bring: the last one, and all that name the answer.

        Who belongs to a list and is something else, too, is named where the list is.
        """
        if isinstance(plan, Member) or answer not in self._facts.entities:
            return support[-1:]
        return [*support[-1:], *self._search.naming(answer)]

    def _entity(self, answer: str) -> list[str]:
        return [answer] if answer in self._facts.entities else []


def _quotas(every: Weights, size: int, hops: tuple[int, ...]) -> dict[tuple[str, int], int]:
    """How many questions of each category; the parts that rounding leaves go to the first ones."""
    weights = {category: weight for category, weight in every.items() if category[1] in hops}
    total = sum(weights.values())
    quotas = {category: size * weight // total for category, weight in weights.items()}
    for category in list(quotas)[: size - sum(quotas.values())]:
        quotas[category] += 1
    return quotas
