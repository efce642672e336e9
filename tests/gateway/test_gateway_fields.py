"""Fields of requests to the gateway: each is obeyed or rejected by its name."""

from __future__ import annotations

import json

import pytest

from tests.gateway.test_gateway import (
    ADD,
    CALL,
    TOKENIZER,
    Says,
    chat,
    client_of,
    gateway_of,
    post,
    user,
)

IGNORED = {
    "top_p": 0.9, "top_k": 5, "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": -1,
    "repetition_penalty": 1.1, "n": 2, "stop": ["a"], "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": False}, "guided_json": {"type": "object"},
    "structured_outputs": {"regex": "a+"}, "stop_token_ids": [7], "min_tokens": 4,
    "continue_final_message": True, "functions": [{"name": "add"}],
    "function_call": {"name": "add"}, "reasoning_effort": "high", "bad_words": ["no"],
    "documents": [{"text": "x"}], "top_pp": 1,
}  # fmt: skip
OF_RESPONSES = {
    "background": True, "truncation": "auto", "prompt": {"id": "p"}, "conversation": "c",
    "include": ["message.input_audio"], "logprobs": True,
}  # fmt: skip


@pytest.mark.parametrize("name", [*IGNORED, *OF_RESPONSES])
async def test_a_field_that_would_be_ignored_is_rejected_by_its_name(name):
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        found = []
        if name in IGNORED:
            body = {"messages": [user("x")], name: IGNORED[name]}
            found.append(await post(gateway, episode.key, "/chat/completions", body))
        body = {"input": "x", name: {**IGNORED, **OF_RESPONSES}[name]}
        found.append(await post(gateway, episode.key, "/responses", body))
        for status, answer in found:
            assert status == 400 and f"{name} would be ignored" in answer["error"]["message"]
            assert answer["error"]["param"] == name
        assert (await gateway.close_episode(episode)).calls == 0


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/chat/completions", {"stream_options": {"continuous_usage_stats": True}},
         "stream_options.continuous_usage_stats"),
        ("/responses", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("/responses", {"text": {"verbosity": "low"}}, "text.verbosity"),
        ("/chat/completions", {"messages": [{**user("x"), "name": "Ann"}]}, "name of message 0"),
        ("/chat/completions", {"messages": [user("x"), {"role": "assistant", "name": "critic"}]},
         "name of message 1"),
        ("/chat/completions", {"messages": [{**user("x"), "function_call": {"name": "a"}}]},
         "function_call of message 0"),
        ("/episode/step", {"action": "look", "tun": 1}, "tun"),
    ],
)  # fmt: skip
async def test_what_would_be_ignored_within_a_field_is_rejected_too(path, body, name):
    async with gateway_of(Says("one")) as gateway:
        given = {"input": "x"} if path == "/responses" else {"messages": [user("x")]}
        given = {} if path == "/episode/step" else given
        key = gateway.open_episode().key
        status, answer = await post(gateway, key, path, {**given, **body})
        assert status == 400 and name in answer["error"]["message"]


async def test_fields_that_ask_for_nothing_are_accepted():
    shared = {
        "top_p": 1, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0,
        "n": 1, "stop": None, "guided_json": None, "user": "u", "metadata": {"run": "7"},
        "store": False, "seed": 3, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "parallel_tool_calls": True, "top_logprobs": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    only_chat = {"logprobs": False, "stream_options": None, "functions": [], "verbosity": "medium"}
    only_responses = {
        "reasoning": {"effort": None, "summary": "auto"}, "truncation": "disabled",
        "include": ["reasoning.encrypted_content"], "text": {"verbosity": "medium"},
        "background": False,
    }  # fmt: skip
    template = {"enable_thinking": False}
    async with gateway_of(Says("one"), chat_template_kwargs=template) as gateway:
        key = gateway.open_episode().key
        body = {"messages": [user("x")], **shared, **only_chat}
        assert (await post(gateway, key, "/chat/completions", body))[0] == 200
        body = {"input": "x", **shared, **only_responses}
        assert (await post(gateway, key, "/responses", body))[0] == 200


async def test_without_parallel_calls_an_agent_gets_the_first_and_the_row_goes_on_as_sampled():
    second = CALL.replace("3", "4")
    async with gateway_of(Says(f"{CALL}\n{second}", "done", f"{CALL}\n{second}")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            options = {"tools": [ADD], "parallel_tool_calls": False}
            reply = (await chat(client, [user("Begin.")], **options)).choices[0]
            (call,) = reply.message.tool_calls
            assert json.loads(call.function.arguments) == {"number": 3}
            result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
            messages = [user("Begin."), reply.message, result]
            assert (await chat(client, messages, **options)).choices[0].finish_reason == "stop"
            schema = {"type": "function", **ADD["function"]}
            made = await client.responses.create(
                model="x", input="Anew.", tools=[schema], parallel_tool_calls=False
            )
            assert [item.type for item in made.output] == ["function_call"]
            assert made.parallel_tool_calls is False
        finished = await gateway.close_episode(episode)
    row, _ = finished.rows
    assert len(row.turn_ends) == 2 and finished.turns[0].response == f"{CALL}\n{second}"
    assert TOKENIZER.decode(row.completion_ids[: row.turn_ends[0]]).count("<tool_call>") == 2


@pytest.mark.parametrize(
    "text", ["one two", "caf\N{LATIN SMALL LETTER E WITH ACUTE} \U0001f600", CALL]
)
async def test_log_probabilities_are_those_of_the_sampled_tokens(text):
    async with gateway_of(Says(text)) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            made = (await chat(client, [user("a")], logprobs=True)).choices[0].logprobs.content
            stream = await chat(client, [user("b")], logprobs=True, stream=True)
            streamed = [
                token
                async for chunk in stream
                for choice in chunk.choices
                if choice.logprobs
                for token in choice.logprobs.content
            ]
            assert (await chat(client, [user("c")])).choices[0].logprobs is None
        first, *_ = (await gateway.close_episode(episode)).rows
    assert [token.logprob for token in made] == first.logprobs and streamed == made
    assert "".join(token.token for token in made) == TOKENIZER.decode(first.completion_ids)
    joined = b"".join(bytes(token.bytes) for token in made)
    assert joined.decode() == f"{text}<|im_end|>" and made[0].top_logprobs == []


async def test_the_responses_api_returns_log_probabilities_where_they_are_included():
    async with gateway_of(Says("one two")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            options = {"model": "x", "input": "a", "include": ["message.output_text.logprobs"]}
            (message,) = (await client.responses.create(**options)).output
            async with client.responses.stream(**options) as stream:
                deltas = [e async for e in stream if e.type == "response.output_text.delta"]
            plain = await client.responses.create(model="x", input="b")
        first, *_ = (await gateway.close_episode(episode)).rows
    found = message.content[0].logprobs
    assert [token.logprob for token in found] == first.logprobs
    assert [token.token for token in deltas[0].logprobs] == [token.token for token in found]
    assert plain.output[0].content[0].logprobs == []


async def test_a_strict_tool_gets_a_header_that_says_it_is_not():
    strict = {**ADD, "function": {**ADD["function"], "strict": True}}
    flat = {"type": "function", **strict["function"]}
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            given = client.chat.completions.with_raw_response
            for tool, said in ((strict, "false"), (ADD, None)):
                reply = await given.create(model="p", messages=[user("x")], tools=[tool])
                assert reply.headers.get("x-agentgym-strict") == said
            reply = await client.responses.with_raw_response.create(
                model="p", input="x", tools=[flat]
            )
            assert reply.headers["x-agentgym-strict"] == "false"


async def test_the_name_of_a_result_is_its_calls_and_accepted():
    async with gateway_of(Says(CALL, "done")) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("x")], tools=[ADD])).choices[0].message
            (call,) = reply.tool_calls
            result = {"role": "tool", "name": "add", "tool_call_id": call.id, "content": "3"}
            again = await chat(client, [user("x"), reply.model_dump(), result], tools=[ADD])
            assert again.choices[0].message.content == "done"
