"""Words as `nltk.word_tokenize` would part them, as far as words of one character go.

WebArena asks only whether a character is a word of its own, so contractions and quotes are parted
here only where a single character may come of it. Sentences end where Punkt, having learned
nothing, would end them.
"""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = re.compile("[\u00ab\u201c\u2018\u201e]|`+")
_QUOTE_BEFORE_WORD: Final = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)")
_PERIOD: Final = re.compile(r"(?<=[^.])\.(?!\.)")
_LAST: Final = re.compile(r"[\])}>\"'\u00bb\u201d\u2019\s]*+\Z")
_NEXT: Final = re.compile(r"[)\";}\]*:@'({\[\u2018\u2019\u201c\u201d\u00ab\u00bb?!]|\s+(\S+)")
_WORD_BEFORE: Final = re.compile(
    r"[^\s()\"`{}\[\]:;&#*@'?!\u2018\u2019\u201c\u201d\u00ab\u00bb]*\Z"
)
_NUMBER_OR_INITIAL: Final = re.compile(r"-?[.,]?\d[\d,.-]*|[^\W\d]")
_COMMA_OR_COLON: Final = re.compile(r"([:,])(\D|\Z)")
_APART: Final = re.compile(r"\.{2,}|--|[;@#$%&\u2012-\u2015?!*\]\[(){}<>]")
_CLOSING: Final = re.compile("[\u00bb\u201d\u2019]|''")
_CLITIC: Final = re.compile(r"(?<=[^' ])('(?:s|m|d|ll|re|ve)?|n't)(?= )", re.IGNORECASE)
_D_YE: Final = re.compile(r"\bd(?='ye\b)", re.IGNORECASE)
_SPACED: Final = r" \g<0> "
_LONGEST_WORD: Final = 64


def words_of(text: str) -> list[str]:
    """The words and the marks of a text, in order."""
    text = _OPENING.sub(_SPACED, text).replace('"', " '' ")
    text = _QUOTE_BEFORE_WORD.sub("' ", text)
    text = _PERIOD.sub(_apart_if_last, text)
    text = _COMMA_OR_COLON.sub(r" \1 \2", text)
    text = _APART.sub(_SPACED, text)
    text = f" {' '.join(_CLOSING.sub(_SPACED, text).split())} "
    text = _D_YE.sub(r"\g<0> ", _CLITIC.sub(r" \1", text))
    return text.split()


def _apart_if_last(found: re.Match[str]) -> str:
    """Part a period from its word at a sentence's end; after a number the next word decides."""
    text, at = found.string, found.start()
    if _LAST.match(text, found.end()):
        return " . "
    following = _NEXT.match(text, found.end())
    if following is None:
        return "."
    before = _WORD_BEFORE.search(text[max(0, at - _LONGEST_WORD) : at])
    word = before.group().lstrip("-,") if before else ""
    after = following.group(1) or following.group()
    goes_on = after[0].islower() or after[0] in ",;:" or after in (".", "?", "!")
    return "." if goes_on and _NUMBER_OR_INITIAL.fullmatch(word) else " . "
