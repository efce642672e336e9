"""Make the corpus of Search: questions of one hop in a generated world with short names.

    python examples/several_worlds/corpus.py

The generator's names of held-out questions have other syllables than those of training questions,
which a policy of a million parameters cannot copy token by token. Here every name is two of the
same syllables, in another combination for each word. Only at the very beginning of a passage's
text a name stays as the generator coined it, and then differs from the passage's title.
"""

from __future__ import annotations

import lzma
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from agentgym_servers.worlds.search.corpora import SearchWorld, encoded

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.several_worlds.setting import HERE
from tools.generated_world import facts
from tools.generated_world.__main__ import make

_T = TypeVar("_T", bound=msgspec.Struct)
CORPUS = "synthetic:7?passages=2000&hops=1&distractors=0&paraphrase=0"
"""One hop, without near-twins and other wordings."""
FIRST = [onset + vowel for onset in "BDFGHKLMNPRSTVZ" for vowel in ("a", "e", "i", "o", "u")]
LAST = [
    onset + rhyme
    for onset in ("b", "d", "g", "l", "m", "n", "r", "s", "t", "v")
    for rhyme in ("an", "el", "in", "or", "us")
]
NAMES = tuple(first + last for first in FIRST for last in LAST)
_PAIR = re.compile(rf"\b(?:{'|'.join(FIRST)})(?:{'|'.join(LAST)})\b")


def _coined(half: int) -> str:
    endings = {e for (_, own), found in facts._ENDINGS.items() if own == half for e in found}
    onset, vowel, coda, ending = (
        f"(?:{'|'.join(parts)})"
        for parts in (facts._ONSETS[half], facts._VOWELS[half], facts._CODAS[half], sorted(endings))
    )
    return rf"\b(?=[A-Z])(?i:(?:{onset}{vowel}){{1,2}}{coda}{ending})\b"


_COINED = re.compile(f"{_coined(0)}|{_coined(1)}")
"""A word that the generator has coined, for either split."""
_WORD = re.compile(r"[A-Za-z]+")


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with other names."""
    return _WORD.sub(lambda match: names.get(match[0], match[0]), text)


def new_names(words: Iterable[str], rng: random.Random) -> dict[str, str]:
    """Word -> another name, all different."""
    free = list(NAMES)
    rng.shuffle(free)
    return dict(zip(sorted(set(words)), free, strict=False))


def short_names(text: str) -> list[str]:
    """The words of a text that are names of two syllables."""
    return _PAIR.findall(text)


def shortened(world: SearchWorld) -> SearchWorld:
    """The same world with short names, everywhere and in the expert's searches."""
    text = encoded(world).decode()
    found = set(_COINED.findall(text))
    names = new_names(found, random.Random(0))
    clash = set(names.values()) & set(_WORD.findall(text)) - found
    if len(names) < len(found) or clash:
        raise ValueError(f"{len(names)} names for {len(found)} words; in use: {sorted(clash)}")

    def swap(text: str) -> str:
        return renamed(text, names)

    return SearchWorld(
        world.name,
        _mapped(world.passages, swap),
        {split: _mapped(questions, swap) for split, questions in world.questions.items()},
    )


def _mapped(values: list[_T], swap: Callable[[str], str]) -> list[_T]:
    kind = type(values[0])
    return [msgspec.json.decode(swap(msgspec.json.encode(v).decode()), type=kind) for v in values]


if __name__ == "__main__":
    path = HERE / "corpus.jsonl.xz"
    path.write_bytes(lzma.compress(encoded(shortened(make(CORPUS)))))
    print(path)
