"""A vLLM server as anyone starts it, without its development mode, plays by what it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest
import requests
from transformers import AutoTokenizer

from agentgym_env.errors import BadRequest
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.vllm.served import served_engine, served_model
from agentgym_train.models.loading import load_policy
from tests.train.small import textcraft_tokenizer
from tests.train.vllm_engines import WARM, hf_engine, ids, turns, worst_logprob
from waiting import until

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; `make setup-vllm`", allow_module_level=True)

pytestmark = pytest.mark.vllm

LENGTH = 512
KEY = "a key of the test's own"
PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [20]]


@pytest.fixture(scope="module")
def address():
    """A server started by vLLM's own command, with a key."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_SERVER_DEV_MODE"}
    server = subprocess.Popen(
        [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(WARM),
            "--served-model-name", "warm", "--host", "127.0.0.1", "--port", str(port),
            "--max-model-len", str(LENGTH), "--enforce-eager", "--dtype", "float32",
            "--kv-cache-memory-bytes", str(2**28), "--api-key", KEY,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"

    def answers():
        with suppress(requests.RequestException):
            return requests.get(f"{address}/health", timeout=5).ok

    try:
        until(answers, "the server does not begin", server)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_it_says_what_it_serves(address):
    known = served_model(f"{address}/v1/", api_key=KEY)
    assert (known.name, known.source, known.max_model_len) == ("warm", str(WARM), LENGTH)


def test_it_plays_by_what_it_serves_and_by_nothing_else(address):
    model, _ = load_policy(str(WARM))
    tokenizer = AutoTokenizer.from_pretrained(served_model(address, api_key=KEY).source)
    assert requests.get(f"{address}/server_info", timeout=5).status_code == 404, "no such mode"
    engine = served_engine(address, tokenizer, max_tokens=LENGTH, api_key=KEY)

    async def play():
        try:
            greedy = await turns(engine, PROMPTS)
            with pytest.raises(BadRequest, match="cannot update its servers' weights"):
                await engine.update_weights(model, 1)
            drawn = await turns(engine, PROMPTS, 1.0)
            stop = drawn[0].token_ids[3]
            cut = await engine.generate(PROMPTS[0], Sampling(16, 1.0, (stop,), seed=0))
            return greedy, drawn, cut
        finally:
            await engine.close()

    async def by_transformers():
        ours = hf_engine(model)
        try:
            return await turns(ours, PROMPTS)
        finally:
            await ours.close()

    greedy, drawn, cut = asyncio.run(play())
    assert ids(greedy) == ids(asyncio.run(by_transformers()))
    assert worst_logprob(model, PROMPTS, greedy) < 1e-4
    assert worst_logprob(model, PROMPTS, drawn) < 1e-4
    first = drawn[0].token_ids
    assert cut.token_ids == first[: first.index(cut.token_ids[-1]) + 1]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"api_key": "another"}, "rejects the API key: .*401.*--api-key"),
        ({"api_key": None}, "rejects the API key: .*401.*--api-key"),
        ({"model": "cold"}, "does not serve the model 'cold'; choose from warm"),
        ({"max_tokens": LENGTH + 1}, f"{LENGTH} tokens, but max_tokens is {LENGTH + 1}"),
        ({"tokenizer": textcraft_tokenizer()}, f"another tokenizer .*'{WARM}'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_played(address, changes, said):
    fitting = {"tokenizer": AutoTokenizer.from_pretrained(WARM), "max_tokens": 64, "api_key": KEY}
    with pytest.raises(BadRequest, match=said):
        served_engine(address, **{**fitting, **changes})
