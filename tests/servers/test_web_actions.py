"""Two grammars, one action; nothing an agent writes is run or takes long."""

from __future__ import annotations

import pytest

from agentgym_servers.web.actions import parse
from agentgym_servers.web.actions.calls import Action, ActionProblem, write_call
from agentgym_servers.web.actions.parse import parse_action

PAIRS = [
    ("click('12')", "click [12]", Action("click", ("12", "left", ()))),
    ("fill('12', 'a b')", "type [12] [a b] [0]", Action("fill", ("12", "a b", False))),
    ("select_option('7', 'Red')", "select [7] [Red]", Action("select_option", ("7", ("Red",)))),
    ("hover('3')", "hover [3]", Action("hover", ("3",))),
    ("keyboard_press('Control+a')", "press [ctrl+a]", Action("keyboard_press", ("Control+a",))),
    ("scroll(0, 720)", "scroll [down]", Action("scroll", (0.0, 720.0))),
    ("scroll(0, -720)", "scroll [up]", Action("scroll", (0.0, -720.0))),
    ("new_tab()", "new_tab", Action("new_tab")),
    ("tab_focus(1)", "tab_focus [1]", Action("tab_focus", (1,))),
    ("tab_close()", "close_tab", Action("tab_close")),
    (
        "goto('http://shop.test/')",
        "goto [http://shop.test/]",
        Action("goto", ("http://shop.test/",)),
    ),
    ("go_back()", "go_back", Action("go_back")),
    ("go_forward()", "go_forward", Action("go_forward")),
    ("send_msg_to_user('$7.05')", "stop [$7.05]", Action("send_msg_to_user", ("$7.05",))),
]


@pytest.mark.parametrize(("call", "by_id", "action"), PAIRS)
def test_both_grammars_give_the_same_action(call, by_id, action):
    assert parse_action(call) == action
    assert parse_action(f"I think so.\n```{by_id}```") == action


@pytest.mark.parametrize(("call", "by_id", "action"), PAIRS)
def test_an_action_can_be_written_as_a_call_and_read_again(call, by_id, action):
    assert parse_action(write_call(action)) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("noop()", Action("noop", (1000.0,))),
        ("click(12)", Action("click", ("12", "left", ()))),
        ("click('1', button='right')", Action("click", ("1", "right", ()))),
        ("click('1', modifiers=['Shift'])", Action("click", ("1", "left", ("Shift",)))),
        ("select_option('1', ['a', 'b'])", Action("select_option", ("1", ("a", "b")))),
        ("report_infeasible('No such page')", Action("report_infeasible", ("No such page",))),
        ("I will click the link. click('44')", Action("click", ("44", "left", ()))),
        ("Not click('1').\nBut rather:\nclick('2')", Action("click", ("2", "left", ()))),
        ("```python\nfill('1', 'it\\'s (fine)')\n```", Action("fill", ("1", "it's (fine)", False))),
        ("```\nclick [5]\n``` then ```click [6]```", Action("click", ("6", "left", ()))),
        ("type [1] [a [b] c] [1]", Action("fill", ("1", "a [b] c", True))),
        ("type [1] [two\nlines]", Action("fill", ("1", "two\nlines", True))),
        ("type [1] [0]", Action("fill", ("1", "0", True))),
        ("stop [a ] b]", Action("send_msg_to_user", ("a ] b",))),
        ("```stop```", Action("send_msg_to_user", ("",))),
        (
            "In summary, the next action I will perform is click [9]",
            Action("click", ("9", "left", ())),
        ),
        ("So:\nclick [3]", Action("click", ("3", "left", ()))),
        ("click('1').x", Action("click", ("1", "left", ()))),
        # Quotes and line breaks that Python wants escaped, where they can be read in one way.
        ("fill('23', 'it's ok')", Action("fill", ("23", "it's ok", False))),
        ('fill("23", "two\nlines")', Action("fill", ("23", "two\nlines", False))),
        ("fill('2', 'it's ok, isn't it?')", Action("fill", ("2", "it's ok, isn't it?", False))),
        (
            'Done.\n```\nsend_msg_to_user("a 7" (or small\r\n) screen")\n```',
            Action("send_msg_to_user", ('a 7" (or small\r\n) screen',)),
        ),
        (
            "select_option('3', ['Men's', 'Kids''])",
            Action("select_option", ("3", ("Men's", "Kids'"))),
        ),
        ("fill('4', value='the dogs\\' cat's')", Action("fill", ("4", "the dogs' cat's", False))),
        (
            "Not click('1') but:\nfill('2', 'two\nlines') as it's asked.",
            Action("fill", ("2", "two\nlines", False)),
        ),
        # A number, and what else Python writes without quotes, is the text that it is written as.
        ("send_msg_to_user(2)", Action("send_msg_to_user", ("2",))),
        ("send_msg_to_user(84.80)", Action("send_msg_to_user", ("84.80",))),
        ("send_msg_to_user(text=-3)", Action("send_msg_to_user", ("-3",))),
        ("report_infeasible(None)", Action("report_infeasible", ("None",))),
        ("fill('1', True)", Action("fill", ("1", "True", False))),
        ("select_option('7', [5, '6'])", Action("select_option", ("7", ("5", "6")))),
    ],
)
def test_an_action_is_found_where_agents_put_it(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Write one action"),
        ("hello there", "Write one action"),
        ("click()", "click needs bid. Write: click(bid, button, modifiers)"),
        ("click('1', 'up')", "a button is one of left, middle, right"),
        ("fill('1')", "fill needs value"),
        ("fill('1', {})", "expected a string, got {}"),
        ("click(1.5)", "expected an id, got 1.5"),
        ("goto(open('x'))", "only plain texts"),
        ("fill('23', 'it's ok", "Close each quote and the parenthesis"),
        ("send_msg_to_user(2 km)", "'send_msg_to_user(2 km)' is no call that can be read"),
        ("send_msg_to_user('the 'one') of two')", "write a quote within a text as \\'"),
        ('send_msg_to_user("a 7" (or "small")\nscreen")', "write a quote within a text as"),
        ("Not click('1') but\nfill('2', 'it's", "Close each quote and the parenthesis"),
        ("fill('1', 'it's 'a', 'b')", "fill takes 2 arguments, got 3"),
        ("fill('2', 'it's fine')\nclick('5')", "one action a turn"),
        ("goto(__import__)", "only plain texts"),
        ("tab_focus('1')", "expected a whole number"),
        ("scroll(1e300, 1)", "expected a number"),
        ("upload_file('1', '/etc/hostname')", "Write one action"),
        ("click('1')\nclick('2')", "one action a turn"),
        ("tab_focus [x]", "'tab_focus' cannot take [x]"),
        ("scroll [left]", "'scroll' cannot take [left]"),
        ("type [1]", "takes an id and a text"),
        ("goto [http://a", "stands in brackets"),
    ],
)
def test_what_is_no_action_is_told_what_to_write(text, says):
    found = parse_action(text)
    assert isinstance(found, ActionProblem)
    assert says in found.message


@pytest.mark.parametrize(
    "piece",
    [
        "click(",
        "click('",
        "click('\\",
        "click(\\'",
        "fill('1','",
        "click('1') ",
        "```",
        "[",
        "((",
        "'\"",
        "a ",
        pytest.param("\n", marks=pytest.mark.slow),
        "type [1] [",
        "click [1]\n",
        "the next action i will perform is ",
    ],
)
def test_megabytes_are_read_in_proportion_to_their_length(piece, monkeypatch):
    # Only the last 20,000 characters of an action are read, for which any way is quick enough.
    monkeypatch.setattr(parse, "MAX_ACTION_CHARS", 2**24)
    # Below a second, and half a minute for lines; from each piece to the end, byte by byte, hours.
    mib = 16 if piece == "\n" else 4
    parse_action(piece * (mib * 2**20 // len(piece)))
