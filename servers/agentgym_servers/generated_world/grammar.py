"""Plans as questions in English, and questions as plans again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from agentgym_servers.generated_world.forms import NUMBERS
from agentgym_servers.generated_world.language import Degree, Language
from agentgym_servers.generated_world.plans import (
    Best,
    Group,
    Look,
    Member,
    Named,
    Pair,
    Plan,
    Term,
    Total,
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
