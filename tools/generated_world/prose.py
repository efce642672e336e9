"""Writes passages: facts as sentences of varied wording, with asides about other entities."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from agentgym_servers.worlds.search.retrieval.passages import Passage
from tools.generated_world.facts import (
    ARTICLED,
    CRAFTS,
    Day,
    Draws,
    Entity,
    FactBase,
    Value,
    names_in,
)
from tools.generated_world.language import NUMBERS, date_forms, written_list

COLOUR: dict[str, tuple[str, ...]] = {
    "person": (
        "{P} letters complain of [cold rooms|late coaches|noisy neighbours] with great wit.",
        "Friends describe a [shy|generous|restless|stubborn] host who rose before dawn.",
        "{S} kept [bees|pigeons|a small orchard|two donkeys] and sold the surplus at the market.",
        "Critics of the time called the later {makes} [austere|extravagant|uneven|tender].",
        "A portrait shows {o} in a [grey|green|crimson] coat, holding a [lens|letter|glove].",
        "{S} never learned to swim and refused to travel by [boat|sledge] all {p} life.",
        "Much of the estate was lost in a [fire|flood|lawsuit] a generation later.",
        "{P} notebooks, written in [mirror hand|three colours|a shorthand], were found late.",
        "The family had traded in [wool|salt|timber|glass] for three generations.",
        "A small [prize|street|ship] still bears {p} name.",
    ),
    "town": (
        "The houses around the square are of [brick|slate|timber|granite], with [blue|red] doors.",
        "A fair for [horses|cheese|cloth|pottery] fills the streets every [spring|autumn].",
        "Most families once lived from [weaving|fishing|quarrying|brewing].",
        "The winters are [mild|long|dry|foggy], and storks nest on the [old gate|granary].",
        "Fire destroyed the [tanners'|coopers'|upper] quarter twice, and it was rebuilt in stone.",
        "Its [pears|honey cakes|smoked eels|rye loaves] are praised by travellers.",
        "The railway came late and leaves [twice|four times] a day from a wooden station.",
        "A ring of [lime trees|allotments|mills] follows the line of the former wall.",
    ),
    "work": (
        "The story follows a [baker|ferry pilot|magistrate|glazier] who hides a [debt|child|map].",
        "Its first audience was [puzzled|delighted|divided], and the second night sold out.",
        "The [third|last] part is often left out, since it asks for a [choir|goat|second stage].",
        "Scholars still quarrel over the meaning of the [storm|silent twin|unpaid bill].",
        "An early edition was seized for a joke about the [tax on salt|price of candles].",
        "Schoolchildren know the [opening lines|lullaby|quarrel scene] by heart.",
        "A [pirated|shortened|garbled] version went round the provinces for years.",
    ),
    "building": (
        "The stone came by [barge|ox cart|sledge] from quarries upstream.",
        "Its [stair|roof|iron gate] was replaced after a [storm|lightning strike|collapse].",
        "A keeper lived on the ground floor and charged a [penny|loaf of bread] for entry.",
        "[Swifts|Bats|Jackdaws] have nested under the eaves for as long as anyone remembers.",
        "The foundations rest on [oak piles|gravel|rock], which delayed the work by two years.",
        "Lamps burn on the [north|west] side on feast days.",
        "Restorers uncovered a painted [frieze|ceiling|sundial] under layers of whitewash.",
    ),
    "academy": (
        "Meetings are held on the first [Monday|Thursday] of the month and end with [soup|music].",
        "The rules forbid [hats|whistling|wagers] in the reading room.",
        "Its journal appears [twice|four times] a year, printed on [grey|laid] paper.",
        "A quarrel over the [heating|seal|ballot] nearly split the house.",
        "The cabinet holds [fossils|clocks|coins|barometers] given by travellers.",
        "Candidates must defend an essay in front of the whole assembly.",
    ),
    "event": (
        "Rain spoiled the [second|third] day, and the banners were moved indoors.",
        "Innkeepers raised their prices, and many guests slept in [barns|tents|boats].",
        "The final dinner is said to have had [nine|eleven|fourteen] courses.",
        "A [brass band|troupe of jugglers|choir of millers] marched at the head of the procession.",
        "Newspapers printed the speeches in full, with [drawings|complaints] on the last page.",
        "Souvenir [mugs|medals|ribbons] are still found in attics.",
    ),
    "river": (
        "Its water is [brown with peat|clear and cold|rich in trout|too shallow for barges].",
        "Floods in [March|May] leave a strip of black soil that is good for [flax|barley|hops].",
        "Rafts of [pine|beech] were once steered down it by crews of [four|six].",
        "Otters returned after the [tanneries|paper mills] closed.",
        "An old song gives it the voice of a [sleepy|jealous|laughing] giant.",
    ),
}

ASIDES: dict[str, tuple[str, ...]] = {
    "person": (
        "{S} wrote a sour review of the {a_work}.",
        "{S} is said to have sketched the {a_building} from memory.",
        "A long friendship with {a_person} ended over a card game.",
        "{S} spent two summers in {a_town}, mostly asleep.",
        "{S} lost a trunk of papers on the way to the {a_event}.",
        "{S} refused an invitation from the {a_academy}.",
        "{S} nearly drowned in the {a_river} as a child.",
        "{S} owned a cat named after {a_person}.",
    ),
    "town": (
        "A tavern near the gate is called after the {a_event}.",
        "Travelling players brought the {a_work} here more than once.",
        "Every child is told how {a_person} lost a wager in the square.",
        "On clear days one is reminded of the {a_building}, locals claim.",
        "A faded mural shows the {a_river} in flood.",
        "The council once exchanged gifts with the {a_academy}.",
    ),
    "work": (
        "Reviewers compared it with the {a_work}.",
        "A minor figure is thought to mock {a_person}.",
        "A copy was sold at the {a_event} for the price of a horse.",
        "The cover of the second edition shows the {a_building}.",
        "One chapter was struck out after a protest from {a_town}.",
    ),
    "building": (
        "It is often confused with the {a_building} on postcards.",
        "A plaque recalls a visit by {a_person}.",
        "Its bell was cast for {a_town} but never paid for there.",
        "The lower hall showed a model of the {a_river} for some years.",
        "A scene from the {a_work} is painted above the door.",
    ),
    "academy": (
        "Its old rival is the {a_academy}.",
        "A bust of {a_person} stands on the stairs.",
        "The council debated the {a_work} for a whole winter.",
        "It sent a silent delegation to the {a_event}.",
        "An etching of the {a_building} hangs in the cloakroom.",
    ),
    "event": (
        "A petition against it was signed by {a_person}.",
        "Its programme borrowed freely from that of the {a_event}.",
        "Excerpts from the {a_work} were read between the speeches.",
        "A plaster copy of the {a_building} was the most visited stand.",
        "A delegation from {a_town} left early.",
    ),
    "river": (
        "A ballad makes it the sister of the {a_river}.",
        "Its ferrymen claim that {a_person} still owes them a fare.",
        "Timber for the {a_building} was floated down it.",
        "Eels from it are a delicacy in {a_town}.",
        "A barge bound for the {a_event} sank in it.",
    ),
}
"""Every kind is mentioned by several others, so that a name leads to more than one passage."""

LEADS: dict[str, tuple[str, ...]] = {
    "person": (
        "{N} was {a_sort} of the province of {province}.",
        "{N} was {a_sort} whose career began in {province}.",
        "{N} was {a_sort} who was born in {born_in} on {born_on}.",
        "{N}, {a_sort}, was born on {born_on} in {born_in}.",
        "{N} (born {born_on}) was {a_sort} from {province}.",
        "Born in {born_in}, {N} was among the busiest of {p} time as {a_sort}.",
    ),
    "town": (
        "{N} is a town in the province of {province}.",
        "{N}, a market town of {province}, was settled in {settled}.",
        "{N} is a walled town of {population} inhabitants in {province}.",
        "{N} is one of the older towns of {province}.",
    ),
    "work": (
        "{N} is {a_sort} of the {province} school.",
        "{N} is {a_sort} that was finished in {finished}.",
        "{N} is {a_sort} which is set in {set_in}.",
        "{N}, {a_sort}, was created by {maker}.",
    ),
    "building": (
        "{N} is one of the sights of the province of {province}.",
        "{N}, built of pale stone, was opened on {opened_on}.",
        "{N}, which is {height} metres high, is the best-kept {sort} in {province}.",
        "{N} was designed by {architect}.",
    ),
    "academy": (
        "{N} is a learned society in the province of {province}.",
        "{N} is a learned society that received its charter in {begun}.",
        "{N} is a society of {members} members in {province}.",
    ),
    "event": (
        "{N} was a gathering of several days in the province of {province}.",
        "{N} was a gathering which began on {held_on}.",
        "{N}, a much-reported {sort} in {province}, was held in {venue}.",
    ),
    "river": (
        "{N} is a river in the province of {province}.",
        "{N} is a river of {length} kilometres in {province}.",
        "{N}, one of the slower rivers of {province}, reaches the sea at {mouth}.",
    ),
}

FACTS: dict[str, tuple[str, ...]] = {
    "person": (
        "{S} was born in {born_in}.",
        "{P} birthplace was {born_in}.",
        "{S} was a native of {born_in}.",
        "{S} was born on {born_on}.",
        "{P} birth was entered in the parish register under {born_on}.",
        "{S} was born in {born_in} on {born_on}.",
        "{S} is buried in {buried_in}.",
        "{P} grave lies in {buried_in}.",
        "{S} died after a long illness and was buried in {buried_in}.",
        "{S} married {married}.",
        "{P} marriage to {married} lasted four decades.",
        "{P} spouse was {married}, whom {h} had met at a concert.",
        "{S} completed {output} {makes} in all.",
        "{P} catalogue lists {output} {makes}.",
        "Over a long career {s} completed {output} {makes}.",
        "{S} taught at the {taught_at}.",
        "For many years {s} held a chair at the {taught_at}.",
        "{S} taught at the {taught_at} until {p} eyesight failed.",
        "{P} pupils were {pupils}.",
        "{S} had {n_pupils} pupils: {pupils}.",
        "{S} took {n_pupils} pupils into {p} house, namely {pupils}.",
        "{S} is best known for the {known_for}.",
        "Of all {p} creations, the {known_for} is the best known.",
        "The {honoured_by} is dedicated to {o}.",
        "{S} is the person to whom the {honoured_by} is dedicated.",
        "{S} designed the {designed}.",
        "The plans of the {designed} were {p} design.",
        "{S} founded the {founded}.",
        "It was {h} who founded the {founded}.",
        "{S} presided over the {led}.",
        "{S} was the president of the {led}.",
        "{S} surveyed the whole course of the {surveyed}.",
        "The first survey of the {surveyed} was {p} work.",
    ),
    "town": (
        "{P} first mayor was {mayor}.",
        "The first person to hold the office of mayor there was {mayor}.",
        "{S} was settled in {settled}.",
        "Its first streets were settled in {settled}.",
        "{S} has {population} inhabitants.",
        "At the last census {population} inhabitants were counted.",
        "{P} best-known landmark is the {landmark}.",
        "The {landmark} stands in the middle of the town.",
        "{S} is the seat of the {hosts}.",
        "The {hosts} has its seat in the town.",
        "{S} was the venue of the {hosted}.",
        "The {hosted} was held in the town.",
    ),
    "work": (
        "{S} was created by {maker}.",
        "{P} creator was {maker}.",
        "{S} is the creation of {maker}, then at the height of a long career.",
        "{S} is set in {set_in}.",
        "Its scenes are set in {set_in}.",
        "{S} was finished in {finished}.",
        "The last page was finished in {finished}.",
        "{S} is dedicated to {dedicated_to}.",
        "The dedication names {dedicated_to}.",
        "{P} manuscript is kept at the {kept_at}.",
        "The manuscript belongs to the {kept_at}.",
    ),
    "building": (
        "{S} was designed by {architect}.",
        "{P} architect was {architect}.",
        "The design came from the architect {architect}.",
        "{S} stands in {stands_in}.",
        "Visitors find it in {stands_in}, a short walk from the market.",
        "{S} was opened on {opened_on}.",
        "The opening took place on {opened_on}.",
        "{S} is {height} metres high.",
        "{P} height is given as {height} metres.",
    ),
    "academy": (
        "{S} was founded by {founder}.",
        "{P} founder was {founder}.",
        "{S} owes its foundation to {founder}.",
        "{S} has its seat in {seat}.",
        "{P} seat is in {seat}.",
        "{S} received its charter in {begun}.",
        "The charter was granted in {begun}.",
        "{S} has {members} members.",
        "The roll counts {members} members.",
        "{P} first fellows were {fellows}.",
        "The first fellows to be elected were {fellows}.",
        "{P} library keeps the manuscript of the {treasure}.",
        "The manuscript of the {treasure} is kept in its library.",
    ),
    "event": (
        "{S} was presided over by {leader}.",
        "{P} president was {leader}.",
        "{S} was held in {venue}.",
        "{P} venue was {venue}.",
        "{S} began on {held_on}.",
        "The first guests arrived on {held_on}, the day on which it began.",
    ),
    "river": (
        "{S} was surveyed by {surveyor}.",
        "The first survey of its course was made by {surveyor}.",
        "{S} is {length} kilometres long.",
        "{P} length is {length} kilometres.",
        "{S} reaches the sea at {mouth}.",
        "{P} mouth is at {mouth}.",
        "{S} flows through {n_towns} towns: {towns}.",
        "The towns on its banks are {towns}.",
    ),
}
"""Every relation and every inverse stands alone in one sentence at least."""

_FEWEST_WORDS, _MOST_WORDS = 45, 105

_SLOT = re.compile(r"\{(\w+)\}")

_OWN_SLOTS = frozenset(["N", "S", "s", "P", "p", "h", "o", "sort", "a_sort", "makes", "province"])

_ALTERNATIVES = re.compile(r"\[([^]]*)\]")


class Writer:
    """Writes the passages of one world, each entity mentioned now and then in another's."""

    def __init__(self, facts: FactBase, draws: Draws) -> None:
        self._facts, self._draws = facts, draws
        self._cast: dict[tuple[str, int, bool], Iterator[str]] = {}

    def write(self, id: str, entity: Entity) -> Passage:
        """The passage about an entity: it tells all that the entity is said to tell."""
        draws, left = self._draws, set(entity.told)
        lead = draws.choice([t for t in LEADS[entity.kind] if told_slots(t) <= left])
        left -= told_slots(lead)
        sentences = []
        for template in draws.shuffled(FACTS[entity.kind]):
            if told_slots(template) <= left:
                sentences.append(self._sentence(entity, template))
                left -= told_slots(template)
        # An aside comes last: no pronoun after it could mean the entity it mentions.
        first = self._sentence(entity, lead)
        last = self._sentence(entity, draws.choice(ASIDES[entity.kind]))
        words = sum(len(sentence.split()) for sentence in (first, *sentences, last))
        target = draws.between(_FEWEST_WORDS, _MOST_WORDS)
        for template in draws.shuffled(COLOUR[entity.kind]):
            if words >= target:
                break
            sentence = self._sentence(entity, template)
            sentences.insert(draws.between(0, len(sentences)), sentence)
            words += len(sentence.split())
        return Passage(id, f'"{entity.name}"\n{" ".join((first, *sentences, last))}')

    def _sentence(self, entity: Entity, template: str) -> str:
        values = self._values(entity)
        chosen = _ALTERNATIVES.sub(lambda match: self._draws.choice(match[1].split("|")), template)
        text = _SLOT.sub(lambda match: self._fill(match[1], entity, values), chosen)
        return text[0].upper() + text[1:]

    def _values(self, entity: Entity) -> Mapping[str, str]:
        """The words that stand for the entity in one sentence."""
        draws, person = self._draws, entity.kind == "person"
        full = f"the {entity.name}" if entity.kind in ARTICLED else entity.name
        pronoun = entity.gender or "it"
        last = entity.name.rpartition(" ")[2]
        other = last if person else full if entity.kind == "town" else f"the {entity.sort}"
        subject = pronoun if draws.chance(0.6) else other
        possessive = {"she": "her", "he": "his", "it": "its"}[pronoun]
        return {
            "N": full,
            "S": subject,
            "s": subject,
            "P": possessive if subject == pronoun else f"{subject}'s",
            "p": possessive,
            "h": pronoun,
            "o": {"she": "her", "he": "him", "it": "it"}[pronoun],
            "sort": entity.sort,
            "a_sort": f"{'an' if entity.sort[0] in 'aeiou' else 'a'} {entity.sort}",
            "makes": CRAFTS.get(entity.sort, ""),
            "province": entity.province,
        }

    def _fill(self, slot: str, entity: Entity, values: Mapping[str, str]) -> str:
        if slot in values:
            return values[slot]
        if slot.startswith("a_"):
            return self._mention(self._someone(slot.removeprefix("a_"), entity))
        if slot.startswith("n_"):
            return NUMBERS[len(names_in(entity.told[slot.removeprefix("n_")]))]
        relation = self._facts.relations.get(slot)
        return self._value(entity.told[slot], relation is not None and relation.object == "year")

    def _value(self, value: Value, is_year: bool) -> str:
        if isinstance(value, Day):
            return self._draws.choice(date_forms(value))
        if isinstance(value, int):
            return str(value) if is_year else f"{value:,}"
        return written_list([self._mention(name) for name in names_in(value)])

    def _mention(self, name: str) -> str:
        entity = self._facts.entities[name]
        return f"{entity.sort} {name}" if entity.kind == "work" else name

    def _someone(self, kind: str, entity: Entity) -> str:
        """The next of a kind in a shuffled round through the half, so that all have their turn."""
        is_twin = entity.twin_of is not None
        key = (kind, entity.half, is_twin)
        while True:
            name = next(self._cast.get(key, iter(())), None)
            if name is None:
                # Twins mention each other, too: those they are taken for are not to be drowned.
                names = [
                    other.name
                    for other in self._facts.entities.values()
                    if (other.kind, other.half) == (kind, entity.half)
                    and (is_twin or other.twin_of is None)
                ]
                self._cast[key] = iter(self._draws.shuffled(names))
            elif name != entity.name:
                return name


@cache
def told_slots(template: str) -> frozenset[str]:
    """The relations and inverses that a sentence tells."""
    slots = set(_SLOT.findall(template)) - _OWN_SLOTS
    return frozenset(slot for slot in slots if not slot.startswith(("a_", "n_")))
