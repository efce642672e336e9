"""The expert: understands a question, searches for what it wants to know, and reads the answer.

It sees nothing but the question and the passages that its searches bring.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from agentgym_servers.generated_world.answers import answer_forms
from agentgym_servers.generated_world.facts import Value
from agentgym_servers.generated_world.grammar import Understanding
from agentgym_servers.generated_world.language import Language
from agentgym_servers.generated_world.plans import carry_out
from agentgym_servers.generated_world.reading import Reading
from agentgym_servers.retrieval.passages import Passage

Solving = Generator[str, Sequence[Passage], str]
"""Yields search queries, is sent the passages found, and returns the answer."""


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
