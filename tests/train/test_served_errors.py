"""What is said of a vLLM server's address that leads nowhere, or to something else."""

from __future__ import annotations

import socket

import pytest

from agentgym_env.errors import BadRequest
from agentgym_train.engines.vllm_server import served_engine, served_model
from tests.train.small import textcraft_tokenizer


def unused_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_when_nobody_answers_it_says_how_to_start_one():
    address = unused_address()
    with pytest.raises(BadRequest, match=rf"no vLLM server responds: {address}.*vllm serve MODEL"):
        served_model(address)


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
