"""Invented names: coined words, no two alike, and the names that are built on them.

The two halves of a world speak two languages, whose words come from other syllables.
"""

from __future__ import annotations

import re

from agentgym_servers.generated_world.draws import Draws

BUILDINGS = ("Tower", "Bridge", "Lighthouse", "Theatre", "Library", "Observatory", "Aqueduct")
ACADEMIES = ("Academy", "Institute", "College", "Conservatory", "Athenaeum")
EVENTS = ("Congress", "Festival", "Regatta", "Exhibition", "Jubilee")
GENRES = ("novel", "opera", "play", "epic", "comedy")
_TITLES = (
    "The Lanterns of {}", "The Orchards of {}", "The Widow of {}", "The Clockmaker of {}",
    "The Bells of {}", "{} in Winter", "A Letter for {}", "The Salt Roads of {}",
    "The Heirs of {}", "The Ferryman of {}", "Midnight at {}", "The Quiet Kings of {}",
    "The Ashes of {}", "Harvest at {}", "The Mirrors of {}", "A Garden for {}",
)  # fmt: skip
_ONSETS = (
    ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "sk", "sv",
     "t", "tr", "v"),
    ("c", "ch", "d", "f", "j", "l", "ll", "m", "n", "p", "qu", "r", "s", "sh", "t", "th", "v", "x",
     "y", "z"),
)  # fmt: skip
_VOWELS = (("a", "e", "i", "o", "u", "ae", "y"), ("a", "e", "i", "o", "u", "ia", "eo"))
_CODAS = (
    ("ld", "rn", "sk", "mm", "rd", "lg", "nd", "st", "rv", "kk", "l", "n", "r"),
    ("l", "n", "r", "s", "th", "x", "m", "z", "sh", "ph", "nt"),
)
_ENDINGS = {
    ("town", 0): ("vik", "heim", "stad", "holm", "mark", "gard", "dal", "borg"),
    ("town", 1): ("ona", "issa", "ethia", "uque", "ador", "azan", "iphe", "omar"),
    ("given", 0): ("a", "e", "or", "id", "un", "ar", "is", "ek"),
    ("given", 1): ("ia", "eo", "as", "ine", "ul", "ax", "ey", "ome"),
    ("word", 0): ("en", "ar", "und", "esk", "ok", "il", "ulf", "ry"),
    ("word", 1): ("ael", "ique", "ora", "uz", "ethe", "isho", "amon", "yss"),
}
_TRIPLED = re.compile(r"[bcdfghjklmnpqrstvxz]{4}|[aeiouy]{4}|(.)\1\1")
"""What no word of either language holds: it could not be said."""

_REAL = frozenset(
    ["vostok", "bergen", "bremen", "dresden", "leiden", "norden", "minden", "verden", "sofia"]
)
"""Names of real places that the syllables would allow."""


class Names:
    """Coins the names of one world; a word that was coined once is never coined again."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._used: set[str] = set(_REAL)
        self.given = tuple([self._coin("given", half) for _ in range(160)] for half in (0, 1))
        """The given names of each half; many people share one."""

    def word(self, half: int, flavour: str = "word") -> str:
        """A new word of a half's language: `word` for anything, `town` for a place."""
        return self._coin(flavour, half)

    def person(self, half: int, surname: str | None = None) -> str:
        """A given name and a surname, which is new unless one is named."""
        while True:
            name = f"{self._draws.choice(self.given[half])} {surname or self.word(half)}"
            if name not in self._used:
                self._used.add(name)
                return name

    def titled(self, patterns: tuple[str, ...], word: str) -> str:
        """A name of one of the patterns around a word, unlike all that went before."""
        for pattern in self._draws.shuffled(patterns):
            name = pattern.format(word)
            if name not in self._used:
                self._used.add(name)
                return name
        raise ValueError(f"every name around {word!r} is taken")

    def free(self, patterns: tuple[str, ...], word: str) -> tuple[str, ...]:
        """The patterns by which nothing is named around `word` yet."""
        return tuple(p for p in patterns if p.format(word) not in self._used)

    def near(self, word: str) -> str:
        """A new word that differs from `word` in one vowel or has one letter more."""
        places = [place for place in range(1, len(word)) if word[place] in "aeiou"]
        for place in self._draws.shuffled(places):
            for vowel in self._draws.shuffled("aeiou"):
                coined = word[:place] + vowel + word[place + 1 :]
                if coined.lower() not in self._used:
                    self._used.add(coined.lower())
                    return coined
        return self.near(word + self._draws.choice("elnrst"))

    def _coin(self, flavour: str, half: int) -> str:
        draws = self._draws
        while True:
            syllables = 1 if draws.chance(0.55) else 2
            text = "".join(
                draws.choice(_ONSETS[half]) + draws.choice(_VOWELS[half]) for _ in range(syllables)
            )
            text += draws.choice(_CODAS[half]) + draws.choice(_ENDINGS[flavour, half])
            if len(text) >= 5 and text not in self._used and not _TRIPLED.search(text):
                self._used.add(text)
                return text.capitalize()


def patterns(kind: str) -> tuple[str, ...]:
    """The patterns of names of a kind that are built around a coined word."""
    if kind == "work":
        return _TITLES
    endings = {"building": BUILDINGS, "academy": ACADEMIES, "event": EVENTS}[kind]
    return tuple(f"{{}} {ending}" for ending in endings)
