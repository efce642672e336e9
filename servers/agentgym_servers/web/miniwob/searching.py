"""Scripts that look something up: in lists, books, boxes of mail and posts, and at a prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Final

from agentgym_servers.web.miniwob.filling import submit
from agentgym_servers.web.miniwob.sight import Element, Sight, part
from agentgym_servers.web.miniwob.synonyms import SYNONYMS

_PAGES: Final = 5
_RESULTS_A_PAGE: Final = 3
_LISTS_MS: Final = 500
"""Proposals appear a moment after the typing."""
_MOST_WAITS: Final = 6
_ICONS: Final = ("Reply", "Retweet", "Like", "Share")
"""Of a post, from the left."""
_MAIL_ICONS: Final = {"trash": 0, "star": 1}


def choose_similar(goal: str, sight: Sight) -> Iterator[str]:
    """Check the boxes with words of the same meaning."""
    (words,) = part(goal, r"similar to (.*) and click")
    for word in words.split(", "):
        meant = {other for family in SYNONYMS if word in family for other in family}
        for box in sight.all("checkbox"):
            if box.name in meant:
                yield f"click({box.bid!r})"
    yield submit(sight)


def buy_ticket(goal: str, sight: Sight) -> Iterator[str]:
    """Press the button of the flight that is asked for."""
    yield f"click({best_flight(goal, sight)!r})"


def best_flight(goal: str, sight: Sight) -> str:
    """The id of the button of the flight that is best by price or duration."""
    by_duration = "shortest" in goal or "longest" in goal
    minutes = 0
    found: list[tuple[int, str]] = []
    for one in sight.elements():
        duration = re.fullmatch(r"(\d+)h (\d+)m", one.name)
        if duration:
            minutes = 60 * int(duration[1]) + int(duration[2])
        elif one.role == "button" and "$" in one.name:
            price = int(part(one.name, r"\$(\d+)")[0])
            found.append((minutes if by_duration else price, one.bid))
    if not found:
        raise LookupError("the page shows no flight")
    best = max if "longest" in goal or "most expensive" in goal else min
    return best(found)[1]


def find_in_book(goal: str, sight: Sight) -> Iterator[str]:
    """Turn a book's pages until the person's is there, and click what is asked for."""
    person, what = part(goal, r"^Find (.*) in the contact book and click on their (\w+)")
    for _ in range(_PAGES):
        if sight.has("heading", person):
            break
        yield f"click({sight.find('link', '>')!r})"
    entries = [one for one in sight.elements() if one.role in ("StaticText", "link")]
    for label, entry in pairwise(entries):
        if label.name == f"{what.title()}:":
            yield f"click({entry.bid!r})"


def search(goal: str, sight: Sight) -> Iterator[str]:
    """Search for a word and click the result that is counted off."""
    word, at = part(goal, r'enter "(.*)" and .* the (\d+)')
    yield f"fill({sight.find('textbox')!r}, {word!r})"
    yield f"click({sight.find('button', 'Search')!r})"
    page, place = divmod(int(at) - 1, _RESULTS_A_PAGE)
    if page:
        yield f"click({sight.find('link', str(page + 1))!r})"
    yield f"click({sight.all('link')[place].bid!r})"


def complete(goal: str, sight: Sight) -> Iterator[str]:
    """Write the beginning of an item, and choose one that ends as asked."""
    (start,) = part(goal, r'starts with "(.*?)"')
    end = part(goal, r'ends with "(.*?)"')[0] if "ends with" in goal else ""
    item = re.compile(f"{re.escape(start)}.*(?<={re.escape(end)})")
    yield from pick_proposal(sight, sight.find("textbox"), start, item)
    yield submit(sight)


def pick_proposal(sight: Sight, field: str, text: str, fits: re.Pattern[str]) -> Iterator[str]:
    """Write into a field and click the first of the proposals that fits."""
    yield f"fill({field!r}, {text!r})"
    for _ in range(_MOST_WAITS):
        proposals = [one.bid for one in sight.all("listitem") if fits.fullmatch(one.text)]
        if proposals:
            yield f"click({proposals[0]!r})"
            return
        yield f"noop({_LISTS_MS})"
    raise LookupError(f"nothing fitting is proposed for {text!r}")


def act_on_mail(goal: str, sight: Sight) -> Iterator[str]:
    """Click one of the icons beside a mail."""
    sender, icon = part(goal, r"^Find the email by (.*) and click the (\w+) icon")
    yield f"click({_icons_after(sight.elements(), sender)[_MAIL_ICONS[icon]].bid!r})"


def act_on_posts(goal: str, sight: Sight) -> Iterator[str]:
    """Click an icon of all posts of a user, or of as many as asked, and submit."""
    what, count, user = part(goal, r'^Click the "(.*)" button on (\w+) posts? by (@\S+) and')
    posts = _posts_of(user, sight)
    for post in posts if count == "all" else posts[: int(count)]:
        yield f"click({post[_ICONS.index(what)].bid!r})"
    yield submit(sight)


def act_on_post(goal: str, sight: Sight) -> Iterator[str]:
    """Click an icon of a user's post, or an item of the menu behind its last icon."""
    user, what = part(goal, r'^For the user (@\S+), click on the "(.*)" button\.$')
    icons = _posts_of(user, sight)[0]
    icon = icons[_ICONS.index(what) if what in _ICONS else -1].bid
    # Under the mouse it becomes another image, and has no size until that is loaded.
    yield f"hover({icon!r})"
    yield f"click({icon!r})"
    if what not in _ICONS:
        named = f"{what} {user}" if what in ("Mute", "Block") else what
        yield f"click({sight.shows('listitem', named)!r})"


def remove_file(goal: str, sight: Sight) -> Iterator[str]:
    """List the files at a prompt, and remove the one that is meant."""
    yield f"click({sight.find('textbox')!r})"
    yield "keyboard_type('ls')"
    yield "keyboard_press('Enter')"
    texts = sight.texts()
    files = texts[texts.index("ls") + 1].split()
    if "no file extension" in goal:
        meant = [file for file in files if "." not in file]
    else:
        (end,) = part(goal, r"extension (\.\S+)$")
        # The page looks for the extension's letters where they first stand.
        meant = [f for f in files if f.endswith(end) and f.find(end[1:]) == len(f) - len(end) + 1]
    if not meant:
        raise LookupError(f"none of the files {files} is meant")
    yield f"keyboard_type({f'rm {meant[0]}'!r})"
    yield "keyboard_press('Enter')"


def _posts_of(user: str, sight: Sight) -> list[list[Element]]:
    elements = sight.elements()
    places = [at for at, one in enumerate(elements) if one.name == user]
    if not places:
        raise LookupError(f"the page shows no post by {user}")
    return [_icons_after(elements[at:], user)[: len(_ICONS)] for at in places]


def _icons_after(elements: list[Element], text: str) -> list[Element]:
    """The icons that follow a text, before the next text that is none of an icon's."""
    names = [one.name for one in elements]
    if text not in names:
        raise LookupError(f"the page shows no {text!r}")
    rest = elements[names.index(text) :]
    first = next((at for at, one in enumerate(rest) if one.role == "image"), len(rest))
    return [
        one
        for one in takewhile(lambda one: one.role == "image" or not one.name, rest[first:])
        if one.role == "image" and one.bid
    ]
