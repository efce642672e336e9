"""The gateway over HTTP: real clients, retries, budgets, lost engines and environments."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from contextlib import asynccontextmanager, suppress

import aiohttp
import openai
import pytest

import worlds
from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.transports import AsyncInProcessTransport
from agentgym_env.errors import ConfigError, EnvironmentLost
from agentgym_gateway.server import Gateway
from agentgym_gateway.settings import GatewaySettings
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import EngineLost, ScriptedEngine
from agentgym_train.rollout.chat import Chat
from tests.train.templates import real_tokenizer
from waiting import LIMIT_S, turned

TOKENIZER = real_tokenizer("qwen2_5")
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>'


class Says(ScriptedEngine):
    """Says the next of its texts, whoever asks; an exception is raised."""

    def __init__(self, *texts, tokenizer=TOKENIZER):
        self.texts = list(texts)
        self.prompts: list[list[int]] = []
        self.release: asyncio.Event | None = None
        self._chat = Chat(tokenizer, keep_reasoning=True)
        super().__init__(self._next)

    def _next(self, prompt, turn):
        self.prompts.append(list(prompt))
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        return self._chat.response_ids(text)

    async def generate(self, prompt_ids, sampling, conversation=None):
        if self.release is not None:
            await self.release.wait()
        return await super().generate(prompt_ids, sampling, conversation)


@asynccontextmanager
async def gateway_of(engine, limits=None, tokenizer=TOKENIZER, **config):
    settings = {"model": "m", "turn_max_tokens": 200, "max_tokens": 2000, **config}
    gateway = Gateway(engine, tokenizer, PolicyConfig(**settings), model="policy", settings=limits)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()


def client_of(gateway, episode, **options):
    options = {"max_retries": 0, **options}
    return openai.AsyncOpenAI(base_url=gateway.base_url, api_key=episode.key, **options)


async def chat(client, messages, **options):
    return await client.chat.completions.create(model="policy", messages=messages, **options)


def user(text):
    return {"role": "user", "content": text}


async def test_the_openai_client_chats_and_its_calls_are_one_row():
    engine = Says("one", "two")
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode(seed=3)
        async with client_of(gateway, episode) as client:
            first = await chat(client, [user("Begin.")])
            assert first.choices[0].message.content == "one"
            assert first.choices[0].finish_reason == "stop"
            usage = first.usage
            assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
            await chat(client, [user("Begin."), first.choices[0].message, user("go")])
            assert [model.id async for model in client.models.list()] == ["policy"]
        finished = await gateway.close_episode(episode)
    (row,) = finished.rows
    assert [turn.response for turn in finished.turns] == ["one", "two"]
    assert TOKENIZER.decode(row.prompt_ids + row.completion_ids).count("<|im_start|>user") == 2
    assert engine.prompts[1] == (row.prompt_ids + row.completion_ids)[: len(engine.prompts[1])]
    assert not engine.live, "the engine has forgotten the episode"


async def test_tool_calls_and_streams_are_those_of_openai():
    async with gateway_of(Says(f"I add. {CALL}", "done", CALL, "words")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("Begin.")], tools=[ADD])).choices[0]
            (call,) = reply.message.tool_calls
            assert (reply.finish_reason, reply.message.content) == ("tool_calls", "I add.")
            assert (call.function.name, json.loads(call.function.arguments)) == (
                "add",
                {"number": 3},
            )
            result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
            messages = [user("Begin."), reply.message.model_dump(), result]
            assert (await chat(client, messages, tools=[ADD])).choices[0].message.content == "done"
            stream = await chat(
                client, [user("Anew.")], tools=[ADD], stream=True,
                stream_options={"include_usage": True},
            )  # fmt: skip
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage.completion_tokens > 0
            calls = [
                c
                for chunk in chunks
                if chunk.choices
                for c in chunk.choices[0].delta.tool_calls or ()
            ]
            assert calls[0].function.name == "add"
            async with client.chat.completions.stream(
                model="policy", messages=[user("More.")]
            ) as events:
                final = await events.get_final_completion()
            assert final.choices[0].message.content == "words"
        finished = await gateway.close_episode(episode)
    assert [len(row.turn_ends) for row in finished.rows] == [2, 1, 1]


async def test_a_call_of_a_tool_that_is_not_there_stays_text():
    async with gateway_of(Says(CALL.replace("add", "multiply"))) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("Begin.")], tools=[ADD])).choices[0]
        assert reply.message.tool_calls is None and "multiply" in reply.message.content


async def test_the_responses_api_goes_on_from_an_earlier_response():
    schema = {"type": "function", **ADD["function"]}
    async with gateway_of(Says(CALL, "It is 3.", "streamed")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            first = await client.responses.create(
                model="policy", input="Add 3.", instructions="Be brief.", tools=[schema]
            )
            (call,) = first.output
            assert (call.type, call.name, json.loads(call.arguments)) == (
                "function_call", "add", {"number": 3},
            )  # fmt: skip
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            second = await client.responses.create(
                model="policy", previous_response_id=first.id, input=[output], tools=[schema],
                instructions="Be brief.",
            )  # fmt: skip
            assert second.output_text == "It is 3."
            async with client.responses.stream(model="policy", input="Speak.") as stream:
                async for event in stream:
                    if event.type == "response.completed":
                        assert event.response.output_text == "streamed"
            with pytest.raises(openai.BadRequestError, match="none of this episode's"):
                await client.responses.create(
                    model="policy", previous_response_id="resp_x", input="x"
                )
        finished = await gateway.close_episode(episode)
    assert [len(row.turn_ends) for row in finished.rows] == [2, 1]


def test_the_synchronous_client_and_another_one_work():
    """The plain `openai.OpenAI` in a thread, and requests, which knows nothing about models."""
    import requests

    async def play():
        async with gateway_of(Says("one", "two")) as gateway:
            episode = gateway.open_episode(observation="Begin.", instruction="Play.")
            key = {"Authorization": f"Bearer {episode.key}"}

            def both():
                with openai.OpenAI(base_url=gateway.base_url, api_key=episode.key) as client:
                    made = client.chat.completions.create(model="x", messages=[user("Begin.")])
                body = {"model": "x", "messages": [user("Anew.")]}
                url = f"{gateway.base_url}/chat/completions"
                other = requests.post(url, json=body, headers=key, timeout=120).json()
                seen = requests.get(f"{gateway.base_url}/episode", headers=key, timeout=120).json()
                return made.choices[0].message.content, other, seen

            return await asyncio.to_thread(both)

    one, other, seen = asyncio.run(play())
    assert (one, other["choices"][0]["message"]["content"]) == ("one", "two")
    assert (seen["observation"], seen["instruction"], seen["calls"]) == ("Begin.", "Play.", 2)


async def post(gateway, key, path, body, headers=None):
    async with aiohttp.ClientSession() as http:
        url = f"{gateway.base_url}{path}"
        given = {"Authorization": f"Bearer {key}", **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with http.post(url, data=data, headers=given) as response:
            return response.status, await response.json()


async def connections_become(gateway, count):
    """As the gateway sees them."""

    def there():
        found = [one.transport for one in gateway._listener._runner.server.connections]
        return [transport for transport in found if transport and not transport.is_closing()]

    await turned(lambda: len(there()) == count)


async def test_a_wrong_base_url_gets_an_error_with_the_right_one():
    async with gateway_of(Says("x")) as gateway:
        episode = gateway.open_episode()
        status, body = await post(gateway, episode.key, "/v1/chat/completions", {"messages": []})
        assert status == 404 and body["error"]["code"] == "not_found"
        assert "no POST /v1/v1/chat/completions" in body["error"]["message"]
        assert body["error"]["message"].endswith(f"its base URL is {gateway.base_url}")
        with pytest.raises(openai.NotFoundError, match="has no POST /chat/completions"):
            root = gateway.base_url.removesuffix("/v1")
            async with openai.AsyncOpenAI(base_url=root, api_key=episode.key) as client:
                await client.chat.completions.create(model="x", messages=[user("Begin.")])
        await gateway.close_episode(episode)


async def test_a_retry_gets_the_reply_that_was_sampled_and_nothing_counts_twice():
    engine = Says("one", "two")
    body = {"model": "x", "messages": [user("Begin.")]}
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        first = await post(gateway, episode.key, "/chat/completions", body)
        again = await post(
            gateway, episode.key, "/chat/completions", body, {"x-stainless-retry-count": "1"}
        )
        assert first[1]["choices"] == again[1]["choices"]
        keyed = [
            await post(gateway, episode.key, "/chat/completions", body, {"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        assert keyed[0][1]["choices"] == keyed[1][1]["choices"]
        finished = await gateway.close_episode(episode)
    assert finished.calls == 2 and len(engine.prompts) == 2


async def test_a_client_that_leaves_loses_its_call_and_its_retry_gets_the_reply():
    engine = Says("one", "two")
    engine.release = asyncio.Event()
    body = {"model": "x", "messages": [user("Begin.")]}
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        leaving = asyncio.create_task(post(gateway, episode.key, "/chat/completions", body))
        await turned(lambda: episode.running)
        (pending,) = episode.pending.values()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await connections_become(gateway, 0)
        before = pending.waiting
        retry = asyncio.create_task(
            post(gateway, episode.key, "/chat/completions", body, {"x-stainless-retry-count": "1"})
        )
        await turned(lambda: pending.waiting != before)
        engine.release.set()
        status, found = await retry
        assert (status, found["choices"][0]["message"]["content"]) == (200, "one")
        finished = await gateway.close_episode(episode)
    assert len(engine.prompts) == 1 and [t.response for t in finished.turns] == ["one"]


async def test_of_two_identical_requests_the_delivered_one_is_recorded():
    engine = Says("one", "two")
    engine.release = asyncio.Event()
    body = {"messages": [user("Begin.")]}
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        both, pending = [], []
        for _ in range(2):
            both.append(asyncio.create_task(post(gateway, episode.key, "/chat/completions", body)))
            await turned(lambda: len(episode.running) >= len(both))
            pending += episode.pending.values()
        both[0].cancel()
        await asyncio.gather(both[0], return_exceptions=True)
        await connections_become(gateway, 1)
        engine.release.set()
        _, found = await both[1]
        await turned(lambda: not (pending[0].waiting or episode.running))
        finished = await gateway.close_episode(episode)
    assert [t.response for t in finished.turns] == [found["choices"][0]["message"]["content"]]
    assert finished.calls == 1


async def test_a_delivered_reply_holds_its_prompt_no_longer():
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        await post(gateway, episode.key, "/chat/completions", {"messages": [user("Begin.")]})
        (pending,) = episode.pending.values()
        assert (await pending.task).sampled is None
        again = {"x-stainless-retry-count": "1"}
        body = {"messages": [user("Begin.")]}
        await post(gateway, episode.key, "/chat/completions", body, again)
        finished = await gateway.close_episode(episode)
    assert finished.calls == 1


async def test_a_text_that_cannot_fit_is_rejected_before_it_is_tokenized(monkeypatch):
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        monkeypatch.setattr(episode.recorder, "prepare", None)
        body = {"messages": [user("word " * 200_000)]}
        status, found = await post(gateway, episode.key, "/chat/completions", body)
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert "characters; the maximum context length is 2000 tokens" in found["error"]["message"]
        finished = await gateway.close_episode(episode)
    assert finished.outcome == "token_budget"


async def test_a_gateway_whose_start_is_cancelled_leaves_no_socket():
    for turns in range(12):
        gateway = Gateway(Says(), TOKENIZER, PolicyConfig(), model="policy")
        starting = asyncio.create_task(gateway.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await gateway.close()
        with pytest.raises(ConfigError, match="has no address"):
            _ = gateway.base_url
        with pytest.raises(EngineLost, match="closed"):
            await gateway.start()  # as an episode does that is about to be cancelled
    gc.collect()  # an unclosed socket is an error


async def test_the_address_file_ends_with_the_gateway_and_its_errors_are_settings(tmp_path):
    file = tmp_path / "address.json"
    async with gateway_of(
        Says("x"), GatewaySettings(host="::1", address_file=str(file))
    ) as gateway:
        assert gateway.base_url.startswith("http://[::1]:")
        assert json.loads(file.read_text())["base_url"] == gateway.base_url
        episode = gateway.open_episode()
        assert (await post(gateway, episode.key, "/chat/completions", {"messages": []}))[0] == 400
    assert not file.exists()
    with pytest.raises(ConfigError, match=r"gateway\.address_file"):
        async with gateway_of(Says("x"), GatewaySettings(address_file=str(tmp_path))):
            pass


async def test_a_restarted_engine_goes_on_where_it_was():
    engine = Says("one", EngineLost("gone"), EngineLost("gone"), "two")
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode, max_retries=4) as client:
            first = (await chat(client, [user("Begin.")])).choices[0].message
            second = await chat(client, [user("Begin."), first, user("go")])
            assert second.choices[0].message.content == "two"
        finished = await gateway.close_episode(episode)
    assert finished.engine_lost == "" and finished.calls == 2
    (row,) = finished.rows
    assert len(row.turn_ends) == 2


@asynccontextmanager
async def session_of(make_host):
    client = AsyncEnvClient(AsyncInProcessTransport(make_host(worlds.Guess)))
    session = await client.open()
    try:
        yield session, await session.reset(seed=0, task="5")
    finally:
        await session.close()
        await client.close()


async def test_steps_belong_to_the_call_before_them(make_host):
    async with session_of(make_host) as (session, start), gateway_of(Says("one", "two")) as gateway:
        episode = gateway.open_episode(
            session, observation=start.observation, info=start.info, horizon=9
        )

        async def step(action, **more):
            return await post(gateway, episode.key, "/episode/step", {"action": action, **more})

        assert (await step("1"))[1]["over"] is False
        body = {"model": "x", "messages": [user("Begin.")]}
        await post(gateway, episode.key, "/chat/completions", body)
        await step("2")
        again = [await step("3", turn=3) for _ in range(2)]
        assert again[0] == again[1], "a repeated turn is not taken twice"
        assert (await step("4", turn=9))[0] == 409
        await post(gateway, episode.key, "/chat/completions", {**body, "messages": [user("Anew.")]})
        _, found = await step("5")
        assert found["terminated"] and found["over"] and found["reward"] == 1.0
        assert (await step("6"))[0] == 409
        assert episode.over.is_set()
        finished = await gateway.close_episode(episode)
    first, second = finished.turns
    assert first.action == "1\n2\n3" and len(first.info["calls"]) == 3
    assert (second.action, second.reward) == ("5", 1.0)
    assert (finished.outcome, finished.success) == ("success", True)


async def test_a_posted_reward_ends_an_episode_without_an_environment():
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        await post(gateway, episode.key, "/chat/completions", {"messages": [user("Begin.")]})
        for wrong in ({}, {"reward": "much"}, {"reward": True}, {"reward": 1e300}):
            assert (await post(gateway, episode.key, "/episode/reward", wrong))[0] == 400
        assert (await post(gateway, episode.key, "/episode/reward", {"reward": 0.7}))[0] == 200
        assert (await post(gateway, episode.key, "/episode/reward", {"reward": 0.7}))[0] == 409
        finished = await gateway.close_episode(episode)
    assert (finished.outcome, finished.success, finished.turns[0].reward) == ("success", True, 0.7)


async def test_an_environment_that_is_lost_ends_the_episode_with_the_reason():
    class Gone:
        async def step(self, action):
            raise EnvironmentLost("the server is gone")

    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode(Gone())
        status, found = await post(gateway, episode.key, "/episode/step", {"action": "x"})
        assert (status, found["error"]["code"]) == (502, "environment_lost")
        finished = await gateway.close_episode(episode)
    assert finished.lost == "EnvironmentLost: the server is gone"


async def test_budgets_and_the_context_end_an_episode():
    body = {"messages": [user("Begin.")]}
    async with gateway_of(Says("one"), GatewaySettings(calls=2)) as gateway:
        episode = gateway.open_episode()
        for _ in range(2):
            assert (await post(gateway, episode.key, "/chat/completions", body))[0] == 200
        status, found = await post(gateway, episode.key, "/chat/completions", body)
        assert (status, found["error"]["code"]) == (400, "budget_exhausted")
        assert (await gateway.close_episode(episode)).outcome == "token_budget"
    async with gateway_of(Says("one"), max_tokens=40) as gateway:
        episode = gateway.open_episode()
        long = {"messages": [user("word " * 300)]}
        status, found = await post(gateway, episode.key, "/chat/completions", long)
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert episode.over.is_set()


async def test_foreign_keys_and_hostile_bodies_are_rejected():
    limits = GatewaySettings(body_bytes=10_000)
    async with gateway_of(Says("one"), limits) as gateway:
        episode, other = gateway.open_episode(), gateway.open_episode()
        await gateway.close_episode(other)
        good = {"messages": [user("x")]}
        for key in ("", "x", other.key, gateway.claim_key):
            status, found = await post(gateway, key, "/chat/completions", good)
            assert (status, found["error"]["code"]) == (401, "invalid_api_key")
        cases = {
            b"{": 400, b"[" * 5000: 400, b"[]": 400, b"{}": 400, b"x" * 20_000: 413,
            b'{"messages": []}': 400, b'{"messages": [1]}': 400,
            b'{"messages": [{"role": "king", "content": "x"}]}': 400,
            b'{"messages": [{"role": "user", "content": 5}]}': 400,
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}': 400,
            b'{"messages": [{"role": "user", "content": "x"}], "n": 2}': 400,
            b'{"messages": [{"role": "user", "content": "x"}], "stop": ["a"]}': 400,
            b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}': 400,
            b'{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}': 400,
            b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}': 400,
        }  # fmt: skip
        for body, status in cases.items():
            found = await post(gateway, episode.key, "/chat/completions", body)
            assert found[0] == status, (body[:60], found)
            assert found[1]["error"]["message"]
        assert (await post(gateway, episode.key, "/chat/completions", good))[0] == 200
        assert (await gateway.close_episode(episode)).calls == 1


async def test_the_temperature_is_the_runs():
    async with gateway_of(Says("one"), temperature=0.5) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            made = await client.chat.completions.with_raw_response.create(
                model="x", messages=[user("x")], temperature=0.0
            )
            assert made.headers["x-agentgym-temperature"] == "0.5"


async def test_many_episodes_at_once_leave_nothing_behind():
    engine = Says("one")
    async with gateway_of(engine) as gateway:

        async def play(http, number):
            episode = gateway.open_episode(seed=number)
            kept.append(weakref.ref(episode))
            messages = [user(f"Begin {number}.")]
            for turn in range(3):
                body = {"messages": messages}
                key = {"Authorization": f"Bearer {episode.key}"}
                url = f"{gateway.base_url}/chat/completions"
                async with http.post(url, json=body, headers=key) as response:
                    reply = (await response.json())["choices"][0]["message"]
                messages = [*messages, reply, user(f"seen {turn}")]
            return await gateway.close_episode(episode)

        kept: list = []
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            found = await asyncio.gather(*(play(http, number) for number in range(150)))
        assert all(len(f.rows) == 1 and len(f.turns) == 3 for f in found)
        assert not engine.live and not gateway._episodes
        await asyncio.sleep(0)
        gc.collect()
        assert sum(ref() is not None for ref in kept) == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}),
        ("/chat/completions", {"messages": [user("x")], "stream": "yes"}),
        ("/episode/reward", {"reward": 1, "success": "no"}),
        ("/episode/reward", {"reward": 1, "succes": False}),
        ("/episode/reward", {"reward": "1"}),
    ],
)
async def test_what_would_mean_something_else_is_rejected_and_changes_nothing(path, body):
    async with gateway_of(Says("ok")) as gateway, aiohttp.ClientSession() as http:
        episode = gateway.open_episode()
        headers = {"Authorization": f"Bearer {episode.key}"}
        async with http.post(gateway.base_url + path, json=body, headers=headers) as answer:
            assert answer.status == 400
        finished = await gateway.close_episode(episode)
    assert (finished.rows, finished.outcome, finished.success) == ([], None, False)


async def test_a_program_that_gave_up_its_claim_does_not_take_the_next_episode():
    async with gateway_of(Says("ok")) as gateway, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {gateway.claim_key}"}
        url = f"{gateway.base_url}/episodes/claim"
        given_up = asyncio.create_task(post(gateway, gateway.claim_key, "/episodes/claim", {}))
        await turned(lambda: gateway._offered._waiters)  # the request waits for an episode
        given_up.cancel()
        await connections_become(gateway, 0)
        episode = gateway.open_episode()
        gateway.offer(episode, {"OPENAI_API_KEY": episode.key})
        async with http.post(url, headers=headers) as answer:
            assert await answer.json() == {"OPENAI_API_KEY": episode.key}


@pytest.mark.parametrize(
    ("limits", "calls", "tokens"),
    [({"calls": 2}, 2, None), ({"sampled_tokens": 4}, None, 4)],
)
async def test_budgets_hold_for_calls_at_the_same_time(limits, calls, tokens):
    engine = Says("one two three four five six")
    settings = GatewaySettings(**limits, concurrent_calls=0)
    async with gateway_of(engine, settings) as gateway, aiohttp.ClientSession() as http:
        episode = gateway.open_episode()
        headers = {"Authorization": f"Bearer {episode.key}"}
        url = f"{gateway.base_url}/chat/completions"

        async def call(number):
            body = {"model": "m", "messages": [user(f"{number}")]}
            async with http.post(url, json=body, headers=headers) as answer:
                return answer.status

        statuses = await asyncio.gather(*map(call, range(8)))
        finished = await gateway.close_episode(episode)
    assert set(statuses) <= {200, 400, 429}
    assert calls is None or (finished.calls, statuses.count(200)) == (calls, calls)
    assert tokens is None or finished.tokens == tokens
    assert finished.outcome == "token_budget"


async def test_a_reward_after_the_end_changes_nothing():
    async with gateway_of(Says("ok"), max_tokens=60) as gateway, aiohttp.ClientSession() as http:
        episode = gateway.open_episode()
        headers = {"Authorization": f"Bearer {episode.key}"}
        async with client_of(gateway, episode) as client:
            with pytest.raises(openai.BadRequestError, match="context length"):
                await chat(client, [user("long " * 200)])
        url = f"{gateway.base_url}/episode/reward"
        async with http.post(url, json={"reward": 1}, headers=headers) as answer:
            assert answer.status == 409
        finished = await gateway.close_episode(episode)
    assert (finished.outcome, finished.success, finished.score) == ("token_budget", False, 0.0)


async def test_a_request_that_was_asked_before_is_asked_anew():
    """Its retry after a lost engine gets a reply of its own."""
    async with gateway_of(Says("A", "B", EngineLost("gone"), "C")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode, max_retries=2) as client:
            replies = [(await chat(client, [user("Begin.")])).choices[0].message for _ in range(3)]
        finished = await gateway.close_episode(episode)
    assert [reply.content for reply in replies] == ["A", "B", "C"]
    assert finished.calls == 3


async def test_a_posted_reward_belongs_to_the_latest_call():
    async with gateway_of(Says("A", "B", "C")) as gateway, aiohttp.ClientSession() as http:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            first = (await chat(client, [user("Begin.")])).choices[0].message
            await chat(client, [user("Something else.")])
            await chat(client, [user("Begin."), first, user("go")])
        headers = {"Authorization": f"Bearer {episode.key}"}
        url = f"{gateway.base_url}/episode/reward"
        async with http.post(url, json={"reward": 1}, headers=headers) as answer:
            assert answer.status == 200
        finished = await gateway.close_episode(episode)
    assert {turn.response: turn.reward for turn in finished.turns} == {"A": 0, "B": 0, "C": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": [{"role": ["user"], "content": "x"}]}),
        ("/chat/completions", {"messages": [{"role": "assistant", "tool_calls": 5}]}),
        ("/chat/completions", {"messages": [user("x")], "temperature": 10**400}),
        ("/responses", {"input": "x", "previous_response_id": []}),
        ("/episode/reward", {"reward": 10**400}),
    ],
)
async def test_odd_bodies_are_the_clients_error(path, body):
    async with gateway_of(Says("ok")) as gateway, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {gateway.open_episode().key}"}
        async with http.post(gateway.base_url + path, json=body, headers=headers) as answer:
            assert answer.status == 400


async def test_half_characters_are_replaced():
    engine = Says("ok")
    async with gateway_of(engine) as gateway, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {gateway.open_episode().key}"}
        data = json.dumps({"model": "\ud800", "messages": [user("a\ud800b")], "stream": True})
        url = f"{gateway.base_url}/chat/completions"
        headers["Content-Type"] = "application/json"
        async with http.post(url, data=data, headers=headers) as answer:
            assert answer.status == 200
    assert "a\N{REPLACEMENT CHARACTER}b" in TOKENIZER.decode(engine.prompts[0])


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_accepted_while_it_stops_is_closed(turns):
    """The kernel has it; asyncio accepts it, makes its transport and tells of it turn by turn."""
    async with gateway_of(Says("x")) as gateway:
        address = gateway.base_url.split("/")[2].split(":")
        with socket.create_connection((address[0], int(address[1]))) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await gateway.close()
            with suppress(ConnectionResetError):
                async with asyncio.timeout(LIMIT_S):
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
