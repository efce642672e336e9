"""An action is found in a policy's text, or the policy is told why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_env.actions import FORMATS, ActionError, action_format
from agentgym_env.errors import BadRequest


@given(st.text())
def test_plain_takes_any_text(text):
    assert action_format("plain").parse(text) == text.strip()


@given(
    st.text(alphabet=st.characters(blacklist_categories=["Cs"])).filter(
        lambda t: "Action:" not in t
    )
)
def test_react_gives_back_what_was_rendered(action):
    react = action_format("react")
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
