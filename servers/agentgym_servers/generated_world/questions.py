"""The questions of a world: drawn, answered from the facts, worded, and proved to need searching."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym_env.errors import BadRequest
from agentgym_servers.generated_world.answers import answer_forms, normal
from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import FactBase
from agentgym_servers.generated_world.grammar import worded
from agentgym_servers.generated_world.plans import (
    Best,
    Group,
    Look,
    Member,
    Named,
    Pair,
    Plan,
    Total,
    known,
)
from agentgym_servers.generated_world.proof import OneSearch
from agentgym_servers.generated_world.sampling import Sampler
from agentgym_servers.generated_world.schema import ARTICLED
from agentgym_servers.generated_world.world import Question

WEIGHTS: Mapping[tuple[str, int], int] = {
    ("lookup", 1): 16,
    ("count", 1): 3,
    ("bridge", 2): 20,
    ("count", 2): 4,
    ("intersection", 2): 4,
    ("bridge", 3): 14,
    ("comparison", 3): 6,
    ("count", 3): 4,
    ("intersection", 3): 5,
    ("bridge", 4): 10,
    ("comparison", 4): 7,
    ("count", 4): 3,
    ("intersection", 4): 4,
}
"""How much of each category there is, in hundredths."""
_TRIES = 150


class Asker:
    """Asks questions about one half of a world."""

    def __init__(
        self,
        facts: FactBase,
        ids: Mapping[str, str],
        search: OneSearch,
        draws: Draws,
        half: int,
        paraphrase: float,
    ) -> None:
        self._facts, self._ids, self._search, self._draws = facts, ids, search, draws
        self._paraphrase = paraphrase
        self._sampler = Sampler(facts, draws, half)
        self._asked: set[str] = set()
        self._numbers: dict[tuple[str, int], int] = {}

    def ask(self, split: str, size: int, hops: tuple[int, ...]) -> list[Question]:
        """`size` questions of the given hops, their categories mixed."""
        quotas = _quotas(size, hops)
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
        return self._draws.shuffled(questions)

    def _some(self, split: str, kind: str, hops: int, size: int) -> list[Question]:
        """Up to `size` more questions of one category."""
        questions: list[Question] = []
        for _ in range(_TRIES * size):
            if len(questions) == size:
                break
            plan = self._sampler.draw(kind, hops)
            number = self._numbers.get((kind, hops), 0)
            id = f"{split}/{kind}-{hops}/{number:05}"
            question = self._question(id, kind, hops, plan) if plan else None
            if question is not None:
                questions.append(question)
                self._numbers[kind, hops] = number + 1
        return questions

    def _question(self, id: str, kind: str, hops: int, plan: Plan) -> Question | None:
        """The question for a plan, unless it is too easy, too hard, or was asked before."""
        knowledge = known(plan, self._facts)
        if knowledge is None or len(knowledge.needed) != hops:
            return None
        text = worded(plan, self._mention, self._choose)
        text = text[0].upper() + text[1:]
        answers = answer_forms(knowledge.answer)
        named = names_of(plan)
        if text in self._asked or any(normal(answer) in normal(text) for answer in answers):
            return None
        if any(name in text for name in knowledge.met if name not in named):
            return None
        support = [self._ids[owner] for owner in knowledge.needed]
        if hops > 1 and not self._search.misses(text, self._hidden(plan, support, answers[0])):
            return None
        self._asked.add(text)
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

    def _mention(self, name: str) -> str:
        entity = self._facts.entities[name]
        if entity.kind == "work":
            return f"the {entity.sort} {name}"
        return f"the {name}" if entity.kind in ARTICLED else name

    def _choose(self, wordings: tuple[str, str]) -> str:
        return wordings[self._draws.chance(self._paraphrase)]


def names_of(plan: Plan | Named | Group | Pair) -> tuple[str, ...]:
    """The entities that a plan names."""
    if isinstance(plan, Named):
        return (plan.name,)
    if isinstance(plan, Look | Group):
        return names_of(plan.of)
    if isinstance(plan, Pair):
        return (*names_of(plan.first), *names_of(plan.second))
    return (*names_of(plan.among), *(names_of(plan.value) if isinstance(plan, Member) else ()))


def shape(plan: Plan | Named | Group | Pair) -> str:
    """A plan without its names: `mayor(born_in(*))`."""
    if isinstance(plan, Named):
        return "*"
    if isinstance(plan, Look):
        return f"{plan.relation}({shape(plan.of)})"
    if isinstance(plan, Group):
        return f"{plan.slot}({shape(plan.of)})"
    if isinstance(plan, Pair):
        return f"{shape(plan.first)}, {shape(plan.second)}"
    if isinstance(plan, Best):
        return f"{'least' if plan.least else 'most'} {plan.relation}({shape(plan.among)})"
    if isinstance(plan, Total):
        return f"total {plan.relation}({shape(plan.among)})"
    return f"{shape(plan.among)} with {plan.relation}={shape(plan.value)}"


def _quotas(size: int, hops: tuple[int, ...]) -> dict[tuple[str, int], int]:
    """How many questions of each category; the parts that rounding leaves go to the first ones."""
    weights = {category: weight for category, weight in WEIGHTS.items() if category[1] in hops}
    total = sum(weights.values())
    quotas = {category: size * weight // total for category, weight in weights.items()}
    for category in list(quotas)[: size - sum(quotas.values())]:
        quotas[category] += 1
    return quotas
