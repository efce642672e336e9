"""Tools: verbs as functions with arguments, and environments whose actions are methods."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pytest
from msgspec import Meta

import worlds
from agentgym_env.registry import env_class, full_id
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.tool_env import ToolEnv, ToolResult, tool
from agentgym_env.tools import ACT, BadArguments, Verb, call_of, specs_of

VERBS = (
    Verb("get {amount:int} {item}", "Take an item."),
    Verb("craft {amount:int} {item} using {ingredients:list}"),
    Verb("inventory"),
    Verb("toggle and go through {door}"),
    Verb("go through {door}"),
    Verb("fill({id:quoted}, {text:quoted})"),
)
TOOLS = specs_of(VERBS)


@pytest.mark.parametrize(
    ("action", "name", "arguments"),
    [
        ("get 3 oak logs", "get", {"amount": 3, "item": "oak logs"}),
        ("craft 1 stick using 2 planks, 1 oak log", "craft",
         {"amount": 1, "item": "stick", "ingredients": ["2 planks", "1 oak log"]}),
        ("inventory", "inventory", {}),
        ("toggle and go through red door 1", "toggle_and_go_through", {"door": "red door 1"}),
        ("go through red door 1", "go_through", {"door": "red door 1"}),
        ("fill('a\"b', \"it's, 2\")", "fill", {"id": 'a"b', "text": "it's, 2"}),
        ("fill('12', 'two\\nlines')", "fill", {"id": "12", "text": "two\nlines"}),
    ],
)  # fmt: skip
def test_an_action_becomes_a_call_and_the_call_the_same_action(action, name, arguments):
    found, given = call_of(TOOLS, action)
    assert (found.name, given) == (name, arguments)
    assert call_of(TOOLS, found.action(given))[1] == given
    if "fill" not in action:
        assert found.action(given) == action


def test_a_text_that_is_no_action_is_no_call():
    assert [call_of(TOOLS, text) for text in ("get oak", "", "jump", "get 3 ")] == [None] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"item": "log"}, "get needs the argument amount"),
        ({"amount": 1, "item": "log", "place": "x"}, "get has no argument 'place'"),
        ({"amount": "many", "item": "log"}, "amount of get is a whole number"),
        ({"amount": True, "item": "log"}, "amount of get is a whole number"),
        ({"amount": 1.5, "item": "log"}, "amount of get is a whole number"),
        ({"amount": 1, "item": ["log"]}, "item of get is a text"),
        ({"amount": 1, "item": None}, "item of get is a text"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, message):
    with pytest.raises(BadArguments, match=message):
        TOOLS[0].action(arguments)


def test_numbers_in_quotes_and_numbers_for_texts_are_understood():
    assert TOOLS[0].action({"amount": " 3 ", "item": 7}) == "get 3 7"


def test_definitions_are_those_of_openai():
    function = Verb("get {amount:int} {item}", "Take.", about={"item": "A base item."}).spec
    assert function.as_function() == {
        "type": "function",
        "function": {
            "name": "get", "description": "Take.",
            "parameters": {
                "type": "object", "required": ["amount", "item"],
                "properties": {
                    "amount": {"type": "integer"},
                    "item": {"type": "string", "description": "A base item."},
                },
            },
        },
    }  # fmt: skip


def test_verbs_with_one_name_need_another():
    with pytest.raises(ValueError, match="two verbs give the tool 'use'"):
        specs_of([Verb("use {a} on {b}"), Verb("use {a}")])


@pytest.mark.parametrize(
    ("pattern", "more", "message"),
    [
        ("{number:int}", {}, "gives no name of a tool; set tool"),
        ("go {where}", {"tool": "my tool!"}, "'my tool!' is no name of a tool; use letters"),
        ("get {amount:integer}", {}, "{amount:integer} is no hole; write {name}"),
        ("get {}", {}, "{} is no hole"),
        ("get {the item}", {}, "{the item} is no hole"),
        ("swap {item} for {item}", {}, "the hole item is there twice"),
        ("get {item}", {"about": {"thing": "What."}}, "`about` describes thing, which is no hole"),
    ],
)
def test_a_verb_that_gives_no_tool_says_why(pattern, more, message):
    with pytest.raises(ValueError, match=re.escape(f"the verb {pattern!r}: {message}")):
        Verb(pattern, **more)


def test_braces_that_are_no_hole_are_part_of_the_action():
    verb = Verb('send({"to": {who:quoted}})', tool="send").spec
    assert verb.action({"who": "me"}) == """send({"to": 'me'})"""


def test_a_world_without_verbs_has_one_tool_that_takes_an_action():
    assert worlds.Guess().tool_specs() == [ACT] and ACT.action({"action": "5"}) == "5"


@pytest.mark.parametrize("name", ["textcraft", "babyai", "search"])
def test_every_action_of_an_expert_is_a_call_that_gives_the_same_action(name):
    made = env_class(full_id(name))()
    tools, seen = made.tool_specs(), set()
    assert tools != [ACT]
    for task in made.tasks.split("train")[:: len(made.tasks.split("train")) // 20]:
        made.reset(seed=1, options={"task": task})
        for action in made.available_actions() or ():
            if action not in ("", "noop"):
                found = call_of(tools, action)
                assert found is not None, action
                assert found[0].action(found[1]) == action
        for _ in range(40):
            action = made.expert_action()
            if action is None:
                break
            found = call_of(tools, action)
            assert found is not None and found[0].action(found[1]) == action, action
            seen.add(found[0].name)
            if made.step(action)[2]:
                break
    assert len(seen) > 1


class Safe(ToolEnv):
    """A safe with a dial."""

    instruction = "Open the safe."
    tasks = TaskSet({"train": ["17", "42"]})

    def _reset(self, task: str) -> str:
        self.tried: list[int] = []
        return "The safe has a dial from 0 to 99."

    @tool
    def turn(self, number: Annotated[int, Meta(ge=0, le=99)], how: str = "slowly") -> ToolResult:
        """Turn the dial to a number."""
        self.tried.append(number)
        opened = str(number) == self.task
        return ("It opens." if opened else f"Nothing, {how}."), float(opened), opened

    @tool
    def look(self, at: Literal["dial", "door"]) -> str:
        """Look at a part."""
        return f"The {at} is grey."


def call(name, **arguments):
    (found,) = [spec for spec in Safe().tool_specs() if spec.name == name]
    return found.action(arguments)


def test_methods_are_tools_with_the_schema_of_their_signature():
    look, turn = Safe().tool_specs()
    assert (look.name, turn.name) == ("look", "turn")
    assert turn.description == "Turn the dial to a number."
    assert turn.parameters["required"] == ["number"]
    assert turn.parameters["properties"]["number"] == {
        "type": "integer", "minimum": 0, "maximum": 99,
    }  # fmt: skip
    assert look.parameters["properties"]["at"]["enum"] == ["dial", "door"]


def test_calls_are_carried_out_and_wrong_ones_answered():
    env = Safe()
    env.reset(seed=0, options={"task": "42"})
    assert env.step(call("turn", number=5))[0] == "Nothing, slowly."
    assert env.step(call("turn", number=5, how="fast"))[0] == "Nothing, fast."
    for action, answer in (
        ("open it", "Call one of the tools: look, turn. The form is"),
        ('{"name": "kick"}', "There is no tool 'kick'; call one of look, turn."),
        (call("turn", number=500), "The arguments of turn are invalid"),
        (call("turn", number="5"), "The arguments of turn are invalid"),
        ('{"name": "turn", "arguments": {"number": 5, "x": 1}}', "The arguments of turn are inv"),
        ('{"name": "_reset", "arguments": {"task": "1"}}', "There is no tool '_reset'"),
    ):
        observation, reward, ended, _, info = env.step(action)
        assert observation.startswith(answer) and (reward, ended) == (0.0, False)
        assert info["invalid_action"] is True
    observation, reward, ended, _, info = env.step(call("turn", number=42))
    assert (observation, reward, ended) == ("It opens.", 1.0, True)
    assert info["success"] and info["invalid_action"] is False
    assert env.tried == [5, 5, 42]


def test_a_method_that_cannot_be_a_tool_is_reported_when_the_class_is_made():
    with pytest.raises(TypeError, match="argument number of the tool turn has no type"):

        class Untyped(ToolEnv):
            @tool
            def turn(self, number):
                return ""

    with pytest.raises(TypeError, match="tool turn must be a plain method"):

        class Later(ToolEnv):
            @tool
            async def turn(self, number: int) -> str:
                return ""

    with pytest.raises(TypeError, match=r"turn have no JSON schema: .*object.*; use str, int"):

        class Shapeless(ToolEnv):
            @tool
            def turn(self, number: object) -> str:
                return ""

    with pytest.raises(TypeError, match="tool turn returns None; return an observation"):

        class Silent(ToolEnv):
            @tool
            def turn(self, number: int) -> None:
                pass

    with pytest.raises(TypeError, match="tool turn is no method"):

        class Selfless(ToolEnv):
            @tool
            def turn() -> str:
                return ""

    for static in (lambda f: tool(staticmethod(f)), lambda f: staticmethod(tool(f))):

        def turn(number: int) -> str:
            return ""

        with pytest.raises(TypeError, match="tool turn is no method"):
            type("Static", (ToolEnv,), {"turn": static(turn)})

    with pytest.raises(TypeError, match=r"\*numbers; name its arguments"):

        class Many(ToolEnv):
            @tool
            def turn(self, *numbers: int):
                return ""


def test_a_server_describes_the_tools(make_host):
    card = make_host(Safe, env_id="x/Safe-v0").table.card()
    assert [spec.name for spec in card.tools] == ["look", "turn"]
    assert issubclass(Safe, TextEnv)
