"""Questions that only a language model can settle: WebArena's `fuzzy_match`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agentgym_env.errors import AgentGymError

Judge = Callable[[str], str]
"""A prompt in, the model's reply out."""

_LONGEST_ANSWER: Final = 4000
_SAME_ANSWER: Final = """Grade an answer to a question. Other words for the same thing are fine: \
what counts is whether the answer means what the reference means. The special text 'N/A' stands \
for 'this cannot be done'.
Question: {question}
Reference: {reference}
Answer: {answer}
Close with one verdict: correct, incorrect or partially correct."""
_SAME_REASON: Final = """A task cannot be done. Somebody who tried it says why. Does what they say \
agree with the real reason, be it only by implication?
Task: {question}
Real reason: {reference}
Their reason: {answer}
Close with one verdict: same or different."""


class JudgeMissing(AgentGymError):
    """A task needs a judge and there is none, so there is no verdict on it."""


class JudgeUnclear(AgentGymError):
    """The judge's reply holds no verdict."""


def same_answer(judge: Judge, question: str, reference: str, answer: str) -> bool:
    """Whether the judge calls the answer correct; partially correct is not enough."""
    reply = judge(_prompt(_SAME_ANSWER, question, reference, answer)).lower()
    return _verdict(reply, against=("partially correct", "incorrect"), for_it="correct")


def same_reason(judge: Judge, question: str, reference: str, answer: str) -> bool:
    """Whether the judge calls the reason that is given the one why the task cannot be done."""
    reply = judge(_prompt(_SAME_REASON, question, reference, answer)).lower()
    return _verdict(reply, against=("different",), for_it="same")


def _prompt(template: str, question: str, reference: str, answer: str) -> str:
    # The template alone is formatted; braces in the texts stay what they are.
    return template.format(question=question, reference=reference, answer=answer[:_LONGEST_ANSWER])


def _verdict(reply: str, *, against: tuple[str, ...], for_it: str) -> bool:
    if any(word in reply for word in against):
        return False
    if for_it not in reply:
        raise JudgeUnclear(f"The judge said {reply[:200]!r}; it is to say {for_it!r} or not.")
    return True
