"""The language of generated worlds."""

from __future__ import annotations

from agentgym_servers.generated_world.forms import DATE
from agentgym_servers.generated_world.language import Language
from agentgym_servers.generated_world.phrases import DEGREES, GROUPS, PHRASES, TOTALS
from agentgym_servers.generated_world.schema import MAKERS, RELATIONS
from agentgym_servers.generated_world.sentences import FACTS, LEADS

_GENRES = "|".join(MAKERS)
LANGUAGE = Language(
    relations=RELATIONS,
    leads=LEADS,
    facts=FACTS,
    patterns={
        "person": r"[A-Z]\w+ [A-Z]\w+",
        "town": r"[A-Z]\w+",
        "building": r"[A-Z]\w+ [A-Z]\w+",
        "academy": r"[A-Z]\w+ [A-Z]\w+",
        "event": r"[A-Z]\w+ [A-Z]\w+",
        "river": r"River [A-Z]\w+",
        "work": rf"(?:{_GENRES}) [A-Z]\w*(?: (?:(?:of|in|at|for) )?[A-Z]\w*)*",
        "date": DATE,
        "year": r"\d+",
        "number": r"[\d,]+",
    },
    name=rf"(?:the (?:(?:{_GENRES}) )?)?([A-Z]\w*(?: (?:(?:of|in|at|for|the) )*[A-Z]\w*)*)",
    phrases=PHRASES,
    groups=GROUPS,
    degrees=DEGREES,
    totals=TOTALS,
)
