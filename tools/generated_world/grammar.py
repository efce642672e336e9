"""Plans as questions in English, and questions as plans again."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

from agentgym_servers.worlds.search.corpora import Solving
from agentgym_servers.worlds.search.retrieval.passages import Passage
from tools.generated_world.facts import Value
from tools.generated_world.language import (
    NUMBERS,
    Best,
    Degree,
    Group,
    Language,
    Look,
    Member,
    Named,
    Pair,
    Plan,
    Term,
    Total,
    answer_forms,
    carry_out,
    read_value,
)

Choose = Callable[[tuple[str, str]], str]
"""Picks the near or the far wording of a pair."""

_OF_THE_TWO = "the {} of the two"

_SIZES = (2, 3, 4)


class Words:
    """Puts plans into words; `mention` names an entity as a sentence does."""

    def __init__(self, language: Language, mention: Callable[[str], str], choose: Choose) -> None:
        self._language, self._mention, self._choose = language, mention, choose

    def question(self, plan: Plan) -> str:
        """The question that asks for a plan."""
        pair, asked = pair_of(plan), self._asked(plan)
        if pair is not None:
            compared = f"Compare {self._term(pair.first)} with {self._term(pair.second)}"
            return f"{compared}: {asked[0].lower()}{asked[1:]}"
        return asked[0].upper() + asked[1:]

    def _asked(self, plan: Plan) -> str:
        if isinstance(plan, Look):
            return self._choose(self._language.phrases[plan.relation].ask).format(
                self._term(plan.of)
            )
        if isinstance(plan, Total):
            return self._choose(self._language.totals[plan.relation]).format(self._many(plan.among))
        if isinstance(plan, Member):
            start = self._choose(self._language.groups[plan.among.slot].both).format(
                self._term(plan.among.of)
            )
            return f"{start} {self._holds(plan)}?"
        raise ValueError(f"no question asks for {plan} itself")

    def _term(self, plan: Term) -> str:
        if isinstance(plan, Named):
            return self._mention(plan.name)
        if isinstance(plan, Look):
            return self._choose(self._language.phrases[plan.relation].noun).format(
                self._term(plan.of)
            )
        if isinstance(plan, Member):
            start = self._choose(self._language.groups[plan.among.slot].one).format(
                self._term(plan.among.of)
            )
            return f"{start} {self._holds(plan)}"
        degree = next(
            d
            for d in self._language.degrees
            if (d.relation, d.least) == (plan.relation, plan.least)
        )
        if isinstance(plan.among, Pair):
            return _OF_THE_TWO.format(degree.of_two)
        return f"the {_degree(degree, plan.among.size)} of {self._many(plan.among)}"

    def _many(self, group: Group) -> str:
        many = self._choose(self._language.groups[group.slot].many)
        return many.format(self._term(group.of), n=NUMBERS[group.size])

    def _holds(self, plan: Member) -> str:
        holds = self._language.phrases[plan.relation].holds
        if holds is None:
            raise ValueError(f"no words say that {plan.relation!r} has a value")
        return self._choose(holds).format(self._term(plan.value))


class Understanding:
    """Turns questions into plans."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._name = re.compile(language.name)

    def plan(self, question: str) -> Plan | None:
        """The plan that a question asks for; None where the grammar does not know it."""
        match = re.fullmatch(r"Compare (.+?) with (.+): (.+)", question)
        if match is None:
            return next(self._questions(question, None), None)
        first = next(self._terms(match[1], None), None)
        second = next(self._terms(match[2], None), None)
        if first is None or second is None:
            return None
        asked = match[3][0].upper() + match[3][1:]
        return next(self._questions(asked, Pair(first, second)), None)

    def _questions(self, text: str, pair: Pair | None) -> Iterator[Plan]:
        for relation, phrase in self._language.phrases.items():
            for about in _fits(phrase.ask, text):
                yield from (Look(relation, term) for term in self._terms(about, pair))
        for relation, totals in self._language.totals.items():
            for about in _fits(totals, text):
                yield from (Total(relation, group) for group in self._groups(about))
        for slot, words in self._language.groups.items():
            for start in words.both:
                yield from self._members(slot, start, text.removesuffix("?"))

    def _terms(self, text: str, pair: Pair | None) -> Iterator[Term]:
        """Every term that a text may be; of two readings the first is the outermost."""
        name = self._name.fullmatch(text)
        if name is not None:
            yield Named(name[1])
            return
        for degree in self._language.degrees:
            if pair is not None and text == _OF_THE_TWO.format(degree.of_two):
                yield Best(degree.relation, degree.least, pair)
            for size in _SIZES:
                start = f"the {_degree(degree, size)} of "
                if text.startswith(start):
                    for group in self._groups(text.removeprefix(start)):
                        if group.size == size:
                            yield Best(degree.relation, degree.least, group)
        for slot, words in self._language.groups.items():
            for start in words.one:
                yield from self._members(slot, start, text)
        for relation, phrase in self._language.phrases.items():
            for about in _fits(phrase.noun, text):
                yield from (Look(relation, term) for term in self._terms(about, pair))

    def _groups(self, text: str) -> Iterator[Group]:
        for slot, words in self._language.groups.items():
            for size in _SIZES:
                many = (words.many[0], words.many[1])
                for about in _fits(many, text, n=NUMBERS[size]):
                    yield from (Group(slot, term, size) for term in self._terms(about, None))

    def _members(self, slot: str, start: str, text: str) -> Iterator[Member]:
        """The members that a text picks from a list; its owner is always named."""
        head = _pattern(start + " ")
        for relation, phrase in self._language.phrases.items():
            for holds in phrase.holds or ():
                match = re.fullmatch(f"{head}{_pattern(holds)}", text)
                owner = self._name.fullmatch(match[1]) if match else None
                if match is None or owner is None:
                    continue
                for value in self._terms(match[2], None):
                    yield Member(Group(slot, Named(owner[1]), 0), relation, value)


def pair_of(plan: Plan | Named) -> Pair | None:
    """The pair that a plan compares, if it compares one."""
    if isinstance(plan, Best) and isinstance(plan.among, Pair):
        return plan.among
    return pair_of(plan.of) if isinstance(plan, Look) else None


def _fits(wordings: tuple[str, str], text: str, n: str = "") -> Iterator[str]:
    """What stands for `{}` where a text is one of the wordings."""
    for wording in wordings:
        match = re.fullmatch(_pattern(wording.replace("{n}", n)), text)
        if match is not None:
            yield match[1]


@cache
def _pattern(wording: str) -> str:
    return re.escape(wording).replace(r"\{\}", "(.+)")


def _degree(degree: Degree, size: int) -> str:
    return degree.of_two if size == 2 else degree.of_more


TOP = 3
"""How many passages a search brings."""

_K1, _B = 1.5, 0.75

_MARGIN = 1.02

_RARE = 60
"""A word in fewer passages than these leads to the passages that a bound is taken from."""

_WORD = re.compile(r"\b\w\w+\b")

STOPWORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then
    there these they this to was will with""".split()  # noqa: SIM905
)
"""The words that a search passes over, as bm25s and Lucene have them."""


class OneSearch:
    """What a search for a question's own text can bring from a corpus."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._place = {passage.id: place for place, passage in enumerate(passages)}
        self._counts = [dict(Counter(words_of(passage.contents))) for passage in passages]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._lengths) / len(passages)
        self._holders: dict[str, list[int]] = {}
        for place, counts in enumerate(self._counts):
            for word in counts:
                self._holders.setdefault(word, []).append(place)

    def misses(self, question: str, ids: Iterable[str]) -> bool:
        """Whether none of these passages can be among the first three for the question."""
        query = self._weighed(words_of(question))
        bound = self._bound(query)
        return all(self._score(query, self._place[id]) * _MARGIN < bound for id in ids)

    def naming(self, name: str) -> list[str]:
        """The ids of the passages that hold a name."""
        holders = [self._holders.get(word, []) for word in words_of(name)]
        rarest = min(holders, key=len, default=[])
        return [self._passages[p].id for p in rarest if name in self._passages[p].contents]

    def _weighed(self, words: Sequence[str]) -> list[tuple[str, float]]:
        """Each word that some passage has, with how much it counts."""
        total, query = len(self._passages), []
        for word in words:
            held = len(self._holders.get(word, ()))
            if held:
                query.append((word, math.log(1 + (total - held + 0.5) / (held + 0.5))))
        return query

    def _bound(self, query: Sequence[tuple[str, float]]) -> float:
        near: set[int] = set()
        for word, _ in query:
            if len(self._holders[word]) < _RARE:
                near.update(self._holders[word])
        best = sorted((self._score(query, place) for place in near), reverse=True)
        return best[TOP - 1] if len(best) >= TOP else 0.0

    def _score(self, query: Sequence[tuple[str, float]], place: int) -> float:
        counts = self._counts[place]
        norm = _K1 * (1 - _B + _B * self._lengths[place] / self._mean)
        score = 0.0
        for word, weight in query:
            if word in counts:
                score += weight * counts[word] / (counts[word] + norm)
        return score


def words_of(text: str) -> list[str]:
    """The words of a text that a search looks at."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOPWORDS]


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
        """Whether `passages` contains the only passage that can state a fact."""
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


class Solver:
    """Solves questions of one language by searching."""

    def __init__(self, language: Language) -> None:
        self._understanding, self._reading = Understanding(language), Reading(language)

    def __call__(self, question: str) -> Solving:
        """Solve a question; an empty answer says that it is given up.

        The first query for a fact is the name of what it is about; if the passages do not tell
        it, words are added that a passage might use for it. No query is made twice.
        """
        plan = self._understanding.plan(question)
        if plan is None:
            return ""
        found: dict[str, Sequence[Passage]] = {}
        work = carry_out(plan)
        try:
            wanted = next(work)
            while True:
                value: Value | None = None
                for query in self._reading.queries(wanted.subject, wanted.relation):
                    if query not in found:
                        found[query] = yield query
                    value = self._reading.find(found[query], wanted.subject, wanted.relation)
                    if value is not None or self._reading.only_here(
                        found[query], wanted.subject, wanted.relation
                    ):
                        break
                wanted = work.send(value)
        except StopIteration as end:
            answer: Value | None = end.value
        return "" if answer is None else answer_forms(answer)[0]
