"""How policies are named on a command line."""

from __future__ import annotations

import pytest

from agentgym_env.errors import BadRequest
from agentgym_train.rollout.policy_spec import PolicyName, parse_labelled, parse_policy
from tests.train.small import save_tiny_policy


def test_every_form_is_read_and_written_back():
    served = PolicyName("vllm", "", "http://h:8000")
    endpoint = PolicyName("openai", "org/model@v2", "http://h:1/v1")
    assert parse_policy("expert") == PolicyName("expert")
    assert parse_policy("random") == PolicyName("random")
    assert parse_policy("some/model") == parse_policy("hf:some/model")
    assert parse_policy("vllm:http://h:8000") == served
    assert parse_policy("vllm:a/b@http://h:8000") == PolicyName("vllm", "a/b", "http://h:8000")
    assert parse_policy("openai:org/model@v2@http://h:1/v1") == endpoint
    for text in ("expert", "hf:some/model", "vllm:http://h:8000", "openai:a@b@https://h/v1"):
        assert str(parse_policy(text)) == text
    assert [parse_policy(t).samples_tokens for t in ("expert", "random", "hf:m")] == [False] * 2 + [
        True
    ]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("openai:", "openai:MODEL@URL"),
        ("openai:model", "openai:MODEL@URL"),
        ("openai:@http://h", "openai:MODEL@URL"),
        ("openai:m@ftp://h", "openai:MODEL@URL"),
        ("vllm:8000", "vllm:URL"),
        ("vllm:@http://h", "vllm:URL"),
        ("hf:", "hf:PATH_OR_ID"),
        ("gpt:4", "unknown policy 'gpt:4'; choose from expert, random, hf:PATH_OR_ID, vllm:URL"),
        ("expert:hard", "has no arguments"),
        ("runs/mine/model", "no model in runs/mine/model"),
        ("hf:./here", "no model in ./here"),
        (" =random", "empty label"),
    ],
)
def test_a_wrong_name_is_answered_by_the_form_that_was_meant(wrong, told):
    with pytest.raises(BadRequest) as raised:
        parse_labelled(wrong)
    assert told in str(raised.value)


def test_a_label_stands_before_an_equals_sign_unless_it_is_a_folders_own(tmp_path, monkeypatch):
    assert parse_labelled("before=some/model") == ("before", PolicyName("hf", "some/model"))
    assert parse_labelled("random") == ("random", PolicyName("random"))
    address = "openai:m@http://h/v1?key=2"
    assert parse_labelled(address) == (address, PolicyName("openai", "m", "http://h/v1?key=2"))
    save_tiny_policy(tmp_path / "lr=0.1")
    monkeypatch.chdir(tmp_path)
    assert parse_labelled("lr=0.1") == ("lr=0.1", PolicyName("hf", "lr=0.1"))
