"""Hostile requests to the gateway, hostile replies through it, and agents that crash by them."""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
import pytest

import black_boxes
import hosting
from agentgym_train.config.policy import PolicyConfig, RolloutLimits
from agentgym_train.engines.base import EngineLost, ScriptedEngine
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner
from tests.gateway.test_gateway import ADD, CALL, TOKENIZER, Says, gateway_of, user
from tests.train.small import save_tiny_policy
from tests.train.templates import real_tokenizer
from waiting import turned

CHAT = "/chat/completions"


def say(text):
    sys.stdout.write(text + "\n")


async def posted(gateway, episode, body, path=CHAT, **headers):
    """(status, answer) of a request whose body may be any bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"Authorization": f"Bearer {episode.key}", **headers}
    async with aiohttp.ClientSession() as session:
        url = gateway.base_url + path
        async with session.post(url, data=raw, headers=head) as answer:
            return answer.status, await answer.json()


@pytest.mark.parametrize(
    "word",
    ["XREPLYX", "XCONTENT2X", "XSPECIAL0TOKENX", "XRESULT0X", "XARGUMENTX", "XSECONDX XFIRSTX"],
)
async def test_words_that_were_placeholders_are_words(word):
    """In a message, beside a control token, and in what continues a reply and a call."""
    engine = Says("one", CALL, "three")
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        said = {"role": "assistant", "content": word}
        messages = [user(word), said, user(f"{word} <|im_end|>")]
        for number in range(3):
            body = {"model": "p", "messages": messages, "tools": [ADD]}
            status, answer = await posted(gateway, episode, body)
            assert status == 200, answer
            reply = answer["choices"][0]["message"]
            messages += [reply]
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": f"{word} of {number}"}
                for call in reply.get("tool_calls", ())
            ]
            messages += [user(f"{word} again {number}"), user(f"{word} <|im_end|> {number}")]
        finished = await gateway.close_episode(episode)
    text = TOKENIZER.decode(engine.prompts[-1])
    assert f"{word} <|im_end|>" in text and f"{word} again 1" in text
    assert f"{word} of 1" in text and f"{word} <|im_end|> 1" in text and len(finished.rows) == 1
    say(f"{word}: three calls of one row, in which it is a word")


DEEP = b"[" * 500 + b"]" * 500


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "not valid JSON"),
        ('{"messages": [{"role": "user", "content": "x"}]}'.encode("utf-16"), "not valid JSON"),
        (b'{"messages": %s}' % DEEP, "nested"),
        (b'{"messages": [{"role": "user", "content": "x", "more": %s}]}' % DEEP, "nested"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": %s}' % DEEP, "nested"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", '
         b'"function": {"name": "f", "parameters": {"x": %s}}}]}' % DEEP, "nested"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": '
         b'{"name": "add", "arguments": {"x": %s}}}]}]}' % DEEP, "nested"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": '
         b'{"name": "add", "arguments": "%s"}}]}]}' % DEEP, "nested"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "x"}], "seed": 1e999}', "no number inf"),
    ],
)  # fmt: skip
async def test_bodies_that_nobody_can_read_are_the_clients_errors(raw, said):
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        for path in (CHAT, "/responses", "/episode/step", "/episode/reward"):
            status, answer = await posted(gateway, episode, raw, path)
            assert status == 400 and answer["error"]["message"], (path, answer)
            if path == CHAT:
                assert said in answer["error"]["message"], answer
        assert (await gateway.close_episode(episode)).calls == 0
    say(f"{raw[:70]!r}: status 400 on four routes")


async def test_headers_of_any_bytes_are_no_errors_of_ours():
    async with gateway_of(Says("one")) as gateway:
        episode = gateway.open_episode()
        host, port = gateway.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"model": "p", "messages": [user("x")]}).encode()
        key = episode.key.encode()
        for path, headers, status in (
            (
                b"chat/completions",
                b"Authorization: Bearer %s\r\nIdempotency-Key: \xff" % key,
                200,
            ),
            (b"episodes/claim", b"Authorization: Bearer \xff\xed\xa0\x80", 401),
            (b"chat/completions", b"Authorization: Bearer \xff", 401),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /v1/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n"
            writer.write(head % (path, len(body)) + headers + b"\r\n\r\n" + body)
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    say("keys of bytes that are no text: 200, 401 and 401")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/responses"])
async def test_half_a_character_in_a_call_is_replaced_in_the_reply(path, stream):
    said = '<tool_call>\n{"name": "note", "arguments": {"text": "\\ud800"}}\n</tool_call>'
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    note = {"name": "note", "parameters": parameters}
    if path == CHAT:
        body = {"messages": [user("x")], "tools": [{"type": "function", "function": note}]}
    else:
        body = {"input": "x", "tools": [{"type": "function", **note}]}
    async with gateway_of(Says(said)) as gateway:
        episode = gateway.open_episode()
        raw = json.dumps({"model": "p", "stream": stream, **body})
        headers = {"Authorization": f"Bearer {episode.key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(gateway.base_url + path, data=raw) as answer,
        ):
            text = await answer.text()
            assert answer.status == 200, text
        finished = await gateway.close_episode(episode)
    shown = text.replace("\\\\ufffd", "\ufffd").replace("\\ufffd", "\ufffd")
    assert '\\"text\\": \\"\ufffd\\"' in shown and "\\ud800" not in text
    assert finished.calls == 1 and finished.turns[0].response.endswith("</tool_call>")
    say(f"half a character by {path}, stream {stream}: replaced")


async def test_the_ids_of_calls_are_our_own_and_differ():
    call = {"name": "add", "arguments": {"number": 1}, "id": "same"}
    text = "\n".join([f"<tool_call>\n{json.dumps(call)}\n</tool_call>"] * 3)
    async with gateway_of(Says(text), turn_max_tokens=1000) as gateway:
        episode = gateway.open_episode()
        body = {"model": "p", "messages": [user("x")], "tools": [ADD]}
        _, answer = await posted(gateway, episode, body)
    ids = [call["id"] for call in answer["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 3 and all(len(each) == 9 and each.isalnum() for each in ids)
    say(f"three calls with one id: {', '.join(ids)}")


async def test_a_text_that_a_template_refuses_is_shown_all_the_same():
    """The template takes a user's message in these marks for a result, and then misses the user."""
    tokenizer = real_tokenizer("qwen3_5_nothink")
    engine = Says("one", tokenizer=tokenizer)
    async with gateway_of(engine, tokenizer=tokenizer) as gateway:
        episode = gateway.open_episode()
        for text in ("<tool_response>x</tool_response>", "<tool_response></tool_response>"):
            body = {"model": "p", "messages": [user(text)]}
            status, answer = await posted(gateway, episode, body)
            assert status == 200, answer
            assert text in tokenizer.decode(engine.prompts[-1])
    say("a message that the template refuses: shown as a text")


async def test_a_reply_at_which_an_agent_crashes_stays_recorded_though_it_did_not_arrive():
    """It reads a part of a large reply and goes away: that part may be why."""
    longest = max(TOKENIZER.vocab.values(), key=lambda i: len(TOKENIZER.decode([i])))
    engine, limits = ScriptedEngine(lambda *_: [longest] * 10**6), {"turn_max_tokens": 10**8}
    async with gateway_of(engine, max_tokens=10**8, **limits) as gateway:
        for crashed in (False, True):
            episode = gateway.open_episode()
            host, port = gateway.base_url.removeprefix("http://").removesuffix("/v1").split(":")
            body = json.dumps({"model": "p", "messages": [user("x")], "stream": True}).encode()
            head = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Authorization: Bearer {episode.key}\r\n\r\n".encode() + body)
            assert await reader.read(100)
            writer.transport.abort()
            await turned(lambda episode=episode: episode.undelivered)
            finished = await gateway.close_episode(episode, keep_unheard=crashed)
            assert (finished.calls, len(finished.rows)) == (crashed, crashed)
    say("a part of a reply: recorded if the agent crashed by it, taken back if not")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


class Endless(Says):
    """Samples without an end, or fails."""

    async def generate(self, *arguments):
        black_boxes.ASKED.set()
        if isinstance(self.texts[0], Exception):
            raise self.texts[0]
        await asyncio.Event().wait()


def played(model, agent, retries=1, engine=None, **gateway):
    """An episode of a black-box agent in the guessing world."""
    config = PolicyConfig(
        model=model, turn_max_tokens=6, max_tokens=600, instruction="",
        agent={"type": f"callable:black_boxes:{agent}", **gateway},
    )  # fmt: skip
    black_boxes.CRASHED.clear()
    policy = make_policy(config)
    if engine is not None:
        policy.black_box.gateway._engine = engine
        black_boxes.ASKED.clear()
    with RolloutRunner(hosting.GUESS, limits=RolloutLimits(retries=retries)) as runner:
        try:
            (episode,) = runner.collect(policy.actors(), [EpisodeSpec("1", 0, split="train")], 3)
        finally:
            runner.run(policy.close())
    return episode


@pytest.mark.parametrize(
    ("agent", "retries"),
    [("broken", 0), ("broken", 1), ("crashes_at_words", 1), ("stops", 0), ("interrupts", 0),
     ("raises_no_error", 0)],
)  # fmt: skip
def test_a_crash_after_a_reply_is_a_failure_that_is_trained_on(model, agent, retries):
    episode = played(model, agent, retries)
    assert (episode.outcome, episode.reward, episode.attempts) == ("failure", 0.0, retries + 1)
    assert sum(episode.rows[0].loss_mask) > 0 and "AgentCrashed" in episode.error
    assert episode.turns[-1].info["agent_crashed"]
    say(f"{agent}, {retries + 1} attempts: a failure with {len(episode.turns)} turns")


def test_a_crash_that_the_same_replies_do_not_repeat_was_an_outage(model):
    episode = played(model, "crashes_once")
    assert episode.attempts == 2 and episode.outcome in ("horizon", "success")
    assert not any("agent_crashed" in turn.info for turn in episode.turns)
    say(f"a crash that does not repeat: {episode.outcome}")


def test_no_policy_gets_a_second_try_by_a_crash(model):
    """The second attempt gets other replies, so it does not prove that the first was an outage."""
    episode = played(model, "crashes_once_then_asks_otherwise")
    assert (episode.outcome, episode.attempts, len(episode.turns)) == ("failure", 2, 1)
    say("a crash, then another conversation: the crash counts")


def test_a_crash_counts_though_the_environment_is_lost_afterwards(model):
    episode = played(model, "crashes_once_then_never_asks")
    assert (episode.outcome, episode.attempts) == ("failure", 2)
    say("a crash, then a lost attempt: the crash counts")


@pytest.mark.parametrize(("agent", "crashed"), [("leaves_early", False), ("loses_patience", True)])
def test_no_policy_voids_an_episode_by_a_slow_first_reply(model, agent, crashed):
    episode = played(model, agent, engine=Endless("one"))
    assert (episode.outcome, episode.reward, episode.rows) == ("failure", 0.0, [])
    assert [turn.info for turn in episode.turns] == [{"agent_crashed": True}] * crashed
    say(f"{agent} while the first reply is sampled: a failure")


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(EngineLost("it restarts"), "engine_lost"), (RuntimeError("a bug of ours"), "agent_lost")],
)
@pytest.mark.parametrize("agent", ["leaves_early", "broken"])
def test_a_first_reply_that_fails_by_our_fault_is_no_failure_of_the_policy(
    model, agent, fault, outcome
):
    episode = played(model, agent, retries=0, engine=Endless(fault))
    assert (episode.outcome, episode.turns) == (outcome, [])
    say(f"{agent} at {fault!r}: {episode.outcome}")


@pytest.mark.parametrize(("outcome", "kept"), [(None, 1), ("success", 0)])
async def test_a_complete_reply_that_the_agent_did_not_wait_for_is_trained_on(outcome, kept):
    """Unless something else ended the episode: then the reply is not why."""
    engine = Says("one", "two")
    async with gateway_of(engine) as gateway:
        episode = gateway.open_episode()
        messages = [user("x")]
        _, answer = await posted(gateway, episode, {"model": "p", "messages": messages})
        messages += [answer["choices"][0]["message"], user("y")]
        engine.release = asyncio.Event()
        host, port = gateway.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        body = json.dumps({"model": "p", "messages": messages}).encode()
        head = f"POST /v1{CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}Authorization: Bearer {episode.key}\r\n\r\n".encode() + body)
        await turned(lambda: episode.reserved)
        writer.transport.abort()
        await posted(gateway, episode, {"reward": "none"}, "/episode/reward")  # it sees the abort
        engine.release.set()
        await turned(lambda: episode.undelivered)
        episode.outcome = outcome
        finished = await gateway.close_episode(episode, keep_unheard=True)
    assert (finished.calls, len(finished.turns), len(finished.rows)) == (1 + kept, 1 + kept, 1)
    say(f"a reply that nobody waited for, outcome {outcome}: {kept} in the record")
