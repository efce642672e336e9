"""The expert: understands a question, searches for what it wants to know, and reads the answer.

It sees nothing but the question and the passages that its searches bring.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from agentgym_servers.generated_world.answers import answer_forms
from agentgym_servers.generated_world.facts import Value
from agentgym_servers.generated_world.grammar import understood
from agentgym_servers.generated_world.plans import carry_out
from agentgym_servers.generated_world.reading import find, search_words
from agentgym_servers.retrieval.passages import Passage

Solving = Generator[str, Sequence[Passage], str]
"""Yields search queries, is sent the passages found, and returns the answer."""


def solver(question: str) -> Solving:
    """Solve a question by searching; an empty answer says that it is given up.

    The first query for a fact is the name of what it is about; if the passages do not tell it,
    words are added that a passage might use for it.
    """
    plan = understood(question)
    if plan is None:
        return ""
    found: dict[str, Sequence[Passage]] = {}
    work = carry_out(plan)
    try:
        wanted = next(work)
        while True:
            value: Value | None = None
            for query in (wanted.subject, *_further(wanted.subject, wanted.relation)):
                if query not in found:
                    found[query] = yield query
                value = find(found[query], wanted.subject, wanted.relation)
                if value is not None:
                    break
            wanted = work.send(value)
    except StopIteration as end:
        answer: Value | None = end.value
    return "" if answer is None else answer_forms(answer)[0]


def _further(subject: str, relation: str) -> list[str]:
    return [f"{subject} {words}" for words in search_words(relation)]
