"""Sentences that tell nothing anyone is asked about: life in passages, and links between them.

`[a|b]` is one of several words. {a_person} and its like are anyone or anything of that kind in the
same half; the other slots are those of `sentences`.
"""

from __future__ import annotations

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
