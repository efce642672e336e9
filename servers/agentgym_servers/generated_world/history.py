"""The history of a world: who was born where, who taught whom, what was built by whom."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import Day, Entity, FactBase
from agentgym_servers.generated_world.naming import Names, patterns
from agentgym_servers.generated_world.schema import CRAFTS, KINDS, MAKERS, RELATIONS
from agentgym_servers.generated_world.spec import WorldSpec
from agentgym_servers.generated_world.twins import add_twin

HALVES = {"train": 0, "test": 1}
"""The half of the world that each split asks about."""
TEST_SHARE = 0.18
"""The part of the world's entities that lives in the test half."""
_SHARES = {
    "person": 0.42,
    "town": 0.15,
    "work": 0.13,
    "building": 0.12,
    "academy": 0.08,
    "event": 0.06,
    "river": 0.04,
}
_ELSEWHERE = 0.3
"""How often a fact is told in the passage of its object."""


def unfold(spec: WorldSpec) -> FactBase:
    """The facts of a world: two halves that share no entity, and every entity's twins."""
    draws = Draws("history", spec.seed, spec.passages, spec.distractors)
    facts = FactBase(RELATIONS)
    names = Names(draws)
    base = round(spec.passages / (1 + spec.distractors / 2))
    in_test = round(base * TEST_SHARE)
    for half, size in ((0, base - in_test), (1, in_test)):
        _Half(facts, names, draws, half).live(size)
    twinned = draws.shuffled(list(facts.entities.values()))[: (base + 1) // 2]
    while twinned and len(facts.entities) < spec.passages:
        for entity in twinned[: spec.passages - len(facts.entities)]:
            add_twin(facts, names, draws, entity)
    return facts


class _Half:
    """One half of the world while it is made."""

    def __init__(self, facts: FactBase, names: Names, draws: Draws, half: int) -> None:
        self._facts, self._names, self._draws, self._half = facts, names, draws, half
        self._of: dict[str, list[Entity]] = {}
        self._crafts: dict[str, list[Entity]] = {}
        self._provinces = [names.word(half, "town") for _ in range(12)]
        self._year: dict[str, int] = {}
        self._turns: dict[str, list[Entity]] = {}

    def live(self, size: int) -> None:
        """Let `size` entities exist, and everything happen that they have to do with."""
        for kind in KINDS:
            count = round(size * _SHARES[kind])
            if kind == KINDS[-1]:
                count = size - sum(map(len, self._of.values()))
            self._of[kind] = [self._create(kind) for _ in range(count)]
        people = self._of["person"]
        people.sort(key=lambda person: (self._year[person.name], person.name))
        for person in people:
            self._crafts.setdefault(person.sort, []).append(person)
        for person in people:
            self._live_life(person)
        self._gather("teacher", people, 18, 48)
        for kind, make in (
            ("academy", self._make_academy),
            ("work", self._make_work),
            ("building", self._make_building),
            ("event", self._make_event),
            ("river", self._make_river),
            ("town", self._make_town),
        ):
            for entity in self._of[kind]:
                make(entity)
        self._gather("fellow_of", self._of["academy"], -62, -22)
        for person in people:
            academy = self._pick("academy")
            if self._year[academy.name] < self._year[person.name] + 60:
                self._facts.tell(person, "taught_at", academy.name)

    def _create(self, kind: str) -> Entity:
        draws, names, half = self._draws, self._names, self._half
        if kind == "person":
            name = names.person(half)
            self._year[name] = draws.between(1580, 1880)
        elif kind == "town":
            name = names.word(half, "town")
        elif kind == "river":
            name = f"River {names.word(half)}"
        else:
            name = names.titled(patterns(kind), names.word(half))
        entity = Entity(name, kind, half, province=draws.choice(self._provinces))
        if kind == "person":
            entity.sort, entity.gender = draws.choice(tuple(CRAFTS)), draws.choice(("she", "he"))
        elif kind == "work":
            entity.sort = draws.choice(tuple(MAKERS))
        else:
            entity.sort = kind if kind in ("town", "river") else name.rpartition(" ")[2].lower()
        return self._facts.add(entity)

    def _live_life(self, person: Entity) -> None:
        draws, facts, born = self._draws, self._facts, self._year[person.name]
        facts.tell(person, "born_in", self._pick("town").name)
        facts.tell(person, "born_on", _day(draws, born))
        facts.tell(person, "output", draws.between(12, 140))
        if draws.chance(0.6):
            facts.tell(person, "buried_in", self._pick("town").name)
        partner = self._someone(born - 12, born + 12)
        free = not any(facts.get(one.name, "married") for one in (person, partner))
        if free and partner.gender != person.gender and draws.chance(0.7):
            facts.tell_of("married", person, partner)

    def _make_academy(self, academy: Entity) -> None:
        founder = self._pick("person")
        begun = self._year[founder.name] + self._draws.between(25, 60)
        self._year[academy.name] = begun
        self._tell("founder", academy, founder)
        self._tell("seat", academy, self._pick("town"))
        self._facts.tell(academy, "begun", begun)
        self._facts.tell(academy, "members", self._draws.between(40, 900))

    def _make_work(self, work: Entity) -> None:
        maker = self._draws.choice(self._crafts.get(MAKERS[work.sort]) or self._of["person"])
        born = self._year[maker.name]
        self._tell("maker", work, maker, elsewhere=0.5)
        self._facts.tell(work, "set_in", self._pick("town").name)
        self._facts.tell(work, "finished", born + self._draws.between(22, 65))
        self._tell("dedicated_to", work, self._someone(born - 30, born + 30, maker))
        if self._draws.chance(0.7):
            self._tell("kept_at", work, self._pick("academy"))

    def _make_building(self, building: Entity) -> None:
        architect = self._draws.choice(self._crafts.get("architect") or self._of["person"])
        opened = self._year[architect.name] + self._draws.between(25, 60)
        self._tell("architect", building, architect)
        self._tell("stands_in", building, self._pick("town"))
        self._facts.tell(building, "opened_on", _day(self._draws, opened))
        self._facts.tell(building, "height", self._draws.between(14, 160))

    def _make_event(self, event: Entity) -> None:
        leader = self._pick("person")
        held = self._year[leader.name] + self._draws.between(25, 55)
        self._tell("leader", event, leader)
        self._tell("venue", event, self._pick("town"))
        self._facts.tell(event, "held_on", _day(self._draws, held))

    def _make_river(self, river: Entity) -> None:
        surveyors = self._crafts.get("surveyor") or self._of["person"]
        self._tell("surveyor", river, self._draws.choice(surveyors))
        self._facts.tell(river, "length", self._draws.between(45, 900))
        self._facts.tell(river, "mouth", self._pick("town").name)
        free = [t for t in self._of["town"] if not self._facts.get(t.name, "river")]
        chosen = self._draws.sample(free, self._draws.between(2, 4))
        if len(chosen) >= 2:
            self._facts.tell_list("river", chosen, river)

    def _make_town(self, town: Entity) -> None:
        mayor = self._pick("person")
        self._tell("mayor", town, mayor)
        self._facts.tell(town, "settled", self._draws.between(1050, 1560))
        self._facts.tell(town, "population", self._draws.between(900, 98_000))

    def _gather(self, relation: str, owners: list[Entity], low: int, high: int) -> None:
        """Let some owners have two to four people of fitting years, none with another owner."""
        for owner in self._draws.shuffled(owners):
            if not self._draws.chance(0.5):
                continue
            year = self._year[owner.name]
            pool = self._crafts[owner.sort] if relation == "teacher" else self._of["person"]
            free = [
                person
                for person in self._aged(pool, year + low, year + high)
                if not self._facts.get(person.name, relation)
            ]
            chosen = self._draws.sample(free, self._draws.between(2, 4))
            if len(chosen) >= 2:
                self._facts.tell_list(relation, chosen, owner)

    def _tell(
        self, relation: str, subject: Entity, value: Entity, elsewhere: float = _ELSEWHERE
    ) -> None:
        away = self._draws.chance(elsewhere)
        if not (away and self._facts.tell_of(relation, subject, value)):
            self._facts.tell(subject, relation, value.name)

    def _pick(self, kind: str) -> Entity:
        """The next of a kind in a shuffled round, so that none is named much more than others."""
        if not self._turns.get(kind):
            self._turns[kind] = self._draws.shuffled(self._of[kind])
        return self._turns[kind].pop()

    def _aged(self, people: list[Entity], low: int, high: int) -> list[Entity]:
        def born(person: Entity) -> int:
            return self._year[person.name]

        return people[bisect_left(people, low, key=born) : bisect_right(people, high, key=born)]

    def _someone(self, low: int, high: int, but: Entity | None = None) -> Entity:
        """Someone born in these years; anyone where nobody was."""
        fitting = self._aged(self._of["person"], low, high) or self._of["person"]
        chosen = self._draws.choice(fitting)
        return self._pick("person") if chosen is but else chosen


def _day(draws: Draws, year: int) -> Day:
    """A day of a year; none is after the 28th of its month."""
    return Day(year, draws.between(1, 12), draws.between(1, 28))
