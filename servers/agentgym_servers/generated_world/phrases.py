"""How questions word each relation: near the passages' words, and far from them."""

from __future__ import annotations

from agentgym_servers.generated_world.language import Degree, GroupPhrase, Phrase

PHRASES: dict[str, Phrase] = {
    "born_in": Phrase(
        ("the town where {} was born", "the hometown of {}"),
        ("In which town was {} born?", "Where did {} come into the world?"),
        ("was born in {}", "came into the world in {}"),
    ),
    "born_on": Phrase(
        ("the date on which {} was born", "the day on which {} came into the world"),
        ("On what date was {} born?", "On which day did {} come into the world?"),
    ),
    "buried_in": Phrase(
        ("the town where {} is buried", "the last resting place of {}"),
        ("In which town is {} buried?", "Where are the mortal remains of {}?"),
        ("is buried in {}", "was laid to rest in {}"),
    ),
    "married": Phrase(
        ("the spouse of {}", "the partner in life of {}"),
        ("Whom did {} marry?", "Who was the partner in life of {}?"),
    ),
    "output": Phrase(
        ("the number of works that {} completed", "the extent of the oeuvre of {}"),
        ("How many works did {} complete?", "How many pieces make up the oeuvre of {}?"),
    ),
    "taught_at": Phrase(
        ("the society where {} taught", "the employer of {}"),
        ("At which society did {} teach?", "Which institution was the employer of {}?"),
        ("taught at {}", "earned a living at {}"),
    ),
    "teacher": Phrase(
        ("the person whose pupil was {}", "the mentor of {}"),
        ("Whose pupil was {}?", "Who was the mentor of {}?"),
    ),
    "fellow_of": Phrase(
        ("the society whose first fellows included {}", "the body that {} joined early on"),
        (
            "The first fellows of which society included {}?",
            "Which body did {} join early on?",
        ),
    ),
    "known_for": Phrase(
        ("the work that {} is best known for", "the work that made {} famous"),
        ("Which work is {} best known for?", "Which work made {} famous?"),
    ),
    "mayor": Phrase(
        ("the first mayor of {}", "the person who first governed {}"),
        ("Who was the first mayor of {}?", "Who first governed {}?"),
        ("had {} as its first mayor", "was first governed by {}"),
    ),
    "settled": Phrase(
        ("the year in which {} was settled", "the year in which people first moved to {}"),
        ("In which year was {} settled?", "In which year did people first move to {}?"),
    ),
    "population": Phrase(
        ("the number of inhabitants of {}", "the head count of {}"),
        ("How many inhabitants does {} have?", "How many people live in {}?"),
    ),
    "river": Phrase(
        ("the river that flows through {}", "the waterway that passes {}"),
        ("Which river flows through {}?", "Which waterway passes {}?"),
    ),
    "maker": Phrase(
        ("the creator of {}", "the person who thought up {}"),
        ("Who created {}?", "Who thought up {}?"),
    ),
    "set_in": Phrase(
        ("the town in which {} is set", "the place where the action of {} unfolds"),
        ("In which town is {} set?", "Where does the action of {} unfold?"),
    ),
    "finished": Phrase(
        ("the year in which {} was finished", "the year that saw the end of the work on {}"),
        ("In which year was {} finished?", "Which year saw the end of the work on {}?"),
    ),
    "dedicated_to": Phrase(
        ("the person to whom {} is dedicated", "the person honoured by {}"),
        ("To whom is {} dedicated?", "Whom was {} meant to honour?"),
    ),
    "kept_at": Phrase(
        ("the society that keeps the manuscript of {}", "the institution that preserves {}"),
        (
            "Which society keeps the manuscript of {}?",
            "Which institution preserves {}?",
        ),
    ),
    "architect": Phrase(
        ("the architect of {}", "the person who conceived {}"),
        ("Who was the architect of {}?", "Who conceived {}?"),
    ),
    "stands_in": Phrase(
        ("the town in which {} stands", "the place where one can see {}"),
        ("In which town does {} stand?", "Where can one see {}?"),
    ),
    "opened_on": Phrase(
        ("the date on which {} was opened", "the day of the inauguration of {}"),
        ("On what date was {} opened?", "What was the day of the inauguration of {}?"),
    ),
    "height": Phrase(
        ("the height of {}", "the distance from the foot to the top of {}"),
        ("How many metres high is {}?", "How many metres is it from the foot to the top of {}?"),
    ),
    "founder": Phrase(
        ("the founder of {}", "the originator of {}"),
        ("Who was the founder of {}?", "Who was the originator of {}?"),
    ),
    "seat": Phrase(
        ("the seat of {}", "the home of {}"),
        ("Which town is the seat of {}?", "Which place is the home of {}?"),
    ),
    "begun": Phrase(
        ("the year in which {} received its charter", "the first year of the existence of {}"),
        ("In which year did {} receive its charter?", "What was the first year of {}?"),
    ),
    "members": Phrase(
        ("the number of members of {}", "the number of people who belong to {}"),
        ("How many members does {} have?", "How many people belong to {}?"),
    ),
    "venue": Phrase(
        ("the venue of {}", "the place where {} happened"),
        ("Which town was the venue of {}?", "In which place did {} happen?"),
    ),
    "leader": Phrase(
        ("the president of {}", "the person in charge of {}"),
        ("Who was the president of {}?", "Who was in charge of {}?"),
    ),
    "held_on": Phrase(
        ("the date on which {} began", "the opening day of {}"),
        ("On what date did {} begin?", "What was the opening day of {}?"),
    ),
    "surveyor": Phrase(
        ("the person who made the first survey of {}", "the earliest map-maker of {}"),
        ("Who made the first survey of {}?", "Who was the earliest map-maker of {}?"),
    ),
    "length": Phrase(
        ("the length of {}", "the distance from the source to the end of {}"),
        (
            "How many kilometres long is {}?",
            "How many kilometres is it from the source to the end of {}?",
        ),
    ),
    "mouth": Phrase(
        ("the town at the mouth of {}", "the place where {} meets salt water"),
        ("Which town lies at the mouth of {}?", "Where does {} meet salt water?"),
    ),
}
GROUPS: dict[str, GroupPhrase] = {
    "pupils": GroupPhrase(
        ("the {n} pupils of {}", "the {n} people whose mentor was {}"),
        ("the pupil of {} who", "the person mentored by {} who"),
        ("Which person both was a pupil of {} and", "Which person both had {} as mentor and"),
    ),
    "fellows": GroupPhrase(
        ("the {n} first fellows of {}", "the {n} people who were admitted earliest to {}"),
        ("the first fellow of {} who", "the early member of {} who"),
        (
            "Which person both was among the first fellows of {} and",
            "Which person both joined {} early on and",
        ),
    ),
    "towns": GroupPhrase(
        ("the {n} towns on {}", "the {n} places along {}"),
        ("the town on {} that", "the place along {} that"),
        ("Which town both lies on {} and", "Which place both is found along {} and"),
    ),
}
DEGREES = (
    Degree("born_on", True, "elder", "eldest"),
    Degree("born_on", False, "younger", "youngest"),
    Degree("output", True, "less productive", "least productive"),
    Degree("output", False, "more productive", "most productive"),
    Degree("settled", True, "older", "oldest"),
    Degree("population", True, "smaller", "smallest"),
    Degree("population", False, "larger", "largest"),
    Degree("height", True, "lower", "lowest"),
    Degree("height", False, "taller", "tallest"),
    Degree("length", True, "shorter", "shortest"),
    Degree("length", False, "longer", "longest"),
    Degree("finished", True, "earlier", "earliest"),
    Degree("finished", False, "later", "latest"),
)
TOTALS: dict[str, tuple[str, str]] = {
    "output": (
        "How many works did {} complete altogether?",
        "How many pieces make up the oeuvres of {} taken together?",
    ),
    "population": (
        "How many inhabitants do {} have altogether?",
        "How many people live in {} taken together?",
    ),
}
