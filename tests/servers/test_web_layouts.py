"""What an agent reads: two layouts, two sets of addresses."""

from __future__ import annotations

import pytest

from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.layouts import (
    PUBLIC_ADDRESSES,
    View,
    agentgym_text,
    browsergym_text,
    own_action,
    own_url,
    public_url,
)
from agentgym_servers.web.sites.site import HOSTS

VIEW = View(
    objective="Find the lamp.",
    tabs=(("http://shop.test/", "Shop"), ("http://forum.test/f/books", "books")),
    active=1,
    tree="RootWebArea 'books', focused",
)


def test_agentgyms_layout_has_tabs_tree_public_url_objective_and_action():
    assert agentgym_text(VIEW) == (
        "OBSERVATION:\nTab 0: Shop | Tab 1 (current): books\n\nRootWebArea 'books', focused\n"
        "URL: http://reddit.com/f/books\nOBJECTIVE: Find the lamp.\nPREVIOUS ACTION: None"
    )


def test_browsergyms_layout_has_goal_tabs_tree_and_the_last_action_with_its_error():
    view = View(VIEW.objective, VIEW.tabs, 1, VIEW.tree, "click('9')", "ValueError: no")
    assert browsergym_text(view) == (
        "# Goal\nFind the lamp.\n\n# Currently open tabs\n\n"
        "Tab 0:\n    Title: Shop\n    URL: http://shop.test/\n\n"
        "Tab 1 (active tab):\n    Title: books\n    URL: http://forum.test/f/books\n\n"
        "# Current page accessibility tree\nRootWebArea 'books', focused\n\n"
        "# Last action\nclick('9')\n\n# Error message from last action\nValueError: no"
    )


@pytest.mark.parametrize("site", HOSTS)
@pytest.mark.parametrize("rest", ["", "/", "/a/b?q=1", "?q=1#x", "#x"])
def test_every_address_of_a_site_is_shown_as_its_public_one_and_led_back(site, rest):
    shown = public_url(HOSTS[site] + rest)
    assert shown == PUBLIC_ADDRESSES[site] + rest
    assert own_url(shown) == HOSTS[site] + rest


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("https://reddit.com/f/books", "http://forum.test/f/books"),
        ("reddit.com/f/books", "http://forum.test/f/books"),
        ("http://reddit.company/", "http://reddit.company/"),
        ("https://example.com/reddit.com", "https://example.com/reddit.com"),
        ("http://shop.test/p/4", "http://shop.test/p/4"),
        ("", ""),
    ],
)
def test_an_address_is_taken_for_a_site_only_where_it_is_one(given, own):
    assert own_url(given) == own


def test_only_goto_is_led_to_our_addresses():
    assert own_action(Action("goto", ("http://gitlab.com/a",))) == Action(
        "goto", ("http://code.test/a",)
    )
    stop = Action("send_msg_to_user", ("http://gitlab.com/a",))
    assert own_action(stop) is stop
