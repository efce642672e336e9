"""How good an answer is: SQuAD's exact match and F1 (arXiv:1606.05250), and sub-EM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentgym_servers.generated_world.answers import normal


def exact_match(answer: str, golden: Sequence[str]) -> bool:
    """Whether the answer is one of the golden ones after normalisation."""
    return _key(answer) in map(_key, golden)


def sub_exact_match(answer: str, golden: Sequence[str]) -> bool:
    """Whether the answer contains one of the golden ones after normalisation."""
    said = _key(answer)
    return any(key in said for key in map(_key, golden) if key)


def f1(answer: str, golden: Sequence[str]) -> float:
    """The best F1 of words that the answer and a golden one share."""
    said = _key(answer).split()
    return max((_f1(said, _key(text).split()) for text in golden), default=0.0)


def _key(text: str) -> str:
    """A text as it is compared: one of articles and punctuation alone, such as "The", as it is.

    SQuAD's rule leaves nothing of those, so that an empty answer would be right.
    """
    return normal(text) or " ".join(text.lower().split())


def _f1(said: Sequence[str], golden: Sequence[str]) -> float:
    common = (Counter(said) & Counter(golden)).total()
    return 2 * common / (len(said) + len(golden)) if common else 0.0
