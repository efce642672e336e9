"""The forum's database: made from a seed with nothing but `random.Random(seed).random()`."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from agentgym_servers.web.sites import pages
from agentgym_servers.web.sites.site import ACCOUNTS

ACCOUNT: Final = ACCOUNTS["reddit"]
"""Who the agent is here."""

BOARDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("aquariums", "Fish tanks great and small", "filter|heater|driftwood|snail|shrimp"),
    ("astronomy", "Looking up at night", "telescope|nebula|eclipse|star chart|tripod"),
    ("baking", "Bread, cake and patience", "sourdough|rye loaf|oven stone|scale|brioche"),
    ("beekeeping", "Hives and honey", "smoker|queen|honey frame|veil|swarm"),
    ("birdwatching", "Feathers and notebooks", "binoculars|owl box|warbler|feeder|field guide"),
    ("boardgames", "Dice, cards and tables", "card sleeve|dice tower|expansion|rulebook|solo mode"),
    ("books", "What we read", "novel|reading lamp|paperback|library card|bookmark"),
    ("camping", "Nights outdoors", "tent|sleeping bag|camp stove|lantern|hammock"),
    ("chess", "Sixty-four squares", "endgame|opening|clock|gambit|puzzle book"),
    ("cycling", "Two wheels", "saddle|chain|pannier|helmet|gravel tyre"),
    ("drawing", "Pencil and paper", "sketchbook|charcoal|eraser|ink pen|drawing board"),
    ("fermentation", "Jars that bubble", "kimchi|crock|kombucha|brine|airlock"),
    ("fountainpens", "Nibs and ink", "nib|converter|blue ink|blotter|inkwell"),
    ("gardening", "Soil under the nails", "tomato|compost bin|trowel|rose|raised bed"),
    ("hiking", "Up the hill", "boot|map case|walking pole|rain jacket|ridge trail"),
    ("keyboards", "Switches and caps", "keycap|switch|wrist rest|stabiliser|split layout"),
    ("knitting", "Loops and rows", "sock|wool|circular needle|shawl|stitch marker"),
    ("modelrailways", "Small trains", "signal box|tunnel|turntable|loco|layout board"),
    ("pottery", "Clay and fire", "glaze|kiln|wheel|mug|teapot"),
    ("radio", "Waves and wires", "antenna|receiver|morse key|valve|crystal set"),
    ("rowing", "Backwards, quickly", "oar|scull|rowlock|ergometer|river race"),
    ("sewing", "Seams and hems", "bobbin|overlocker|linen|zip|pattern paper"),
    ("tea", "Leaves and water", "gaiwan|oolong|kettle|tea tray|green tea"),
    ("typography", "Letters on purpose", "serif|ligature|type specimen|grid|drop cap"),
    ("woodworking", "Sawdust", "hand plane|dovetail|chisel|workbench|oak board"),
)
"""(name, description, things spoken of)."""

FIRST: Final = [
    "Amber",
    "Birch",
    "Cedar",
    "Dapper",
    "Ember",
    "Fern",
    "Gentle",
    "Hazel",
    "Iron",
    "Jolly",
    "Kelp",
    "Lunar",
    "Mossy",
    "Nimble",
    "Ochre",
]

SECOND: Final = [
    "otter",
    "lantern",
    "marmot",
    "compass",
    "sparrow",
    "kettle",
    "badger",
    "pebble",
    "thistle",
    "heron",
]

TITLES: Final = [
    "What {thing} would you choose for a beginner?",
    "My first {thing} after a long winter",
    "A short guide to the {thing}",
    "Is a second-hand {thing} worth the trouble?",
    "Three mistakes I made with my {thing}",
    "How do you look after your {thing}?",
    "Unpopular opinion on the {thing}",
    "The {thing} that my grandmother left me",
    "Show us your {thing} this weekend",
    "Why nobody talks about the {thing}",
    "Looking for a quiet {thing}",
    "I repaired my {thing} with a spoon",
    "Weekly thread about the {thing}",
    "The history of the {thing} in ten pictures",
]

OPENINGS: Final = [
    "I have been thinking about this since the spring.",
    "A friend asked me and I had no answer.",
    "This took me the better part of a month.",
    "Nothing in the old threads settles it.",
    "I am new here, so please be kind.",
    "After ten years I still get this wrong.",
]

MIDDLES: Final = [
    "The price has doubled where I live.",
    "Mine lasted two seasons before it gave up.",
    "The manual is of no use at all.",
    "It works better on cold mornings.",
    "My neighbour swears by the opposite.",
    "The small version is easier to keep clean.",
]

ENDINGS: Final = [
    "What do you do?",
    "Tell me what you would change.",
    "I would buy it again.",
    "More pictures next week.",
    "Thank you for reading.",
    "Corrections are welcome.",
]

REMARKS: Final = [
    "I agree with every word.",
    "That has not been my experience.",
    "Try it with warm water first.",
    "Could you post a picture?",
    "This saved me a lot of money, thank you.",
    "Mine arrived broken.",
    "The old model was better.",
    "You should ask in the weekly thread.",
    "I learned this the hard way.",
    "Patience is all you need.",
    "My club recommends the same.",
    "Not worth it, in my opinion.",
    "Where did you find it?",
    "I would wait for the autumn.",
    "Please keep us posted.",
]

ADDITIONS: Final = [
    "It held for a year.",
    "Ask me again in May.",
    "The second try went well.",
    "My sister disagrees.",
    "Measure twice.",
    "Keep the receipt.",
    "A small one is enough.",
    "Do it on a dry day.",
]

BIOS: Final = [
    "I collect maps.",
    "Retired, mostly outdoors.",
    "Ask me about rivers.",
    "Here to learn.",
    "Two cats, one kiln.",
    "I answer slowly but I answer.",
]

SUBMISSIONS_PER_BOARD: Final = 12

COMMENTS: Final = 1500

PEOPLE: Final = 60

NOW: Final = "2026-07-01 12:00"
"""When everything that an episode writes is written."""

_START: Final = datetime(2026, 1, 1)

_SCHEMA: Final = """
CREATE TABLE user(id INTEGER PRIMARY KEY, name TEXT UNIQUE, password TEXT, bio TEXT, joined TEXT);
CREATE TABLE login(token TEXT PRIMARY KEY, user_id INTEGER);
CREATE TABLE forum(id INTEGER PRIMARY KEY, name TEXT UNIQUE COLLATE NOCASE, title TEXT,
  description TEXT, sidebar TEXT, owner_id INTEGER);
CREATE TABLE submission(id INTEGER PRIMARY KEY, forum_id INTEGER, user_id INTEGER, title TEXT,
  slug TEXT, url TEXT, body TEXT, created TEXT, up INTEGER, down INTEGER);
CREATE TABLE comment(id INTEGER PRIMARY KEY, submission_id INTEGER, parent_id INTEGER,
  user_id INTEGER, body TEXT, created TEXT, up INTEGER, down INTEGER);
CREATE TABLE vote(user_id INTEGER, kind TEXT, target_id INTEGER, choice INTEGER,
  PRIMARY KEY(user_id, kind, target_id));
CREATE TABLE subscription(user_id INTEGER, forum_id INTEGER, PRIMARY KEY(user_id, forum_id));
CREATE INDEX submission_forum ON submission(forum_id);
CREATE INDEX submission_user ON submission(user_id);
CREATE INDEX comment_submission ON comment(submission_id);
CREATE INDEX comment_user ON comment(user_id);
"""

_Choice = TypeVar("_Choice")


def make_database(seed: int) -> sqlite3.Connection:
    """People, boards, submissions and comments; equal for equal seeds."""
    chance = random.Random(seed)
    database = pages.make_database(_SCHEMA, {})
    _people(database, chance)
    _submissions(database, chance)
    _comments(database, chance)
    database.commit()
    return database


def slug_of(title: str) -> str:
    """A title as an address contains it."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "-"


def token_of(name: str) -> str:
    """The cookie's value of a logged-in user."""
    return f"member-{name}"


def _pick(chance: random.Random, among: Sequence[_Choice]) -> _Choice:
    return among[int(chance.random() * len(among))]


def _people(database: sqlite3.Connection, chance: random.Random) -> None:
    names = [ACCOUNT[0]]
    names += [f"{first}{second}" for first in FIRST for second in SECOND]
    for number, name in enumerate(names[:1] + sorted(names[1:], key=lambda _: chance.random())):
        if number == PEOPLE:
            break
        password = ACCOUNT[1] if number == 0 else f"{name.lower()}-{number}"
        joined = _START - timedelta(days=int(chance.random() * 2000) + 1)
        bio = "" if number == 0 else _pick(chance, BIOS)
        row = (number + 1, name, password, bio, f"{joined:%Y-%m-%d}")
        database.execute("INSERT INTO user VALUES(?,?,?,?,?)", row)
        database.execute("INSERT INTO login VALUES(?,?)", (token_of(name), number + 1))
    for number, (board, title, things) in enumerate(BOARDS, start=1):
        topics = ", ".join(things.split("|"))
        row = (number, board, title, f"A place for {board}: {topics}.", "Be kind. No adverts.")
        database.execute("INSERT INTO forum VALUES(?,?,?,?,?,0)", row)


def _submissions(database: sqlite3.Connection, chance: random.Random) -> None:
    drafts: list[tuple[float, int, str]] = []
    for forum, (_, _, things) in enumerate(BOARDS, start=1):
        titles = [t.format(thing=thing) for t in TITLES for thing in things.split("|")]
        titles.sort(key=lambda _: chance.random())
        drafts += [(chance.random(), forum, title) for title in titles[:SUBMISSIONS_PER_BOARD]]
    drafts.sort()
    scores = sorted(range(5, 5 + 3 * len(drafts), 3), key=lambda _: chance.random())
    for number, (_, forum, title) in enumerate(drafts, start=1):
        author = 1 if number % 25 == 0 else 2 + int(chance.random() * (PEOPLE - 1))
        created = _START + timedelta(hours=14 * number, minutes=int(chance.random() * 60))
        link = f"http://home.test/links/{number}" if chance.random() < 0.2 else None
        body = "" if link else _prose(chance, OPENINGS, MIDDLES, ENDINGS)
        down = int(chance.random() * 40)
        votes = (scores[number - 1] + down, down)
        row = (number, forum, author, title, slug_of(title), link, body, _text(created), *votes)
        database.execute("INSERT INTO submission VALUES(?,?,?,?,?,?,?,?,?,?)", row)


def _comments(database: sqlite3.Connection, chance: random.Random) -> None:
    total = SUBMISSIONS_PER_BOARD * len(BOARDS)
    thread: dict[int, list[int]] = {}
    for number in range(1, COMMENTS + 1):
        submission = 1 + int(chance.random() ** 1.6 * total)
        earlier = thread.setdefault(submission, [])
        parent = _pick(chance, earlier) if earlier and chance.random() < 0.45 else None
        author = 1 if number % 100 == 0 else 2 + int(chance.random() * (PEOPLE - 1))
        body = _prose(chance, REMARKS, ADDITIONS)
        created = _START + timedelta(hours=14 * submission + 2 + 3 * len(earlier))
        votes = (int(chance.random() * 30), int(chance.random() ** 2 * 30))
        row = (number, submission, parent, author, body, _text(created), *votes)
        database.execute("INSERT INTO comment VALUES(?,?,?,?,?,?,?,?)", row)
        earlier.append(number)


def _prose(chance: random.Random, *parts: Sequence[str]) -> str:
    return " ".join(_pick(chance, part) for part in parts)


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
