"""The tasks of the forum: their templates, with answers read from the same database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.sites.forum import data
from agentgym_servers.web.sites.forum.data import ACCOUNT, REMARKS
from agentgym_servers.web.tasks.scripts import Click, Fill, Goto, ScriptedTask, Select, Step
from agentgym_servers.web.tasks.task_forms import (
    Databases,
    Instance,
    TaskBook,
    answered,
    answered_exactly,
    arrived,
    best,
    changed,
    outer_text,
    rows,
    shows,
    shows_exactly,
)

BOOK: Final = TaskBook("reddit")
VOTE: Final = (
    "document.querySelector('div.submission__vote').querySelector('form').getAttribute('class')"
)
_ALL: Final = """
SELECT s.*, f.name AS forum, u.name AS author, u.bio, s.up - s.down AS net,
  (SELECT count(*) FROM comment c WHERE c.submission_id = s.id) AS comments
FROM submission s JOIN forum f ON f.id = s.forum_id JOIN user u ON u.id = s.user_id
"""
_PHRASES: Final = (
    ("A question about patience", "How long did you wait before it worked?"),
    ("Meeting on the first Sunday of August", "We meet at the old mill, bring a friend."),
    ("Giving away a starter kit", "Free to whoever asks first and pays the postage."),
    ("What I would tell my younger self", "Buy the cheap one and learn on it."),
)


def tasks(seed: int) -> list[ScriptedTask]:
    """The forum's tasks over the data of a seed."""
    return BOOK.tasks({"reddit": data.make_database(seed)}, seed)


@BOOK.template(1001, "Tell me who made the newest submission in the {{forum}} forum.")
def newest_author(databases: Databases) -> Iterator[Instance]:
    """Read the first row of a list."""
    for forum, row in _first_by(databases, "created"):
        steps = (*_forum(forum), Click("link", "New"))
        yield Instance({"forum": forum}, answered(row["author"]), steps, row["author"])


@BOOK.template(
    1002,
    'How many comments does the submission "{{title}}" in the {{forum}} forum have? '
    "Answer with the number only.",
)
def comment_count(databases: Databases) -> Iterator[Instance]:
    """Find a thread and count."""
    for row in _submissions(databases, "WHERE comments > 0"):
        count, values = str(row["comments"]), {"title": row["title"], "forum": row["forum"]}
        yield Instance(values, answered_exactly(count), _thread(row), count)


@BOOK.template(1003, "What is the title of the highest-scored submission in the {{forum}} forum?")
def top_title(databases: Databases) -> Iterator[Instance]:
    """Sort a list and read its first row."""
    for forum, row in _first_by(databases, "net"):
        steps = (*_forum(forum), Click("link", "Top"))
        yield Instance({"forum": forum}, answered(row["title"]), steps, row["title"])


@BOOK.template(
    1004,
    "How many comments of {{user}} have received more downvotes than upvotes? "
    "Answer with the number only.",
)
def disliked_comments(databases: Databases) -> Iterator[Instance]:
    """Count over the pages of a person."""
    query = (
        "SELECT u.name, count(*) AS n FROM comment c JOIN user u ON u.id = c.user_id"
        " WHERE c.down > c.up GROUP BY u.id ORDER BY u.name"
    )
    for row in rows(databases["reddit"], query):
        count = str(row["n"])
        steps = (Goto(f"__REDDIT__/user/{row['name']}/comments"),)
        yield Instance({"user": row["name"]}, answered_exactly(count), steps, count)


@BOOK.template(1005, 'What does the biography of the user who submitted "{{title}}" say?')
def author_biography(databases: Databases) -> Iterator[Instance]:
    """Go from a thread to its author."""
    for row in _submissions(databases, "WHERE bio != ''"):
        steps = (*_thread(row), Click("link", row["author"]))
        yield Instance({"title": row["title"]}, answered(row["bio"]), steps, row["bio"])


@BOOK.template(1006, 'Which user wrote the most comments on the submission "{{title}}"?', test=True)
def busiest_commenter(databases: Databases) -> Iterator[Instance]:
    """Count within a thread."""
    query = (
        "SELECT u.name, count(*) AS n FROM comment c JOIN user u ON u.id = c.user_id"
        " WHERE c.submission_id = ? GROUP BY u.id ORDER BY n DESC, u.name"
    )
    for row in _submissions(databases, "WHERE comments > 5"):
        most = best(rows(databases["reddit"], query, row["id"]), "n")
        if most:
            name, values = most["name"], {"title": row["title"]}
            yield Instance(values, answered(name), _thread(row), name)


@BOOK.template(1007, "Open the thread of the most commented submission in the {{forum}} forum.")
def most_commented(databases: Databases) -> Iterator[Instance]:
    """Sort a list and open its first thread."""
    for forum, row in _first_by(databases, "comments"):
        steps = (*_forum(forum), Click("link", "Most commented"), _opening(row))
        yield Instance({"forum": forum}, arrived(_address(row)), steps)


@BOOK.template(1008, "Show me the submissions of the {{forum}} forum, {{order}} first.")
def sorted_list(databases: Databases) -> Iterator[Instance]:
    """Choose an order."""
    orders = (("new", "newest", "New"), ("top", "highest-scored", "Top"))
    for forum in _forums(databases):
        for path, order, label in orders:
            values = {"forum": forum, "order": order}
            steps = (*_forum(forum), Click("link", label))
            yield Instance(values, arrived(f"__REDDIT__/f/{forum}/{path}"), steps)


@BOOK.template(
    1009,
    "Open the list of comments by the author of the highest-scored submission in {{forum}}.",
    test=True,
)
def top_author_comments(databases: Databases) -> Iterator[Instance]:
    """Go from a list to a person's comments."""
    for forum, row in _first_by(databases, "net"):
        person = (Click("link", row["author"]), Click("link", "Comments"))
        steps = (*_forum(forum), Click("link", "Top"), *person)
        yield Instance(
            {"forum": forum}, arrived(f"__REDDIT__/user/{row['author']}/comments"), steps
        )


@BOOK.template(1010, "Upvote the newest submission in the {{forum}} forum.")
def upvote_newest(databases: Databases) -> Iterator[Instance]:
    """Vote for one."""
    for forum, row in _first_by(databases, "created"):
        steps = (*_forum(forum), Click("link", "New"), _opening(row), Click("button", "Upvote"))
        yield Instance({"forum": forum}, changed(_voted(row, "up")), steps)


@BOOK.template(1011, "Thumbs down the top 1 submission ever in {{forum}}.", test=True)
def downvote_top(databases: Databases) -> Iterator[Instance]:
    """Vote against one."""
    for forum, row in _first_by(databases, "net"):
        steps = (*_forum(forum), Click("link", "Top"), _opening(row), Click("button", "Downvote"))
        yield Instance({"forum": forum}, changed(_voted(row, "down")), steps)


@BOOK.template(1012, "Like all submissions created by {{user}} in the {{forum}} forum.")
def upvote_all(databases: Databases) -> Iterator[Instance]:
    """Vote for several."""
    groups: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in _submissions(databases):
        groups.setdefault((row["author"], row["forum"]), []).append(row)
    for (author, forum), theirs in groups.items():
        if len(theirs) < 2 or author == ACCOUNT[0]:
            continue
        steps: list[Step] = []
        for row in theirs:
            steps += [*_thread(row), Click("button", "Upvote")]
        marks = [_voted(row, "up") for row in theirs]
        yield Instance({"user": author, "forum": forum}, changed(*marks), tuple(steps))


@BOOK.template(1013, 'Change my forum biography to "{{text}}".')
def change_biography(databases: Databases) -> Iterator[Instance]:
    """Fill in a form of one's own."""
    where = f"__REDDIT__/user/{ACCOUNT[0]}"
    for topic in _forums(databases):
        text = f"I know a little about {topic}"
        edit = (Click("link", "Edit biography"), Fill("Biography", text), Click("button", "Save"))
        mark = shows_exactly(where, text, outer_text(".user-bio__biography"))
        yield Instance({"text": text}, changed(mark), (Click("link", ACCOUNT[0]), *edit))


@BOOK.template(1014, "Subscribe to the {{forum}} forum.")
def subscribe(databases: Databases) -> Iterator[Instance]:
    """Follow a board."""
    for forum in _forums(databases):
        mark = shows("__REDDIT__/", forum, locator=outer_text("#sidebar > section"))
        yield Instance(
            {"forum": forum}, changed(mark), (*_forum(forum), Click("button", "Subscribe"))
        )


@BOOK.template(
    1015, 'Post in the {{forum}} forum with the title "{{title}}" and the text "{{text}}".'
)
def submit(databases: Databases) -> Iterator[Instance]:
    """Write a submission."""
    for forum in _forums(databases):
        for title, text in _PHRASES:
            form = (Fill("Title", title), Fill("Body", text), Select("Forum", forum))
            steps = (Click("link", "Submit"), *form, Click("button", "Create submission"))
            where = "func:reddit_get_post_url('__last_url__')"
            mark = shows(where, title, text, locator=outer_text(".submission__inner"))
            values = {"forum": forum, "title": title, "text": text}
            yield Instance(values, changed(mark, at=f"__REDDIT__/f/{forum}"), steps)


@BOOK.template(1016, 'Comment on the submission "{{title}}" with "{{text}}".')
def comment(databases: Databases) -> Iterator[Instance]:
    """Write below a submission."""
    for row in _submissions(databases):
        text = f"Thank you, {row['author']}, this was news to me."
        steps = (*_thread(row), Fill("Comment", text), Click("button", "Post"))
        values = {"title": row["title"], "text": text}
        yield Instance(values, changed(shows(_address(row), text)), steps)


@BOOK.template(
    1017,
    'Reply to the comment of {{user}} on the submission "{{title}}" with "{{text}}".',
    test=True,
)
def reply(databases: Databases) -> Iterator[Instance]:
    """Write below a comment."""
    query = (
        "SELECT min(c.id) AS id, u.name FROM comment c JOIN user u ON u.id = c.user_id"
        " WHERE c.submission_id = ? GROUP BY u.id HAVING count(*) = 1 ORDER BY u.name"
    )
    for row in _submissions(databases, "WHERE comments > 2"):
        for remark in rows(databases["reddit"], query, row["id"])[:1]:
            text = f"I am with {remark['name']} on this one."
            where = f"__REDDIT__/f/{row['forum']}/{row['id']}/-/comment/{remark['id']}"
            steps = (Goto(where), Fill("Comment", text), Click("button", "Post"))
            values = {"user": remark["name"], "title": row["title"], "text": text}
            yield Instance(values, changed(shows(where, text)), steps)


@BOOK.template(1018, 'Edit my submission "{{title}}" by adding to its text: "{{text}}".')
def edit(databases: Databases) -> Iterator[Instance]:
    """Change one's own submission and keep what was there."""
    for row in _mine(databases):
        for remark in REMARKS[:4]:
            text = f"EDIT: {remark}"
            form = (Fill("Body", f"{row['body']} {text}"), Click("button", "Edit submission"))
            steps = (*_thread(row), Click("link", "Edit"), *form)
            mark = shows(_address(row), row["body"], text, locator=outer_text(".submission__body"))
            yield Instance({"title": row["title"], "text": text}, changed(mark), steps)


@BOOK.template(1019, 'Delete my submission "{{title}}".')
def delete(databases: Databases) -> Iterator[Instance]:
    """Take one's own submission away."""
    for row in _mine(databases):
        steps = (*_thread(row), Click("button", "Delete"))
        mark = shows(_address(row), "There is nothing here.", locator=outer_text("main"))
        yield Instance({"title": row["title"]}, changed(mark), steps)


@BOOK.template(
    1020, 'Create a new forum named {{name}} with the description "{{text}}".', test=True
)
def create_forum(databases: Databases) -> Iterator[Instance]:
    """Open a board."""
    for topic in _forums(databases):
        name, text = f"{topic}_for_two", f"A quiet place for couples who share {topic}"
        form = (Fill("Name", name), Fill("Title", name), Fill("Description", text))
        steps = (Click("link", "Create forum"), *form, Click("button", "Create forum"))
        locator = "document.querySelector('#forum_description').value"
        mark = shows_exactly(f"__REDDIT__/f/{name}/edit", text, locator)
        yield Instance({"name": name, "text": text}, changed(mark), steps)


def _forums(databases: Databases) -> list[str]:
    return [
        row["name"] for row in rows(databases["reddit"], "SELECT name FROM forum ORDER BY name")
    ]


def _submissions(databases: Databases, where: str = "", *values: object) -> list[sqlite3.Row]:
    return rows(databases["reddit"], f"SELECT * FROM ({_ALL}) {where} ORDER BY id", *values)


def _mine(databases: Databases) -> list[sqlite3.Row]:
    return _submissions(databases, "WHERE author = ? AND url IS NULL", ACCOUNT[0])


def _first_by(databases: Databases, column: str) -> Iterator[tuple[str, sqlite3.Row]]:
    for forum in _forums(databases):
        query = f"SELECT * FROM ({_ALL}) WHERE forum = ? ORDER BY {column} DESC"
        row = best(rows(databases["reddit"], query, forum), column)
        if row:
            yield forum, row


def _forum(forum: str) -> tuple[Step, ...]:
    return (Click("link", "Forums"), Click("link", forum))


def _thread(row: sqlite3.Row) -> tuple[Step, ...]:
    if row["url"]:
        return (Goto(_address(row)),)
    return (
        Fill("Search query", row["title"]),
        Click("button", "Search"),
        Click("link", row["title"]),
    )


def _opening(row: sqlite3.Row) -> Step:
    return Click("link", f"{row['comments']} comment{'' if row['comments'] == 1 else 's'}")


def _address(row: sqlite3.Row) -> str:
    return f"__REDDIT__/f/{row['forum']}/{row['id']}/{row['slug']}"


def _voted(row: sqlite3.Row, way: str) -> dict[str, object]:
    return shows(_address(row), f"vote vote--user-{way}voted", locator=VOTE)
