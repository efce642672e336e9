"""WorldSpec: what a generated world is made from, as a value and as a line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from agentgym_env.errors import BadRequest

SCHEME = "synthetic"
MOST_HOPS = 4
_EXAMPLE = "synthetic:7?hops=3-4&distractors=2&paraphrase=0.5"


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """Everything that a world depends on: the same value gives the same world everywhere."""

    seed: int = 0
    """Any integer from 0; each seed has its own people, places and history."""
    passages: int = 10_000
    """Passages in the corpus, distractors included; 400 at least."""
    questions: int = 6_000
    """Questions in both splits; one in ten is in the test split."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """How many passages a question needs: any of 1 to 4, rising."""
    distractors: int = 1
    """Near-twins of every second entity, 0 to 5: a like name and a passage of the same words."""
    paraphrase: float = 0.5
    """How often a question words a relation as no passage does, 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse what no world can be made from."""
        if self.seed < 0:
            raise BadRequest(f"a world's seed is 0 or more, got {self.seed}")
        if self.passages < 400:
            raise BadRequest(f"a world has 400 passages at least, got {self.passages}")
        if self.questions < 10:
            raise BadRequest(f"a world has 10 questions at least, got {self.questions}")
        if not self.hops or any(not 1 <= hop <= MOST_HOPS for hop in self.hops):
            raise BadRequest(f"hops are among 1 to {MOST_HOPS}, got {self.hops}")
        if list(self.hops) != sorted(set(self.hops)):
            raise BadRequest(f"hops are named once each and rising, got {self.hops}")
        if not 0 <= self.distractors <= 5:
            raise BadRequest(f"distractors are 0 to 5 for an entity, got {self.distractors}")
        if not 0 <= self.paraphrase <= 1:
            raise BadRequest(f"paraphrase is a share from 0 to 1, got {self.paraphrase}")

    @classmethod
    def parse(cls, text: str) -> WorldSpec:
        """The spec that a line such as `synthetic:7?hops=3-4&paraphrase=1` names."""
        match = re.fullmatch(rf"{SCHEME}(?::(\d+))?(?:\?(.*))?", text)
        if match is None:
            raise BadRequest(f"a generated world is named like {_EXAMPLE!r}, got {text[:100]!r}")
        values: dict[str, Any] = {"seed": int(match[1] or 0)}
        for part in filter(None, (match[2] or "").split("&")):
            name, equals, value = part.partition("=")
            if name in values or not equals:
                raise BadRequest(
                    f"each parameter of a world is given once, as NAME=VALUE; got {part[:100]!r}"
                )
            values[name] = _value(name, value)
        return cls(**values)

    def __str__(self) -> str:
        """The shortest line that `parse` reads back as this spec."""
        default = WorldSpec()
        parts = [
            f"{field.name}={_text(field.name, getattr(self, field.name))}"
            for field in fields(self)
            if field.name != "seed" and getattr(self, field.name) != getattr(default, field.name)
        ]
        return f"{SCHEME}:{self.seed}" + ("?" + "&".join(parts) if parts else "")


def _value(name: str, text: str) -> int | float | tuple[int, ...]:
    try:
        if name in ("passages", "questions", "distractors"):
            return int(text)
        if name == "paraphrase":
            return float(text)
        if name == "hops":
            return tuple(hop for part in text.split(",") for hop in _span(part))
    except ValueError:
        raise BadRequest(f"{name}={text[:100]!r} is not a number; try {_EXAMPLE!r}") from None
    known = ", ".join(field.name for field in fields(WorldSpec) if field.name != "seed")
    raise BadRequest(f"a world has no parameter {name[:100]!r}; there are {known}")


def _span(text: str) -> range:
    low, dash, high = text.partition("-")
    return range(int(low), int(high if dash else low) + 1)


def _text(name: str, value: Any) -> str:
    return ",".join(map(str, value)) if name == "hops" else str(value)
