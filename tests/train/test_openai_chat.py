"""Chat endpoints: a real HTTP server that fails in every way, and what is made of it."""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from agentgym_env.errors import BadRequest
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import EngineLost
from agentgym_train.engines.openai import ChatEndpoint, ContextFull, EndpointSettings, Usage
from agentgym_train.rollout.chat_actors import chat_actors
from agentgym_train.rollout.episode import EpisodeSpec
from commands import agentgym
from tests.train.inprocess import rollouts
from waiting import turned

KEY = "sk-very-secret"
USER = [{"role": "user", "content": "hello"}]


def good(text="5", prompt=10, completion=2):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"message": message}], "usage": usage})


class Endpoint:
    """Answers with `script`, one after another, and then for ever with the last."""

    def __init__(self, *script):
        self.script = list(script)
        self.asked, self.headers, self.at = [], [], []
        self.under_way = self.most = 0

    async def handle(self, request):
        self.at.append(time.monotonic())
        self.headers.append(request.headers)
        self.asked.append(await request.json())
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            found = answer(self.asked[-1])
            return await found if asyncio.iscoroutine(found) else found
        finally:
            self.under_way -= 1


@asynccontextmanager
async def serving(endpoint):
    """The address of a running server."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(endpoint, **settings):
    """A client of a running server."""
    async with serving(endpoint) as url:
        made = ChatEndpoint(
            EndpointSettings("m", url, KEY, **{"pause_s": 0.01, "timeout_s": 120.0, **settings})
        )
        try:
            yield made
        finally:
            await made.close()


async def say(made, **more):
    return await made.respond(USER, **{"max_tokens": 7, "temperature": 0.5, **more})


async def test_a_request_has_the_messages_the_limits_and_the_key():
    endpoint = Endpoint(lambda _: good())
    async with client(endpoint, options={"top_p": 0.9}) as made:
        reply = await say(made)
    assert (reply.text, reply.total_tokens, reply.completion_tokens) == ("5", 12, 2)
    assert endpoint.asked == [
        {"model": "m", "messages": USER, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9}
    ]
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert made.usage == Usage(1, 0, 10, 2)
    assert not made.is_trainable


@pytest.mark.parametrize(
    "bad",
    [
        lambda _: web.Response(status=500),
        lambda _: web.Response(status=503, text="<html>busy</html>"),
        lambda _: web.Response(text="no JSON"),
        lambda _: web.json_response({"choices": []}),
        lambda _: web.json_response(["odd"]),
        lambda _: web.json_response({"choices": [{"message": {"content": 7}}]}),
    ],
    ids=["500", "503", "no JSON", "no choices", "a list", "a number"],
)
async def test_a_failure_or_an_answer_without_sense_is_asked_again(bad):
    endpoint = Endpoint(bad, bad, lambda _: good())
    async with client(endpoint) as made:
        assert (await say(made)).text == "5"
    assert (len(endpoint.asked), made.usage.requests, made.usage.retried) == (3, 1, 2)


async def test_retry_after_goes_before_our_own_pause(monkeypatch):
    # Our own pause takes half an hour at least, so that the test fails if it is taken.
    monkeypatch.setattr("agentgym_train.engines.openai._LONGEST_PAUSE_S", 3600.0)
    date = email.utils.formatdate(time.time() - 5, usegmt=True)  # over already
    endpoint = Endpoint(
        lambda _: web.Response(status=429, headers={"Retry-After": "0.4"}),
        lambda _: web.Response(status=429, headers={"Retry-After": date}),
        lambda _: good(),
    )
    async with client(endpoint, pause_s=3600.0) as made:
        assert (await say(made)).text == "5"
    first, second, _ = endpoint.at
    assert second - first >= 0.4


async def test_a_slow_answer_is_given_up_and_asked_for_again(leap_when):
    over = asyncio.Event()

    async def too_late(_):
        await over.wait()
        return good("too late")

    endpoint = Endpoint(too_late, lambda _: good())
    leap_when(lambda: endpoint.under_way, asyncio.get_running_loop())
    async with client(endpoint, timeout_s=60.0) as made:
        assert (await say(made)).text == "5"
        over.set()


async def test_what_stays_broken_is_an_engine_that_is_lost():
    endpoint = Endpoint(lambda _: web.Response(status=502))
    async with client(endpoint, retries=2) as made:
        with pytest.raises(EngineLost, match="failed 3 times, the last with: status 502"):
            await say(made)
    assert len(endpoint.asked) == 3
    nobody = ChatEndpoint(EndpointSettings("m", "http://127.0.0.1:9/v1", retries=0))
    with pytest.raises(EngineLost, match="failed 1 times"):
        await say(nobody)
    await nobody.close()


async def test_a_refusal_is_not_asked_again_and_never_repeats_the_key():
    endpoint = Endpoint(lambda _: web.Response(status=401, text=f"bad key {KEY}"))
    async with client(endpoint) as made:
        with pytest.raises(BadRequest, match=r"status 401: bad key \*\*\*") as raised:
            await say(made)
        assert KEY not in repr(made.settings)
    assert len(endpoint.asked) == 1 and KEY not in str(raised.value)


async def test_a_redirect_does_not_take_the_key_elsewhere():
    endpoint = Endpoint(lambda _: web.Response(status=307, headers={"Location": "http://x/"}))
    async with client(endpoint) as made:
        with pytest.raises(BadRequest, match="status 307"):
            await say(made)


async def test_no_more_requests_are_under_way_than_are_allowed():
    gate = asyncio.Event()

    async def slow(_):
        await gate.wait()
        return good()

    endpoint = Endpoint(slow)
    async with client(endpoint, concurrency=3) as made:
        asked = [asyncio.create_task(say(made)) for _ in range(9)]
        await turned(lambda: endpoint.under_way >= 3)
        gate.set()
        await asyncio.gather(*asked)
    assert endpoint.most == 3 and made.usage.requests == 9


async def test_a_conversation_that_is_too_long_is_told_apart():
    full = {"error": {"code": "context_length_exceeded"}}
    endpoint = Endpoint(lambda _: web.json_response(full, status=400))
    async with client(endpoint) as made:
        with pytest.raises(ContextFull):
            await say(made)


async def play(host, endpoint, agent="plain", horizon=5, max_tokens=1000, **settings):
    async with client(endpoint, **settings) as made:
        config = PolicyConfig(
            instruction="Guess.", agent=agent, turn_max_tokens=16, max_tokens=max_tokens,
            temperature=0.0,
        )  # fmt: skip
        actors = chat_actors(made, config)
        (trajectory,) = await rollouts(host, actors).collect([EpisodeSpec("5", 0)], horizon)
    return trajectory


async def test_an_endpoint_plays_episodes_and_has_no_tokens(make_host):
    endpoint = Endpoint(lambda _: good("1"), lambda _: good(" 5 "))
    trajectory = await play(make_host(), endpoint)
    assert (trajectory.outcome, trajectory.policy, trajectory.rows) == ("success", "openai:m", [])
    assert [t.action for t in trajectory.turns] == ["1", "5"]
    roles = [message["role"] for message in endpoint.asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert endpoint.asked[1]["messages"][-1]["content"] == "'1' is wrong."


async def test_an_endpoint_is_led_by_the_same_agents(make_host):
    endpoint = Endpoint(lambda _: good("1"))
    trajectory = await play(make_host(), endpoint, agent="window:2", horizon=4)
    assert [len(asked["messages"]) for asked in endpoint.asked] == [2, 4, 4, 4]
    assert "1 earlier turn is left out" in endpoint.asked[2]["messages"][1]["content"]
    assert trajectory.outcome == "horizon"


async def test_an_episode_ends_at_its_tokens_or_the_endpoints(make_host):
    full = {"error": {"message": "This model's maximum context length is 9 tokens."}}
    for endpoint in (
        Endpoint(lambda _: good("1", prompt=980, completion=20)),
        Endpoint(lambda _: good("1"), lambda _: web.json_response(full, status=400)),
    ):
        trajectory = await play(make_host(), endpoint)
        assert (trajectory.outcome, len(trajectory.turns)) == ("token_budget", 1)


async def test_an_endpoint_that_is_gone_loses_the_episode(make_host):
    endpoint = Endpoint(lambda _: web.Response(status=500))
    trajectory = await play(make_host(), endpoint, retries=1)
    assert trajectory.outcome == "engine_lost" and "status 500" in trajectory.error


def test_an_endpoint_has_a_web_address_and_a_key_never_goes_in_the_clear():
    with pytest.raises(BadRequest, match="looks like https"):
        EndpointSettings("m", "ftp://h")
    with pytest.raises(BadRequest, match="in the clear") as raised:
        EndpointSettings("m", "http://example.org/v1", KEY)
    assert KEY not in str(raised.value)


@contextmanager
def served(endpoint):
    """The address of an endpoint that a thread serves."""
    ready, done, found = threading.Event(), threading.Event(), []

    async def serve_until_done():
        async with serving(endpoint) as url:
            found.append(url)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve_until_done()))
    thread.start()
    try:
        assert ready.wait(120)
        yield found[0]
    finally:
        done.set()
        thread.join()


EVAL = ["eval", "--env", "textcraft", "--limit", "2", "--horizon", "2", "--policy"]


@pytest.mark.usefixtures("textcraft_server")
def test_the_command_evaluates_an_endpoint_and_shows_what_it_used_but_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint, file = Endpoint(lambda _: good("inventory")), tmp_path / "report.json"
    with served(endpoint) as url:
        ended = agentgym(*EVAL, f"openai:m@{url}", "--json", str(file), folder=tmp_path)
    assert ended.status == 0, ended.text
    (report,) = json.loads(file.read_text())["reports"].values()
    assert report["policy"] == "openai:m" and report["episodes"] == 2 and report["lost"] == 0
    assert report["usage"] == {"requests": 4, "prompt_tokens": 40, "completion_tokens": 8}
    assert report["tokens"] == 4.0
    assert "40 prompt_tokens" in ended.text
    assert KEY not in ended.text
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert KEY.encode() not in file.read_bytes(), f"the key is in {file}"
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.usefixtures("textcraft_server")
def test_a_wrong_key_is_one_clear_line(tmp_path):
    with served(Endpoint(lambda _: web.Response(status=401))) as url:
        ended = agentgym(*EVAL, f"openai:m@{url}", folder=tmp_path)
    assert ended.status == 2
    assert ended.err.startswith("error: ") and "status 401" in ended.err
    assert "Traceback" not in ended.err


async def test_a_pause_that_is_asked_of_one_request_is_kept_by_all():
    endpoint = Endpoint(
        lambda _: web.Response(status=429, headers={"Retry-After": "0.5"}), lambda _: good()
    )
    async with client(endpoint, concurrency=8) as made:
        first = asyncio.ensure_future(say(made))
        await turned(lambda: made.usage.retried)
        await asyncio.gather(first, *(say(made) for _ in range(6)))
    assert len(endpoint.at) == 8
    assert min(endpoint.at[1:]) - endpoint.at[0] >= 0.5


async def test_requests_are_spaced_evenly_below_their_limit():
    endpoint = Endpoint(lambda _: good())
    async with client(endpoint, requests_per_minute=1200) as made:
        began = time.monotonic()
        await asyncio.gather(*(say(made) for _ in range(11)))
    # From the beginning, not from the first: that may come late.
    after = [at - began for at in sorted(endpoint.at)]
    assert all(seconds >= n * 0.05 * 0.9 for n, seconds in enumerate(after))


async def test_tokens_are_counted_by_what_the_endpoint_says_in_the_end():
    endpoint = Endpoint(lambda _: good(prompt=90, completion=10))
    async with client(endpoint, tokens_per_minute=60_000, concurrency=1) as made:
        began = time.monotonic()
        for _ in range(6):
            await made.respond(USER, max_tokens=8_000_000, temperature=1.0)
    # 100 tokens are a tenth of a second; what might have been used would be two hours.
    assert endpoint.at[-1] - began >= 5 * 0.1 * 0.9
