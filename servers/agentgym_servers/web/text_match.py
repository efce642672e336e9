"""WebArena's rules for texts: equal, or included; knows nothing about tasks and pages."""

from __future__ import annotations

from agentgym_servers.web.word_tokens import words_of


def clean_answer(text: str) -> str:
    """Strip, take off one pair of equal quotes around the whole, and lower the case."""
    text = text.strip()
    for quote in "'\"":
        if text.startswith(quote) and text.endswith(quote):
            # A lone quote is its own pair, and nothing is left of it.
            return text[1:-1].lower()
    return text.lower()


def exact_match(reference: str, found: str) -> bool:
    """Whether both are equal once they are cleaned."""
    return clean_answer(reference) == clean_answer(found)


def must_include(reference: str, found: str, *, as_word: bool = False) -> bool:
    """Whether the reference is part of what was found, both cleaned.

    With `as_word`, a reference of one character must be a word of its own: 5 is not in 25.
    """
    reference, found = clean_answer(reference), clean_answer(found)
    if as_word and len(reference) == 1 and len(words_of(reference)) == 1:
        return reference in words_of(found)
    return reference in found


def includes_every(references: list[str], found: str) -> list[bool]:
    """The rule for answers: each reference is included; a lone one counts as a word."""
    return [must_include(one, found, as_word=len(references) == 1) for one in references]


def includes_choice(reference: str, found: str) -> bool:
    """The rule for pages: any of the choices that ` |OR| ` joins is included."""
    return any(must_include(choice, found) for choice in reference.split(" |OR| "))
