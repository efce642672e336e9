"""Which of MiniWoB++'s tasks a script does: those whose sentence and tree are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from agentgym_servers.web.miniwob import clicking, dates, filling, moving, searching
from agentgym_servers.web.miniwob.sight import Sight

Script: TypeAlias = Callable[[str, Sight], Iterator[str]]
"""A task's sentence and what its page shows -> one call a turn. Raises `LookupError` where the page
is not as it knows it."""

EXPERTS: Final[Mapping[str, Script]] = {
    "book-flight": dates.book_flight,
    "book-flight-nodelay": dates.book_flight,
    "buy-ticket": searching.buy_ticket,
    "choose-date": dates.choose_date,
    "choose-date-easy": dates.choose_date,
    "choose-date-medium": dates.choose_date,
    "choose-date-nodelay": dates.choose_date,
    "choose-list": clicking.choose_from("combobox"),
    "click-button": clicking.click("button", r'^Click on the "(.*)" button'),
    "click-button-sequence": clicking.press("ONE", "TWO"),
    "click-checkboxes": clicking.choose("checkbox"),
    "click-checkboxes-large": clicking.choose("checkbox"),
    "click-checkboxes-soft": searching.choose_similar,
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
    "drag-sort-numbers": moving.sort_numbers,
    "email-inbox-delete": searching.act_on_mail,
    "email-inbox-important": searching.act_on_mail,
    "enter-date": filling.answer(filling.date, "Date"),
    "enter-password": filling.fill_both,
    "enter-text": filling.answer(filling.quoted),
    "enter-text-2": filling.answer(filling.in_case),
    "enter-text-dynamic": filling.answer(filling.quoted),
    "enter-time": filling.answer(filling.time, "InputTime"),
    "find-word": filling.answer(filling.counted_word),
    "focus-text": clicking.focus_field,
    "focus-text-2": clicking.focus_field,
    "form-sequence": moving.slider_and_box,
    "form-sequence-2": filling.radio_and_number,
    "form-sequence-3": filling.option_and_button,
    "generate-number": clicking.generate_number,
    "guess-number": filling.guess,
    "login-user": filling.log_in,
    "login-user-popup": filling.log_in,
    "navigate-tree": clicking.go_through_tree,
    "odd-or-even": clicking.mark_odd_and_even,
    "phone-book": searching.find_in_book,
    "read-table": filling.answer(filling.table_value),
    "read-table-2": filling.fill_from_table,
    "scroll-text": filling.answer(filling.last_word),
    "scroll-text-2": filling.scroll_text,
    "search-engine": searching.search,
    "sign-agreement": filling.sign,
    "simple-algebra": filling.answer(filling.unknown),
    "simple-arithmetic": filling.answer(filling.product),
    "social-media": searching.act_on_post,
    "social-media-all": searching.act_on_posts,
    "social-media-some": searching.act_on_posts,
    "terminal": searching.remove_file,
    "text-transform": filling.answer(filling.letters),
    "unicode-test": clicking.click("button", r'^Click on the "(.*)" button'),
    "use-autocomplete": searching.complete,
    "use-autocomplete-nodelay": searching.complete,
    "use-colorwheel": filling.answer(filling.color),
    "use-colorwheel-2": filling.answer(filling.color),
    "use-slider": moving.set_slider,
    "use-slider-2": moving.set_sliders,
    "use-spinner": filling.answer(filling.number, "spinbutton"),
}
"""A task's name -> its script."""
