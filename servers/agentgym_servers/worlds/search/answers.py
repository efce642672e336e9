"""Compares an answer with the golden ones, as SQuAD does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normal(text: str) -> str:
    """A text as SQuAD compares it: lower case, no punctuation, no articles, single spaces."""
    kept = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", kept).split())


def exact_match(answer: str, golden: Sequence[str]) -> bool:
    """Whether the answer is one of the golden ones after normalisation."""
    return _key(answer) in map(_key, golden)


def sub_exact_match(answer: str, golden: Sequence[str]) -> bool:
    """Whether the answer contains one of the golden ones after normalisation."""
    given = _key(answer)
    return any(key in given for key in map(_key, golden) if key)


def f1(answer: str, golden: Sequence[str]) -> float:
    """The best F1 of words that the answer and a golden one share."""
    given = _key(answer).split()
    return max((_f1(given, _key(text).split()) for text in golden), default=0.0)


def _key(text: str) -> str:
    """A text in the form that is compared; one of only articles and punctuation stays as it is.

    SQuAD's rule leaves nothing of "The", so that an empty answer would be right.
    """
    return normal(text) or " ".join(text.lower().split())


def _f1(given: Sequence[str], golden: Sequence[str]) -> float:
    common = (Counter(given) & Counter(golden)).total()
    return 2 * common / (len(given) + len(golden)) if common else 0.0
