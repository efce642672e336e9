"""What there is in a generated world: the kinds of entities and the relations between them."""

from __future__ import annotations

from agentgym_servers.generated_world.facts import Relation

KINDS = ("person", "town", "work", "building", "academy", "event", "river")
ARTICLED = frozenset({"building", "academy", "event", "river"})
"""The kinds whose names take an article inside a sentence."""
CRAFTS = {
    "novelist": "novels",
    "composer": "operas",
    "playwright": "plays",
    "poet": "poems",
    "painter": "paintings",
    "sculptor": "statues",
    "architect": "buildings",
    "surveyor": "maps",
    "engraver": "prints",
    "naturalist": "treatises",
}
"""Every profession and what its members make."""
MAKERS = {
    "novel": "novelist",
    "opera": "composer",
    "play": "playwright",
    "comedy": "playwright",
    "epic": "poet",
}
"""Every genre and the profession it takes."""
RELATIONS = (
    Relation("born_in", "person", "town"),
    Relation("born_on", "person", "date"),
    Relation("buried_in", "person", "town"),
    Relation("married", "person", "person", inverse="married", both_ways=True),
    Relation("output", "person", "number"),
    Relation("taught_at", "person", "academy"),
    Relation("teacher", "person", "person", inverse="pupils", listed=True),
    Relation("fellow_of", "person", "academy", inverse="fellows", listed=True),
    Relation("known_for", "person", "work"),
    Relation("mayor", "town", "person"),
    Relation("settled", "town", "year"),
    Relation("population", "town", "number"),
    Relation("river", "town", "river", inverse="towns", listed=True),
    Relation("maker", "work", "person", inverse="known_for", both_ways=True),
    Relation("set_in", "work", "town"),
    Relation("finished", "work", "year"),
    Relation("dedicated_to", "work", "person", inverse="honoured_by"),
    Relation("kept_at", "work", "academy", inverse="treasure"),
    Relation("architect", "building", "person", inverse="designed"),
    Relation("stands_in", "building", "town", inverse="landmark"),
    Relation("opened_on", "building", "date"),
    Relation("height", "building", "number"),
    Relation("founder", "academy", "person", inverse="founded"),
    Relation("seat", "academy", "town", inverse="hosts"),
    Relation("begun", "academy", "year"),
    Relation("members", "academy", "number"),
    Relation("venue", "event", "town", inverse="hosted"),
    Relation("leader", "event", "person", inverse="led"),
    Relation("held_on", "event", "date"),
    Relation("surveyor", "river", "person", inverse="surveyed"),
    Relation("length", "river", "number"),
    Relation("mouth", "river", "town"),
)
