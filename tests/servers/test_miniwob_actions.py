"""What an agent may do on a page with widgets, and what it is told where it may not."""

from __future__ import annotations

import pytest

from agentgym_servers.web.actions.calls import WIDGETS, Action, ActionProblem, write_call
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.worlds.miniwob.sight import Sight

ACTIONS = [
    ("noop()", Action("noop", (1000.0,))),
    ("noop(500)", Action("noop", (500.0,))),
    ("scroll(0, 200)", Action("scroll", (0.0, 200.0))),
    ("scroll_at(5, 6, 0, 200)", Action("scroll_at", (5.0, 6.0, 0.0, 200.0))),
    ("keyboard_press('Control+a')", Action("keyboard_press", ("Control+a",))),
    ("keyboard_down('Shift')", Action("keyboard_down", ("Shift",))),
    ("keyboard_up('Shift')", Action("keyboard_up", ("Shift",))),
    ("keyboard_type('it\\'s')", Action("keyboard_type", ("it's",))),
    ("keyboard_insert_text('確定')", Action("keyboard_insert_text", ("確定",))),
    ("click('12')", Action("click", ("12", "left", ()))),
    ("click('12', modifiers=['Shift'])", Action("click", ("12", "left", ("Shift",)))),
    ("dblclick('12', 'right')", Action("dblclick", ("12", "right", ()))),
    ("fill('12', 'a b')", Action("fill", ("12", "a b", False))),
    ("clear('12')", Action("clear", ("12",))),
    ("focus('12')", Action("focus", ("12",))),
    ("hover('12')", Action("hover", ("12",))),
    ("press('12', 'ArrowUp')", Action("press", ("12", "ArrowUp"))),
    ("select_option('7', ['a', 'b'])", Action("select_option", ("7", ("a", "b")))),
    ("drag_and_drop('1', '2')", Action("drag_and_drop", ("1", "2"))),
    ("mouse_move(10, 20.5)", Action("mouse_move", (10.0, 20.5))),
    ("mouse_down(10, 20)", Action("mouse_down", (10.0, 20.0, "left"))),
    ("mouse_up(10, 20)", Action("mouse_up", (10.0, 20.0, "left"))),
    ("mouse_click(10, 20, 'right')", Action("mouse_click", (10.0, 20.0, "right"))),
    ("mouse_dblclick(10, 20)", Action("mouse_dblclick", (10.0, 20.0, "left"))),
    ("mouse_drag_and_drop(1, 2, 3, 4)", Action("mouse_drag_and_drop", (1.0, 2.0, 3.0, 4.0))),
]


@pytest.mark.parametrize(("call", "action"), ACTIONS)
def test_a_call_is_read_and_written_and_read_again(call, action):
    assert parse_action(f"I will do this:\n```{call}```", WIDGETS) == action
    assert parse_action(write_call(action), WIDGETS) == action


def test_every_kind_of_action_was_read():
    assert {action.kind for _, action in ACTIONS} == WIDGETS.kinds


@pytest.mark.parametrize(
    ("by_id", "action"),
    [
        ("click [12]", Action("click", ("12", "left", ()))),
        ("type [7] [lamp] [0]", Action("fill", ("7", "lamp", False))),
        ("type [7] [lamp] [1]", Action("fill", ("7", "lamp", True))),
        ("press [ctrl+a]", Action("keyboard_press", ("Control+a",))),
        ("select [7] [Red]", Action("select_option", ("7", ("Red",)))),
    ],
)
def test_webarenas_grammar_is_read_too(by_id, action):
    assert parse_action(f"```{by_id}```", WIDGETS) == action


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Received no action. Write one of: noop(wait_ms), "),
        ("upload_file('1', '/etc/hostname')", "Received no action"),
        ("mouse_upload_file(1, 2, '/etc/hostname')", "Received no action"),
        ("goto('http://other.test')", "Received no action"),
        ("goto [http://other.test]", "There is no action 'goto' here."),
        ("stop [done]", "There is no action 'send_msg_to_user' here."),
        ("new_tab", "There is no action 'new_tab' here."),
        ("send_msg_to_user('done')", "Received no action"),
        ("mouse_click('1', 2)", "expected a number, got 1. Write: mouse_click(x, y, button)."),
        ("mouse_click(1, 1e12)", "expected a number"),
        ("mouse_click(True, 2)", "expected a number"),
        ("drag_and_drop('1')", "drag_and_drop needs to_bid."),
        ("press('1', os.name)", "takes only plain texts"),
        ("click('1')\nclick('2')", "Write one action a turn"),
    ],
)
def test_what_cannot_be_done_is_told(text, says):
    found = parse_action(text, WIDGETS)
    assert isinstance(found, ActionProblem)
    assert says in found.message


def test_a_tree_is_taken_apart_line_by_line():
    sight = Sight(
        lambda: (
            "RootWebArea 'Task', focused\n"
            "\t[13] generic value='a', focused\n"
            "\t[14] textbox \"it's\" value='x, \\'y\\' ', required\n"
            "\t\tStaticText 'x, y'\n"
            "\t[20] listitem ''\n"
            "\t\t[21] list ''\n"
            "\t\t\tStaticText 'deep'\n"
            "\t\tStaticText 'last'\n"
            "\tStaticText 'beside'"
        )
    )
    found = {one.bid: one for one in sight.elements() if one.bid}
    assert found["13"].value == "a"
    assert (found["14"].name, found["14"].value) == ("it's", "x, 'y' ")
    assert found["20"].text == "deep last"
    assert sight.texts() == ["x, y", "deep", "last", "beside"]
    assert sight.find("textbox") == "14"
    with pytest.raises(LookupError, match="shows no button OK"):
        sight.find("button", "OK")


def test_a_long_text_is_inserted_and_not_typed_key_by_key():
    longest = "a" * 1000
    typed = parse_action(f"keyboard_type({longest!r})", WIDGETS)
    assert typed == Action("keyboard_type", (longest,))
    found = parse_action(f"keyboard_type({longest + 'b'!r})", WIDGETS)
    assert isinstance(found, ActionProblem) and "keyboard_insert_text" in found.message
    inserted = parse_action(f"keyboard_insert_text({longest + 'b'!r})", WIDGETS)
    assert isinstance(inserted, Action)
