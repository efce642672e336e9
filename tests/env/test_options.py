"""Values of command-line options."""

import pytest

from agentgym_env.cli.options import json_object
from agentgym_env.errors import BadRequest


def test_an_object_is_read():
    assert json_object("--env-kwargs", '{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "--env-kwargs is not valid JSON"), ("[1]", "--env-kwargs must be a JSON object")],
)
def test_what_is_no_object_is_refused_by_the_options_name(text, message):
    with pytest.raises(BadRequest, match=message):
        json_object("--env-kwargs", text)
