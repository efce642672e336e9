"""Questions: drawn, answered from the facts, worded, and proved to need several searches."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.answers import normal
from agentgym_servers.worlds.search.corpora import Question
from tools.generated_world.facts import KINDS, Draws, FactBase, Value, names_in
from tools.generated_world.grammar import OneSearch, Words
from tools.generated_world.language import (
    DEGREES,
    GROUPS,
    PHRASES,
    Best,
    Group,
    Look,
    Member,
    Named,
    Pair,
    Plan,
    Term,
    Total,
    answer_forms,
    known,
    names_of,
    shape,
)

Weights = Mapping[tuple[str, int], int]
"""(kind, hops) -> how much there is of it, next to the others."""

_MOST_MISSES = 3_000
"""Number of unsuccessful draws in a row after which a category is exhausted."""


class Sampler(Protocol):
    """Draws plans; many come to nothing, and the caller draws again."""

    def draw(self, kind: str, hops: int) -> Plan | None:
        """A plan of a kind that may use `hops` passages; None if the draw failed."""
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

COUNTED = ("output", "members", "population")
"""The numbers that are counts of something; the others are measures."""


class HalfSampler:
    """Draws plans over one half; many come to nothing, and the caller draws again."""

    def __init__(self, facts: FactBase, draws: Draws, half: int) -> None:
        self._facts, self._draws = facts, draws
        own = [e for e in facts.entities.values() if e.half == half and e.twin_of is None]
        self._names = [entity.name for entity in own]
        self._kinds = {kind: [e.name for e in own if e.kind == kind] for kind in KINDS}
        self._owners = {
            slot: [entity.name for entity in own if slot in entity.told] for slot in GROUPS
        }
        self._relations = {
            kind: [relation for relation in PHRASES if self._kind_of(relation) == kind]
            for kind in self._kinds
        }
        self._links: dict[str, list[tuple[str, str]]] = {}
        for name in self._names:
            for relation in self._relations[facts.entities[name].kind]:
                fact = facts.get(name, relation)
                if fact is not None and isinstance(fact[0], str):
                    self._links.setdefault(fact[0], []).append((name, relation))
        self._draw: Mapping[str, Callable[[int], Plan | None]] = {
            "lookup": self._chain,
            "bridge": self._chain,
            "comparison": self._comparison,
            "count": self._count,
            "intersection": self._intersection,
        }

    def draw(self, kind: str, hops: int) -> Plan | None:
        """A plan of a kind that may use `hops` passages; None if the draw failed."""
        return self._draw[kind](hops)

    def _chain(self, hops: int) -> Plan | None:
        return self._extended(Named(self._draws.choice(self._names)), hops, counted=False)

    def _count(self, hops: int) -> Plan | None:
        if hops < 3:
            return self._extended(Named(self._draws.choice(self._names)), hops, counted=True)
        slot = self._draws.choice(("pupils", "fellows", "towns"))
        if not self._owners[slot]:
            return None
        behind = int(hops > 3 and self._draws.chance(0.5))
        group = self._group(slot, self._hidden(self._draws.choice(self._owners[slot]), behind))
        return Total("population" if slot == "towns" else "output", group) if group else None

    def _comparison(self, hops: int) -> Plan | None:
        among: Group | Pair | None
        kind = self._draws.choice(("person", "person", "town", "building", "work", "river"))
        if kind in ("person", "town") and self._draws.chance(0.6):
            slot = self._draws.choice(("pupils", "fellows")) if kind == "person" else "towns"
            owners = self._owners[slot]
            among = self._group(slot, Named(self._draws.choice(owners))) if owners else None
            steps = self._draws.between(1, 2)
        else:
            among = self._pair(kind)
            steps = self._draws.between(1, 3)
        fitting = [d for d in DEGREES if self._kind_of(d.relation) == kind]
        degree = self._draws.choice(fitting)
        if among is None:
            return None
        return self._extended(Best(degree.relation, degree.least, among), steps, counted=False)

    def _intersection(self, hops: int) -> Plan | None:
        draws, slot = self._draws, self._draws.choice(("pupils", "pupils", "fellows", "towns"))
        if not self._owners[slot]:
            return None
        owner = draws.choice(self._owners[slot])
        held = [r for r, phrase in PHRASES.items() if phrase.holds and self._subject_of(slot, r)]
        relation = draws.choice(held)
        member = draws.choice(self._listed(owner, slot))
        fact = self._facts.get(member, relation)
        if fact is None or not isinstance(fact[0], str):
            return None
        value = self._hidden(fact[0], draws.between(0, hops - 2))
        if value is None:
            return None
        plan = Member(Group(slot, Named(owner), 0), relation, value)
        return self._extended(plan, draws.between(0, 2), counted=False)

    def _extended(self, plan: Term, steps: int, counted: bool) -> Plan | None:
        """A plan that asks on, `steps` relations further; the last of them ends the question."""
        knowledge = known(plan, self._facts)
        if knowledge is None:
            return None
        value, seen = knowledge.answer, {*knowledge.met}
        for left in reversed(range(steps)):
            open_ = self._open(value, seen, counted if left == 0 else None)
            if not open_:
                return None
            relation, further = self._draws.choice(open_)
            seen.update(names_in(value))
            plan, value = Look(relation, plan), further
        return None if isinstance(plan, Named) else plan

    def _open(
        self, value: Value, seen: Container[str], counted: bool | None
    ) -> list[tuple[str, Value]]:
        """What may be asked of a value: counts or the rest; where None, only what leads on."""
        facts: list[tuple[str, Value]] = []
        if not isinstance(value, str):
            return facts
        for relation in self._relations[self._facts.entities[value].kind]:
            fact = self._facts.get(value, relation)
            if fact is None or (isinstance(fact[0], str) and fact[0] in seen):
                continue
            if isinstance(fact[0], str) if counted is None else (relation in COUNTED) == counted:
                facts.append((relation, fact[0]))
        return facts

    def _hidden(self, name: str, steps: int) -> Term | None:
        """A term for an entity that does not name it, `steps` relations away from a name."""
        if steps == 0:
            return Named(name)
        links = self._links.get(name)
        if not links:
            return None
        subject, relation = self._draws.choice(links)
        inner = self._hidden(subject, steps - 1)
        return Look(relation, inner) if inner else None

    def _group(self, slot: str, owner: Term | None) -> Group | None:
        knowledge = known(owner, self._facts) if owner else None
        if owner is None or knowledge is None or not isinstance(knowledge.answer, str):
            return None
        size = len(self._listed(knowledge.answer, slot))
        return Group(slot, owner, size) if size else None

    def _pair(self, kind: str) -> Pair | None:
        """Two of a kind: by their names, or people by what they have to do with something."""
        if kind != "person":
            first, second = self._draws.sample(self._kinds[kind], 2)
            return Pair(Named(first), Named(second))
        hidden = [self._hidden(name, 1) for name in self._draws.sample(self._kinds[kind], 2)]
        return Pair(hidden[0], hidden[1]) if hidden[0] and hidden[1] else None

    def _listed(self, owner: str, slot: str) -> tuple[str, ...]:
        fact = self._facts.get(owner, slot)
        return names_in(fact[0]) if fact else ()

    def _kind_of(self, relation: str) -> str:
        return self._facts.relations[relation].subject

    def _subject_of(self, slot: str, relation: str) -> bool:
        """Whether what a list names can have a relation."""
        return self._facts.inverses[slot].subject == self._kind_of(relation)
