"""Near-twins: entities that are easily taken for another and are never asked about."""

from __future__ import annotations

from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import Day, Entity, FactBase, Value
from agentgym_servers.generated_world.naming import Names, patterns


def add_twin(facts: FactBase, names: Names, draws: Draws, entity: Entity) -> None:
    """Add an entity with a name like another's, and facts of the same relations."""
    twin = Entity(_near_name(names, draws, entity), entity.kind, entity.half)
    twin.sort, twin.gender, twin.province = entity.sort, entity.gender, entity.province
    if twin.kind in ("building", "academy", "event"):
        twin.sort = twin.name.rpartition(" ")[2].lower()
    twin.twin_of = entity.name
    facts.add(twin)
    for slot, value in entity.told.items():
        if slot in facts.relations and slot not in facts.inverses:
            facts.tell(twin, slot, _other_value(facts, draws, slot, value))
    facts.twins.setdefault((twin.kind, twin.half), []).append(twin.name)


def _near_name(names: Names, draws: Draws, entity: Entity) -> str:
    first, _, last = entity.name.rpartition(" ")
    if entity.kind == "person":
        if draws.chance(0.5):
            return names.person(entity.half, last)
        return f"{first} {names.near(last)}"
    if entity.kind in ("town", "river"):
        return f"{first} {names.near(last)}".strip()
    return _near_title(names, entity)


def _near_title(names: Names, entity: Entity) -> str:
    """Another title around the same word while there is one, then around a word like it."""
    for pattern in patterns(entity.kind):
        head, _, tail = pattern.partition("{}")
        if entity.name.startswith(head) and entity.name.endswith(tail):
            word = entity.name[len(head) : len(entity.name) - len(tail)]
            free = names.free(patterns(entity.kind), word)
            return names.titled(free, word) if free else pattern.format(names.near(word))
    raise ValueError(f"no pattern made the name {entity.name!r}")


def _other_value(facts: FactBase, draws: Draws, slot: str, value: Value) -> Value:
    """A value of the same kind: a little more or less, or what another entity has."""
    if isinstance(value, int):
        spread = 60 if facts.relations[slot].object == "year" else max(3, value // 3)
        return max(2, value + draws.between(-spread, spread))
    if isinstance(value, Day):
        return value._replace(year=value.year + draws.between(-40, 40))
    known = facts.entities[str(value)]
    # Twins keep to themselves, so that what is asked about is not named in too many passages.
    return draws.choice(facts.twins.get((known.kind, known.half)) or [known.name])
