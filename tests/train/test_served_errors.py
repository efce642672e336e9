"""What is said of a vLLM server's address that leads nowhere, or to something else."""

from __future__ import annotations

import pytest

from agentgym_env.errors import BadRequest
from agentgym_train.engines.vllm.served import served_engine, served_model
from hosting import nobody
from tests.train.small import textcraft_tokenizer


def test_when_nobody_answers_it_says_how_to_start_one():
    with nobody() as place:
        said = f"no vLLM server responds: http://{place}.*vllm serve MODEL"
        with pytest.raises(BadRequest, match=said):
            served_model(f"http://{place}")


def test_another_kind_of_server_is_named_as_such(serve):
    address = serve().address  # a server of environments
    with pytest.raises(BadRequest, match=f"{address} is not a vLLM server, .*openai:MODEL@URL"):
        served_engine(address, textcraft_tokenizer(), max_tokens=64)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(BadRequest, match=r"looks like http://host:8000, got"):
        served_model(url)


def test_a_key_does_not_go_out_in_the_clear():
    with pytest.raises(BadRequest, match=r"to somewhere\.example in the clear"):
        served_model("http://somewhere.example:8000", api_key="secret")
