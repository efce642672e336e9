"""An action is found in a policy's text, or the policy is told why not."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentgym_env.actions import FORMATS, UNFINISHED, ActionError, action_format
from agentgym_env.errors import BadRequest
from agentgym_env.reasoning import MARKS, reply_of


@given(st.text())
def test_plain_takes_any_text_that_does_not_reason(text):
    reply = reply_of(text)
    assert action_format("plain").parse(text) == (UNFINISHED if reply is None else reply.strip())
    assert reply == text or any(mark in text for marks in (*MARKS, ("<|",)) for mark in marks)


@given(
    st.text(alphabet=st.characters(blacklist_categories=["Cs"])).filter(
        lambda t: "Action:" not in t
    )
)
def test_react_gives_back_what_was_rendered(action):
    react = action_format("react")
    assume(not any(mark in action for marks in MARKS for mark in marks))
    assert react.parse(react.render(action, "why not")) == action.strip()


@given(st.text())
def test_no_text_makes_react_raise(text):
    assert isinstance(action_format("react").parse(text), str | ActionError)


def test_react_keeps_hyphens_apostrophes_and_lines():
    text = "Thought: hm\nAction: put jack-o'-lantern\non the table"
    assert action_format("react").parse(text) == "put jack-o'-lantern\non the table"


def test_react_refuses_none_and_two():
    react = action_format("react")
    assert "no action" in react.parse("get 1 bone").message
    assert "2 actions" in react.parse("Action: a\nObservation: b\nAction: c").message


def test_a_thought_may_mention_the_word_within_a_line():
    assert action_format("react").parse("Thought: my Action: is clear\nAction: go") == "go"


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(BadRequest, match=", ".join(FORMATS)):
        action_format("yaml")


THOUGHTS = (
    "<think>\nPlan:\nAction: go north\n</think>\n",
    "Plan:\nAction: go north\n</think>\n",
    "<think>a</think>\n<think>\nAction: go north\n</think>",
    "[THINK]\nAction: go north\n[/THINK]",
    "<seed:think>\nAction: go north</seed:think>",
    "<|START_THINKING|>\nAction: go north<|END_THINKING|>",
    "<|channel>thought\nAction: go north\n<channel|>",
    "<|channel|>analysis<|message|>\nAction: go north\n<|end|><|start|>assistant<|channel|>final"
    "<|message|>",
    "<|channel|>commentary<|message|>Now.<|end|><|start|>assistant<|channel|>final<|message|>",
    " to=self<|message|>\nAction: go north<|eom|><|start|>assistant to=user<|message|>",
    '<think>\nI say "go"</think>',
    'It says "go"</think>\n',
)
"""Reasoning as models mark it, up to the reply."""


@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("form", ["plain", "react", "act"])
def test_reasoning_is_not_read(thought, form):
    chosen = action_format(form)
    assert chosen.parse(thought + chosen.render("get 2 bamboo", "why not")) == "get 2 bamboo"


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nI could write\nAction: go north",
        "<think>a</think>\n<think>\nAction: go north",
        "<|channel|>analysis<|message|>\nAction: go north",
        "<|channel|>ana",
        " to=self<|message|>\nAction: go north",
        "[THINK]Action: go north",
    ],
)
def test_a_turn_that_ends_inside_its_reasoning_has_no_action(text):
    for form in ("plain", "react", "act"):
        found = action_format(form).parse(text)
        assert isinstance(found, ActionError) and "inside its reasoning" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think>\nAction: go\n<think>\nAction: stay\n</think>",
        "Action: go\n<think>\nAction: stay",
        "{maybe} Action: stay</think>\nAction: go",
        "<think>a</think>\nAction: stay\n</think>\nAction: go",
        "<think>a<think>b</think>\nAction: stay</think>\nAction: go",
        "<think>I use `ls`</think>\nAction: go",
        "<tool_call>\nAction: stay</think>\nAction: go",
    ],
)
def test_only_what_is_outside_of_blocks_is_read(text):
    assert action_format("react").parse(text) == "go"


@pytest.mark.parametrize(
    "text",
    [
        'fill("12", "<think>")',
        'fill("12", "</think>")',
        'I call <tool_call>{"name": "a", "arguments": {"x": "b</think>c"}}</tool_call>',
        '{"name": "a", "parameters": {"x": "b</think>c <think>"}}',
        "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value></think></arg_value></tool_call>",
        "a > b",
        "{",
        "to=5",
    ],
)
def test_marks_in_quotation_marks_and_calls_are_text(text):
    assert action_format("plain").parse(text) == text


def test_a_long_text_of_marks_is_read_in_a_moment():
    for piece in (
        "<think></think>",
        "<think>",
        "</think>",
        "<tool_call>",
        "<|channel|>",
        '"<think>',
    ):
        began = time.process_time()
        reply_of("</think>" + piece * 20_000)
        reply_of(piece * 20_000)
        assert time.process_time() - began < 5, piece
