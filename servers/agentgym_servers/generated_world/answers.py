"""Which texts count as an answer."""

from __future__ import annotations

import re
import string

from agentgym_servers.generated_world.facts import Day, Measure, Value
from agentgym_servers.generated_world.forms import date_forms, measure_forms

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def answer_forms(value: Value) -> list[str]:
    """Every text that is right, the plainest first; exact match ignores case and articles."""
    if isinstance(value, Day):
        plain, month_first, ordinal = date_forms(value)
        return [plain, month_first, ordinal, f"{value.year}-{value.month:02}-{value.day:02}"]
    if isinstance(value, Measure):
        return list(measure_forms(value))
    if isinstance(value, str) and value.startswith("River "):
        return [value, value.removeprefix("River ")]
    return [str(value)]


def normal(text: str) -> str:
    """A text as SQuAD compares it: lower case, no punctuation, no articles, single spaces."""
    kept = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", kept).split())
