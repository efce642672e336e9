"""An agent behind the gateway gets replies without reasoning, which rows and templates keep."""

from __future__ import annotations

import pytest

from tests.gateway.test_gateway import ADD, CALL, TOKENIZER, Says, chat, client_of, gateway_of, user
from tests.train.templates import any_tokenizer, real_tokenizer


async def test_an_agent_gets_calls_and_texts_without_the_reasoning_before_them():
    """Qwen3's template keeps the reasoning between calls, although the agent has not seen it."""
    tokenizer = real_tokenizer("qwen3")
    thought = f"<think>\nPerhaps {CALL}\n</think>\n\n"
    texts = [thought + CALL, f"{thought}done", f"<think>\n{CALL}"]
    engine = Says(*texts, tokenizer=tokenizer)
    async with gateway_of(engine, tokenizer=tokenizer) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("Begin.")], tools=[ADD])).choices[0]
            (call,) = reply.message.tool_calls
            assert not reply.message.content
            result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
            messages = [user("Begin."), reply.message.model_dump(), result]
            last = (await chat(client, messages, tools=[ADD])).choices[0].message
            assert (last.content, last.tool_calls) == ("done", None)
            cut = (await chat(client, [user("Anew.")], tools=[ADD])).choices[0].message
            assert (cut.content, cut.tool_calls) == (None, None)
        finished = await gateway.close_episode(episode)
    assert [turn.response for turn in finished.turns] == texts
    assert [len(row.turn_ends) for row in finished.rows] == [2, 1], "calls continue their row"
    assert tokenizer.decode(engine.prompts[1]).count("Perhaps") == 1


@pytest.mark.parametrize("between", ["\n\n", "", "\n"])
async def test_a_template_that_shows_reasoning_keeps_its_row(between):
    texts = [f"<think>\nhm\n</think>{between}one", "two"]
    async with gateway_of(Says(*texts)) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("Begin.")])).choices[0].message
            assert reply.content == "one"
            await chat(client, [user("Begin."), reply, user("go")])
        finished = await gateway.close_episode(episode)
    (row,) = finished.rows
    assert TOKENIZER.decode(row.completion_ids).startswith(f"{texts[0]}<|im_end|>")


async def test_an_agent_gets_the_final_message_of_a_turn_in_messages():
    tokenizer = any_tokenizer("gptoss")
    final = "<|start|>assistant<|channel|>final<|message|>"
    texts = [
        f"<|channel|>analysis<|message|>hm<|end|>{final}one",
        f"{final.partition('assistant')[2]}two",
    ]
    async with gateway_of(Says(*texts, tokenizer=tokenizer), tokenizer=tokenizer) as gateway:
        episode = gateway.open_episode()
        async with client_of(gateway, episode) as client:
            reply = (await chat(client, [user("Begin.")])).choices[0].message
            assert reply.content == "one"
            again = (await chat(client, [user("Begin."), reply, user("go")])).choices[0].message
            assert again.content == "two"
        finished = await gateway.close_episode(episode)
    first, second = finished.rows
    assert tokenizer.decode(first.completion_ids) == f"{texts[0]}<|return|>"
    assert "hm" not in tokenizer.decode(second.prompt_ids), "as the template renders the history"
