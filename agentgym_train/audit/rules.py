"""What a rule of an audit returns or raises, and the finding made of it; imports no models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_AROUND = 24
"""Characters shown before and after the first difference of two texts."""


@dataclass(frozen=True, slots=True)
class ConversationDifference:
    """The first difference between two versions of a conversation."""

    where: str
    """Such as "episode 3, turn 2"."""
    token: int | None = None
    """Index into the compared ids; None if texts are compared."""
    expected_ids: Sequence[int] = ()
    found_ids: Sequence[int] = ()
    expected: str = ""
    """Decoded text around the difference."""
    found: str = ""


class RuleFailed(Exception):
    """A rule failed. `remedy` tells users what to do with their model, template or data."""

    def __init__(
        self, fact: str, remedy: str, place: ConversationDifference | None = None, **figures: Any
    ) -> None:
        super().__init__(fact)
        self.fact = fact
        self.remedy = remedy
        self.place = place
        self.figures = figures


class RuleSkipped(Exception):
    """A rule cannot be applied; the message is the reason."""


@dataclass(frozen=True, slots=True)
class RulePassed:
    """A rule passed."""

    detail: str
    notes: Sequence[str] = ()
    """Notes that are not failures."""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule."""

    rule: str
    proves: str
    """The first line of the rule's docstring."""
    status: Literal["pass", "FAIL", "skipped"]
    detail: str
    remedy: str = ""
    notes: Sequence[str] = ()
    place: ConversationDifference | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


def check_rule(name: str, rule: Callable[[Any], RulePassed], subject: Any) -> RuleResult:
    """Check a rule; never raises."""
    proves = str(rule.__doc__).partition("\n")[0]
    try:
        passed = rule(subject)
    except RuleSkipped as reason:
        return RuleResult(name, proves, "skipped", str(reason))
    except RuleFailed as drift:
        return RuleResult(
            name, proves, "FAIL", drift.fact, drift.remedy, place=drift.place, figures=drift.figures
        )
    except Exception as error:
        # The boundary to third-party models, tokenizers and templates.
        text = str(error).strip() or "no message"
        fact = f"{type(error).__name__}: {text.splitlines()[0][:300]}"
        remedy = (
            "the code of the model, tokenizer or template failed; try it with transformers alone"
        )
        return RuleResult(name, proves, "FAIL", fact, remedy)
    return RuleResult(
        name, proves, "pass", passed.detail, notes=passed.notes, figures=passed.figures
    )


def first_difference(expected: Sequence[Any], found: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ; None if they are equal."""
    for i, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            return i
    return None if len(expected) == len(found) else min(len(expected), len(found))


def text_place(where: str, expected: str, found: str) -> ConversationDifference:
    """The place of the first difference between two texts."""
    at = first_difference(expected, found) or 0
    start = max(0, at - _AROUND)
    end = at + _AROUND
    return ConversationDifference(where, None, (), (), expected[start:end], found[start:end])
