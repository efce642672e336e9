"""The forum's database: made from a seed with nothing but `random.Random(seed).random()`."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from agentgym_servers.web import pages
from agentgym_servers.web.forum import words

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
    """A title as it stands in an address."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "-"


def token_of(name: str) -> str:
    """The cookie's value of somebody who is logged in."""
    return f"member-{name}"


def _pick(chance: random.Random, among: Sequence[_Choice]) -> _Choice:
    return among[int(chance.random() * len(among))]


def _people(database: sqlite3.Connection, chance: random.Random) -> None:
    names = [words.ACCOUNT[0]]
    names += [f"{first}{second}" for first in words.FIRST for second in words.SECOND]
    for number, name in enumerate(names[:1] + sorted(names[1:], key=lambda _: chance.random())):
        if number == PEOPLE:
            break
        password = words.ACCOUNT[1] if number == 0 else f"{name.lower()}-{number}"
        joined = _START - timedelta(days=int(chance.random() * 2000) + 1)
        bio = "" if number == 0 else _pick(chance, words.BIOS)
        row = (number + 1, name, password, bio, f"{joined:%Y-%m-%d}")
        database.execute("INSERT INTO user VALUES(?,?,?,?,?)", row)
        database.execute("INSERT INTO login VALUES(?,?)", (token_of(name), number + 1))
    for number, (board, title, things) in enumerate(words.BOARDS, start=1):
        topics = ", ".join(things.split("|"))
        row = (number, board, title, f"A place for {board}: {topics}.", "Be kind. No adverts.")
        database.execute("INSERT INTO forum VALUES(?,?,?,?,?,0)", row)


def _submissions(database: sqlite3.Connection, chance: random.Random) -> None:
    drafts: list[tuple[float, int, str]] = []
    for forum, (_, _, things) in enumerate(words.BOARDS, start=1):
        titles = [t.format(thing=thing) for t in words.TITLES for thing in things.split("|")]
        titles.sort(key=lambda _: chance.random())
        drafts += [(chance.random(), forum, title) for title in titles[:SUBMISSIONS_PER_BOARD]]
    drafts.sort()
    scores = sorted(range(5, 5 + 3 * len(drafts), 3), key=lambda _: chance.random())
    for number, (_, forum, title) in enumerate(drafts, start=1):
        author = 1 if number % 25 == 0 else 2 + int(chance.random() * (PEOPLE - 1))
        created = _START + timedelta(hours=14 * number, minutes=int(chance.random() * 60))
        link = f"http://home.test/links/{number}" if chance.random() < 0.2 else None
        body = "" if link else _prose(chance, words.OPENINGS, words.MIDDLES, words.ENDINGS)
        down = int(chance.random() * 40)
        votes = (scores[number - 1] + down, down)
        row = (number, forum, author, title, slug_of(title), link, body, _text(created), *votes)
        database.execute("INSERT INTO submission VALUES(?,?,?,?,?,?,?,?,?,?)", row)


def _comments(database: sqlite3.Connection, chance: random.Random) -> None:
    total = SUBMISSIONS_PER_BOARD * len(words.BOARDS)
    thread: dict[int, list[int]] = {}
    for number in range(1, COMMENTS + 1):
        submission = 1 + int(chance.random() ** 1.6 * total)
        earlier = thread.setdefault(submission, [])
        parent = _pick(chance, earlier) if earlier and chance.random() < 0.45 else None
        author = 1 if number % 100 == 0 else 2 + int(chance.random() * (PEOPLE - 1))
        body = _prose(chance, words.REMARKS, words.ADDITIONS)
        created = _START + timedelta(hours=14 * submission + 2 + 3 * len(earlier))
        votes = (int(chance.random() * 30), int(chance.random() ** 2 * 30))
        row = (number, submission, parent, author, body, _text(created), *votes)
        database.execute("INSERT INTO comment VALUES(?,?,?,?,?,?,?,?)", row)
        earlier.append(number)


def _prose(chance: random.Random, *parts: Sequence[str]) -> str:
    return " ".join(_pick(chance, part) for part in parts)


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
