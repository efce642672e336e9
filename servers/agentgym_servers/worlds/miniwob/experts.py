"""Scripts that solve MiniWoB++ tasks, and which tasks they solve."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Final, TypeAlias

from agentgym_servers.worlds.miniwob import clicking, filling
from agentgym_servers.worlds.miniwob.filling import submit
from agentgym_servers.worlds.miniwob.sight import Element, Sight, part

_FAMILIES: Final = """
    big large huge enormous gigantic
    small tiny little mini petite
    red scarlet crimson vermillion
    happy cheerful joyful gleeful delighted
    sad unhappy sorrowful miserable tragic
    angry mad furious irritated
    evil wicked immoral sinful corrupt depraved
    wrong incorrect mistaken erroneous
    real genuine actual
    strange odd peculiar unusual weird
    stop cease halt end finish
    scared terrified panicked fearful frightened afraid
    quiet calm peaceful serene mild
    old aged archaic
    love like adore favor
    kill murder assassinate
    keep retain preserve sustain maintain
    hide conceal camouflage
    hate despise loathe detest dislike
    funny humorous amusing comical laughable
    fat fleshy plump chubby
    stupid dumb dull unwise
    delicious savory delectable appetizing
    cut slice carve chop
    brave courageous fearless
    begin start initiate launch
    answer reply response
    television televisions TV TVs
    house home houses homes
    fire flame fires flames
    pig pork swine
    rabbit rabbits bunny bunnies
    car cars automobile automobiles vehicle vehicles
    water
"""

SYNONYMS: Final = tuple(frozenset(line.split()) for line in _FAMILIES.strip().splitlines())
"""Families of words; none is in two."""

_PAGES: Final = 5

_RESULTS_A_PAGE: Final = 3

_LISTS_MS: Final = 500
"""Proposals appear a moment after the typing."""

_MAX_WAITS: Final = 6

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
    """Press the button of the flight of the sentence."""
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
    """Turn a book's pages until the person's is there, and click what the sentence names."""
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
    """Write the beginning of an item, and choose one that ends as required."""
    (start,) = part(goal, r'starts with "(.*?)"')
    end = part(goal, r'ends with "(.*?)"')[0] if "ends with" in goal else ""
    item = re.compile(f"{re.escape(start)}.*(?<={re.escape(end)})")
    yield from pick_proposal(sight, sight.find("textbox"), start, item)
    yield submit(sight)


def pick_proposal(sight: Sight, field: str, text: str, fits: re.Pattern[str]) -> Iterator[str]:
    """Write into a field and click the first of the proposals that fits."""
    yield f"fill({field!r}, {text!r})"
    for _ in range(_MAX_WAITS):
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
    """Click an icon of all posts of a user, or of as many as required, and submit."""
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
        # The page searches for the first place of the extension's letters.
        meant = [f for f in files if f.endswith(end) and f.find(end[1:]) == len(f) - len(end) + 1]
    if not meant:
        raise LookupError(f"none of the files {files} fits")
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


_MONTHS: Final = {name: at for at, name in enumerate(calendar.month_name) if name}

_MAX_MONTHS: Final = 24

_DATE: Final = r"(\d\d)/(\d\d)/(\d{4})"


def choose_date(goal: str, sight: Sight) -> Iterator[str]:
    """Choose a day and submit."""
    yield from _pick(goal, sight, sight.find("textbox"))
    yield submit(sight)


def book_flight(goal: str, sight: Sight) -> Iterator[str]:
    """Fill in two airports and a day, search, and book the cheapest or shortest flight."""
    cities = part(goal, r"from: (.*) to: (.*) on \d")
    fields = [one.bid for one in sight.all("textbox")]
    for field, city in zip(fields, cities, strict=False):
        airport = re.compile(rf"{re.escape(city)} \(.*|.* \({re.escape(city)}\)")
        yield from pick_proposal(sight, field, city, airport)
    yield from _pick(goal, sight, fields[-1])
    yield f"click({sight.find('button', 'Search')!r})"
    yield f"click({best_flight(goal, sight)!r})"


def _pick(goal: str, sight: Sight, field: str) -> Iterator[str]:
    """Open a field's calendar, go to the month and click the day."""
    month, day, year = map(int, part(goal, _DATE))
    yield f"click({field!r})"
    for _ in range(_MAX_MONTHS):
        shown = _shown_month(sight)
        if shown == (year, month):
            break
        yield f"click({sight.find('link', 'Next' if shown < (year, month) else 'Prev')!r})"
    yield f"click({sight.find('link', str(day))!r})"


def _shown_month(sight: Sight) -> tuple[int, int]:
    texts = sight.texts()
    months = [_MONTHS[text] for text in texts if text in _MONTHS]
    years = [int(text) for text in texts if text.isdecimal() and len(text) == 4]
    if not months or not years:
        raise LookupError("the page shows no calendar")
    return years[0], months[0]


_FAR: Final = 6

_MAX_MOVES: Final = 200


def set_slider(goal: str, sight: Sight) -> Iterator[str]:
    """Bring a slider to a number."""
    yield from _slide(sight, 0, int(part(goal, r"Select (-?\d+) with")[0]))
    yield submit(sight)


def set_sliders(goal: str, sight: Sight) -> Iterator[str]:
    """Bring several sliders to their numbers."""
    for at, number in enumerate(part(goal, r"\[(\d+),(\d+),(\d+)\]")):
        yield from _slide(sight, at, int(number))
    yield submit(sight)


def slider_and_box(goal: str, sight: Sight) -> Iterator[str]:
    """Bring a slider to a number and check one of three boxes."""
    number, box = part(goal, r"Select (-?\d+) with the slider, click the (\d)")
    yield from _slide(sight, 0, int(number))
    yield f"click({sight.all('checkbox')[int(box) - 1].bid!r})"
    yield submit(sight)


def sort_numbers(goal: str, sight: Sight) -> Iterator[str]:
    """Drag numbers up until they are in order."""
    for _ in range(_MAX_MOVES):
        items = sight.all("listitem")
        numbers = [int(one.text) for one in items]
        wrong = [at for at, n in enumerate(sorted(numbers)) if numbers[at] != n]
        if not wrong:
            break
        smallest = numbers.index(min(numbers[wrong[0] :]), wrong[0])
        yield f"drag_and_drop({items[smallest].bid!r}, {items[wrong[0]].bid!r})"
    yield submit(sight)


def _slide(sight: Sight, which: int, number: int) -> Iterator[str]:
    """Reach the next slider and bring it to a number: by pages while it is far, then by ones."""
    yield "keyboard_press('Tab')"
    now, page = _numbers(sight)[which], _FAR
    for _ in range(_MAX_MOVES):
        if now == number:
            return
        far = abs(number - now) > page
        keys = ("PageUp", "PageDown") if far else ("ArrowRight", "ArrowLeft")
        yield f"keyboard_press({keys[number < now]!r})"
        before, now = now, _numbers(sight)[which]
        page = max(page, abs(now - before))
    raise LookupError(f"the slider stays at {now} and does not reach {number}")


def _numbers(sight: Sight) -> list[int]:
    return [int(text) for text in sight.texts() if re.fullmatch(r"-?\d+", text)]


Script: TypeAlias = Callable[[str, Sight], Iterator[str]]
"""A task's sentence and what its page shows -> one call a turn. Raises `LookupError` where the page
is not as it knows it."""

EXPERTS: Final[Mapping[str, Script]] = {
    "book-flight": book_flight,
    "book-flight-nodelay": book_flight,
    "buy-ticket": buy_ticket,
    "choose-date": choose_date,
    "choose-date-easy": choose_date,
    "choose-date-medium": choose_date,
    "choose-date-nodelay": choose_date,
    "choose-list": clicking.choose_from("combobox"),
    "click-button": clicking.click("button", r'^Click on the "(.*)" button'),
    "click-button-sequence": clicking.press("ONE", "TWO"),
    "click-checkboxes": clicking.choose("checkbox"),
    "click-checkboxes-large": clicking.choose("checkbox"),
    "click-checkboxes-soft": choose_similar,
    "click-checkboxes-transfer": clicking.choose("checkbox"),
    "click-collapsible": clicking.expand_and_submit,
    "click-collapsible-nodelay": clicking.expand_and_submit,
    "click-dialog": clicking.click("button"),
    "click-dialog-2": clicking.click_in_dialog,
    "click-menu": clicking.go_through_menu,
    "click-option": clicking.choose("radio"),
    "click-scroll-list": clicking.choose_from("listbox"),
    "click-tab": clicking.click("link", r"^Click on (.*)\.$"),
    "click-test": clicking.click("button"),
    "click-test-2": clicking.press("ONE"),
    "click-test-transfer": clicking.press("ONE"),
    "copy-paste": filling.copy_text,
    "copy-paste-2": filling.copy_text,
    "drag-sort-numbers": sort_numbers,
    "email-inbox-delete": act_on_mail,
    "email-inbox-important": act_on_mail,
    "enter-date": filling.answer(filling.date, "Date"),
    "enter-password": filling.fill_both,
    "enter-text": filling.answer(filling.quoted),
    "enter-text-2": filling.answer(filling.in_case),
    "enter-text-dynamic": filling.answer(filling.quoted),
    "enter-time": filling.answer(filling.time, "InputTime"),
    "find-word": filling.answer(filling.counted_word),
    "focus-text": clicking.focus_field,
    "focus-text-2": clicking.focus_field,
    "form-sequence": slider_and_box,
    "form-sequence-2": filling.radio_and_number,
    "form-sequence-3": filling.option_and_button,
    "generate-number": clicking.generate_number,
    "guess-number": filling.guess,
    "login-user": filling.log_in,
    "login-user-popup": filling.log_in,
    "navigate-tree": clicking.go_through_tree,
    "odd-or-even": clicking.mark_odd_and_even,
    "phone-book": find_in_book,
    "read-table": filling.answer(filling.table_value),
    "read-table-2": filling.fill_from_table,
    "scroll-text": filling.answer(filling.last_word),
    "scroll-text-2": filling.scroll_text,
    "search-engine": search,
    "sign-agreement": filling.sign,
    "simple-algebra": filling.answer(filling.unknown),
    "simple-arithmetic": filling.answer(filling.product),
    "social-media": act_on_post,
    "social-media-all": act_on_posts,
    "social-media-some": act_on_posts,
    "terminal": remove_file,
    "text-transform": filling.answer(filling.letters),
    "unicode-test": clicking.click("button", r'^Click on the "(.*)" button'),
    "use-autocomplete": complete,
    "use-autocomplete-nodelay": complete,
    "use-colorwheel": filling.answer(filling.color),
    "use-colorwheel-2": filling.answer(filling.color),
    "use-slider": set_slider,
    "use-slider-2": set_sliders,
    "use-spinner": filling.answer(filling.number, "spinbutton"),
}
"""A task's name -> its script."""
