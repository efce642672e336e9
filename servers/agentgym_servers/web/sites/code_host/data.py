"""The code host's database: made from a seed with nothing but `random.Random(seed).random()`."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from agentgym_servers.web.sites import pages
from agentgym_servers.web.sites.site import ACCOUNTS

ACCOUNT: Final = ACCOUNTS["gitlab"]
"""Who the agent is here."""

FIRST: Final = ("Ada", "Bruno", "Clara", "Dario", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")

LAST: Final = ("Abel", "Brandt", "Castell", "Duarte")

GROUPS: Final = ("openloom", "tinytools", "harbor", "quietdata")

PROJECTS: Final[tuple[tuple[str, str], ...]] = (
    ("acorn-parser", "Reads configuration files and says where they are wrong"),
    ("barometer", "Charts the weather of a garden"),
    ("cargo-pilot", "Plans the route of a parcel through a warehouse"),
    ("dusk-theme", "A colour scheme for late evenings"),
    ("echo-server", "Answers every message with the same message"),
    ("fieldnotes", "Keeps notes of a walk, with pictures and places"),
    ("gridlock", "Simulates the traffic of a small town"),
    ("hexbrew", "Calculates recipes of home-made lemonade"),
    ("inkwell", "An editor for letters that are written by hand"),
    ("jigsaw", "Cuts pictures into pieces and puts them together"),
    ("kiteflow", "Moves data between tables on a schedule"),
    ("lampwork", "Lights a room by the time of day"),
    ("moonphase", "Prints the phase of the moon for any date"),
    ("nightowl", "Alarms for people who sleep late"),
    ("orchard", "An inventory of fruit trees and their harvest"),
    ("paperboat", "Folds long documents into short summaries"),
    ("quillpress", "Typesets small books"),
    ("rainbarrel", "Collects logs until somebody needs them"),
    ("sundial", "Time zones without tears"),
    ("tidepool", "A library of small data structures"),
    ("umbrella", "Retries requests when the network is wet"),
    ("vinegar", "Finds code that has gone sour"),
    ("windmill", "Runs jobs in turn"),
    ("yarnball", "Untangles the dependencies of a project"),
    ("zephyr-docs", "The handbook of a club of volunteers"),
)
"""(name, description)."""

LABELS: Final = ("bug", "documentation", "enhancement", "help wanted", "question", "security")

PARTS: Final = (
    "parser",
    "start page",
    "export",
    "settings dialog",
    "search index",
    "log reader",
    "installer",
    "calendar view",
    "cache",
    "command line",
    "import wizard",
    "tooltip",
)

TROUBLES: Final = (
    "The {part} stops on an empty file",
    "Add a dark mode to the {part}",
    "Document how the {part} is configured",
    "The {part} is slow with ten thousand rows",
    "Wrong date in the {part} after midnight",
    "Let the {part} remember its last choice",
    "The {part} ignores upper case letters",
    "Translate the {part} into Portuguese",
)

CHANGES: Final = (
    "Make the {part} faster",
    "Rewrite the {part} without globals",
    "Test the {part} with odd input",
    "Remove what the {part} no longer uses",
    "Explain the {part} in the handbook",
    "Fix a rounding error in the {part}",
)

REASONS: Final = (
    "It happens on every second run.",
    "Several people asked for it.",
    "I can help if somebody shows me where to begin.",
    "The last release did not have this problem.",
    "A screenshot would not show it, so here are the steps.",
)

NOTES: Final = (
    "I can reproduce this.",
    "Thank you, looks good to me.",
    "Could you add a test?",
    "Let us wait for the next milestone.",
    "This depends on the other branch.",
)

NOW: Final = "2026-07-01 12:00"
"""When everything that an episode writes is written."""

ROLES: Final = ("Guest", "Reporter", "Developer", "Maintainer", "Owner")

_START: Final = datetime(2026, 1, 1)

_SCHEMA: Final = """
CREATE TABLE user(id INTEGER PRIMARY KEY, username TEXT UNIQUE COLLATE NOCASE, name TEXT,
  password TEXT, email TEXT, status TEXT, website TEXT, bio TEXT);
CREATE TABLE login(token TEXT PRIMARY KEY, user_id INTEGER);
CREATE TABLE project(id INTEGER PRIMARY KEY, space TEXT COLLATE NOCASE, name TEXT COLLATE NOCASE,
  description TEXT, visibility TEXT, stars INTEGER, forks INTEGER, created TEXT,
  UNIQUE(space, name));
CREATE TABLE member(project_id INTEGER, user_id INTEGER, role TEXT,
  PRIMARY KEY(project_id, user_id));
CREATE TABLE star(user_id INTEGER, project_id INTEGER, PRIMARY KEY(user_id, project_id));
CREATE TABLE follow(user_id INTEGER, followed_id INTEGER, PRIMARY KEY(user_id, followed_id));
CREATE TABLE label(project_id INTEGER, name TEXT, PRIMARY KEY(project_id, name));
CREATE TABLE milestone(id INTEGER PRIMARY KEY, project_id INTEGER, iid INTEGER, title TEXT,
  start TEXT, due TEXT);
CREATE TABLE issue(id INTEGER PRIMARY KEY, project_id INTEGER, iid INTEGER, title TEXT, body TEXT,
  author_id INTEGER, assignee_id INTEGER, milestone_id INTEGER, state TEXT, created TEXT,
  updated TEXT, due TEXT);
CREATE TABLE issue_label(issue_id INTEGER, name TEXT, PRIMARY KEY(issue_id, name));
CREATE TABLE merge_request(id INTEGER PRIMARY KEY, project_id INTEGER, iid INTEGER, title TEXT,
  body TEXT, author_id INTEGER, assignee_id INTEGER, reviewer_id INTEGER, source TEXT,
  target TEXT, state TEXT, created TEXT, updated TEXT);
CREATE TABLE note(id INTEGER PRIMARY KEY, kind TEXT, target_id INTEGER, user_id INTEGER,
  body TEXT, created TEXT);
CREATE TABLE branch(project_id INTEGER, name TEXT, PRIMARY KEY(project_id, name));
CREATE TABLE change(id INTEGER PRIMARY KEY, project_id INTEGER, sha TEXT, author_id INTEGER,
  title TEXT, created TEXT);
CREATE TABLE file(project_id INTEGER, path TEXT, text TEXT, PRIMARY KEY(project_id, path));
CREATE TABLE todo(id INTEGER PRIMARY KEY, user_id INTEGER, text TEXT, url TEXT, done INTEGER);
CREATE INDEX issue_project ON issue(project_id, iid);
CREATE INDEX merge_project ON merge_request(project_id, iid);
CREATE INDEX change_project ON change(project_id);
CREATE INDEX note_target ON note(kind, target_id);
"""

_Choice = TypeVar("_Choice")


def make_database(seed: int) -> sqlite3.Connection:
    """Developers, projects and all that happens in them; equal for equal seeds."""
    chance = random.Random(seed)
    database = pages.make_database(_SCHEMA, {})
    _developers(database)
    _projects(database, chance)
    _issues(database, chance)
    _merge_requests(database, chance)
    database.commit()
    return database


def token_of(username: str) -> str:
    """The cookie's value of a logged-in user."""
    return f"session-{username}"


def _pick(chance: random.Random, among: Sequence[_Choice]) -> _Choice:
    return among[int(chance.random() * len(among))]


def _developers(database: sqlite3.Connection) -> None:
    people = [(ACCOUNT[0], "Byte Blaze")]
    for last in LAST:
        people += [(f"{first}.{last}".lower(), f"{first} {last}") for first in FIRST]
    for number, (username, name) in enumerate(people[:40], start=1):
        password = ACCOUNT[1] if number == 1 else f"{username}-{number}"
        row = (number, username, name, password, f"{username}@code.test", "", "", "")
        database.execute("INSERT INTO user VALUES(?,?,?,?,?,?,?,?)", row)
        database.execute("INSERT INTO login VALUES(?,?)", (token_of(username), number))


def _projects(database: sqlite3.Connection, chance: random.Random) -> None:
    stars = sorted(range(7, 7 + 13 * len(PROJECTS), 13), key=lambda _: chance.random())
    for number, (name, description) in enumerate(PROJECTS, start=1):
        mine = number % 4 == 1
        space = ACCOUNT[0] if mine else _pick(chance, GROUPS)
        counts = (stars[number - 1], int(chance.random() * 40))
        created = _text(_START - timedelta(days=int(chance.random() * 700)))
        row = (number, space, name, description, "Public", *counts, created)
        database.execute("INSERT INTO project VALUES(?,?,?,?,?,?,?,?)", row)
        team = sorted(range(2, 41), key=lambda _: chance.random())[: 4 + int(chance.random() * 3)]
        members = [(number, user, _pick(chance, ROLES[:4])) for user in team]
        members[0] = (number, 1, "Owner") if mine else (number, team[0], "Owner")
        if not mine and number % 3 == 0:
            members.append((number, 1, "Maintainer"))
        database.executemany("INSERT INTO member VALUES(?,?,?)", members)
        labels = [(number, label) for label in LABELS]
        database.executemany("INSERT INTO label VALUES(?,?)", labels)
        _files(database, number, name, description)
        _history(database, chance, number, [user for _, user, _ in members])


def _files(database: sqlite3.Connection, project: int, name: str, description: str) -> None:
    files = (
        ("README.md", f"# {name}\n\n{description}.\n\nInstall it with `install {name}`.\n"),
        ("LICENSE", "Permission is granted to use this for anything.\n"),
        ("index.html", f"<html><head><title>{name}</title></head><body></body></html>\n"),
        ("src/main.txt", f"begin {name}\nend {name}\n"),
    )
    rows = [(project, path, text) for path, text in files]
    database.executemany("INSERT INTO file VALUES(?,?,?)", rows)
    branches = [(project, "main"), *((project, f"topic-{i}") for i in range(1, 1 + project % 4))]
    database.executemany("INSERT INTO branch VALUES(?,?)", branches)
    title, due = f"Release {1 + project % 5}.0", f"2026-{7 + project % 5:02}-15"
    row = (project, 1, title, "2026-06-01", due)
    statement = "INSERT INTO milestone(project_id, iid, title, start, due) VALUES(?,?,?,?,?)"
    database.execute(statement, row)


def _history(
    database: sqlite3.Connection, chance: random.Random, project: int, team: Sequence[int]
) -> None:
    for number in range(20 + project % 9):
        author = team[int(chance.random() ** 1.8 * len(team))]
        title = _pick(chance, CHANGES).format(part=_pick(chance, PARTS))
        created = _text(_START + timedelta(days=7 * number, hours=int(chance.random() * 160)))
        sha = hashlib.sha1(f"{project}/{number}/{title}".encode()).hexdigest()
        row = (project, sha, author, title, created)
        statement = "INSERT INTO change(project_id, sha, author_id, title, created)"
        database.execute(f"{statement} VALUES(?,?,?,?,?)", row)


def _issues(database: sqlite3.Connection, chance: random.Random) -> None:
    number = 0
    for project in range(1, 1 + len(PROJECTS)):
        drafts = [t.format(part=part) for t in TROUBLES for part in PARTS]
        drafts.sort(key=lambda _: chance.random())
        for iid, title in enumerate(drafts[: 8 + project % 5], start=1):
            number += 1
            author = 1 if number % 9 == 0 else 2 + int(chance.random() * 39)
            assignee = _pick(chance, [None, None, *_team(database, project)])
            state = "closed" if chance.random() < 0.35 else "opened"
            created = _START + timedelta(hours=16 * number)
            updated = created + timedelta(minutes=1 + int(chance.random() * 60_000))
            times = (_text(created), _text(updated), None)
            body = _pick(chance, REASONS)
            people = (author, assignee, None)
            row = (number, project, iid, title, body, *people, state, *times)
            database.execute("INSERT INTO issue VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", row)
            for label in LABELS:
                if chance.random() < 0.25:
                    database.execute("INSERT INTO issue_label VALUES(?,?)", (number, label))
            _notes(database, chance, "issue", number, created)
            if assignee == 1 and state == "opened":
                _todo(database, project, f"issues/{iid}", title)


def _merge_requests(database: sqlite3.Connection, chance: random.Random) -> None:
    number = 0
    for project in range(1, 1 + len(PROJECTS)):
        drafts = [t.format(part=part) for t in CHANGES for part in PARTS]
        drafts.sort(key=lambda _: chance.random())
        team = _team(database, project)
        for iid, title in enumerate(drafts[: 2 + project % 2], start=1):
            number += 1
            state = "merged" if chance.random() < 0.4 else "opened"
            created = _START + timedelta(hours=60 * number)
            people = (_pick(chance, team), _pick(chance, team), _pick(chance, team))
            source = f"change-{iid}"
            text = (title, _pick(chance, REASONS))
            times = (_text(created), _text(created + timedelta(hours=3)))
            row = (number, project, iid, *text, *people, source, "main", state, *times)
            marks = ",".join("?" * len(row))
            database.execute(f"INSERT INTO merge_request VALUES({marks})", row)
            database.execute("INSERT INTO branch VALUES(?,?)", (project, source))
            _notes(database, chance, "merge_request", number, created)
            if people[2] == 1 and state == "opened":
                _todo(database, project, f"merge_requests/{iid}", title)


def _notes(
    database: sqlite3.Connection, chance: random.Random, kind: str, target: int, start: datetime
) -> None:
    for number in range(int(chance.random() * 4)):
        author = 2 + int(chance.random() * 39)
        when = _text(start + timedelta(hours=5 * (number + 1)))
        row = (kind, target, author, _pick(chance, NOTES), when)
        statement = "INSERT INTO note(kind, target_id, user_id, body, created) VALUES(?,?,?,?,?)"
        database.execute(statement, row)


def _team(database: sqlite3.Connection, project: int) -> list[int]:
    query = "SELECT user_id FROM member WHERE project_id=? ORDER BY user_id"
    return [row["user_id"] for row in database.execute(query, (project,))]


def _todo(database: sqlite3.Connection, project: int, place: str, title: str) -> None:
    query = "SELECT space, name FROM project WHERE id=?"
    row = database.execute(query, (project,)).fetchone()
    values = (title, f"/{row['space']}/{row['name']}/-/{place}")
    database.execute("INSERT INTO todo(user_id, text, url, done) VALUES(1,?,?,0)", values)


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
