"""The findings of an audit's rules; imports no models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What a rule returns; `check_rule` adds its name."""

    detail: str
    notes: Sequence[str] = ()
    """Notes that are not failures."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    status: Literal["pass", "FAIL", "skipped"] = "pass"
    remedy: str = ""
    """What to do with the model, template or data."""
    place: ConversationDifference | None = None
    rule: str = ""
    proves: str = ""
    """The first line of the rule's docstring."""


class RuleFailed(Exception):
    """A rule failed."""

    def __init__(
        self, fact: str, remedy: str, place: ConversationDifference | None = None, **figures: Any
    ) -> None:
        super().__init__(fact)
        self.finding = RuleResult(fact, (), figures, "FAIL", remedy, place)


class RuleSkipped(Exception):
    """A rule cannot be applied; the message is the reason."""


def check_rule(name: str, rule: Callable[[Any], RuleResult], subject: Any) -> RuleResult:
    """Check a rule; never raises."""
    try:
        found = rule(subject)
    except RuleSkipped as reason:
        found = RuleResult(str(reason), status="skipped")
    except RuleFailed as failure:
        found = failure.finding
    except Exception as error:
        # The boundary to third-party models, tokenizers and templates.
        text = str(error).strip() or "no message"
        found = RuleResult(
            f"{type(error).__name__}: {text.splitlines()[0][:300]}", status="FAIL",
            remedy="the code of the model, tokenizer or template failed; try it with transformers "
            "alone",
        )  # fmt: skip
    return replace(found, rule=name, proves=str(rule.__doc__).partition("\n")[0])


def first_difference(expected: Sequence[Any], found: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ; None if they are equal."""
    for i, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            return i
    return None if len(expected) == len(found) else min(len(expected), len(found))


def text_place(where: str, expected: str, found: str) -> ConversationDifference:
    """The place of the first difference between two texts."""
    at = first_difference(expected, found) or 0
    around = slice(max(0, at - _AROUND), at + _AROUND)
    return ConversationDifference(where, expected=expected[around], found=found[around])
