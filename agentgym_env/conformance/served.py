"""The conformance rules for an environment behind a server: same bytes, separate sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym_env.client.sync import EnvClient
from agentgym_env.client.transports import Call, HttpTransport, Transport
from agentgym_env.conformance.subject import (
    RuleBroken,
    Script,
    Subject,
    Transcript,
    difference,
    plain,
    play,
    shorten,
)
from agentgym_env.errors import AgentGymError
from agentgym_env.launch import local_server
from agentgym_env.remote import in_process
from agentgym_env.wire import CreateReply, ResetRequest, SessionRequest, StepRequest, decode, encode


def http_agrees_to_the_byte(subject: Subject) -> str:
    """A server in another process sends the same bytes as one in this process."""
    here = in_process(subject.make, subject.env_id)
    with local_server(subject.env_id, subject.env_kwargs) as server:
        there = HttpTransport(server.address)
        answers = 0
        for script in subject.scripts:
            for one, other in zip(_answers(here, script), _answers(there, script), strict=True):
                answers += 1
                if one != other:
                    raise RuleBroken(
                        f"task {script.task!r}: {shorten(one.decode())} in-process and "
                        f"{shorten(other.decode())} over HTTP"
                    )
        there.close()
    return f"{answers} answers"


def sessions_do_not_leak(subject: Subject) -> str:
    """Interleaved sessions give the same episodes as single ones."""
    alone = subject.make()
    scripts = [subject.scripts[i % len(subject.scripts)] for i in range(_affordable(subject))]
    expected = {id(script): play(alone, script) for script in subject.scripts}
    with EnvClient(in_process(subject.make, subject.env_id)) as client:
        sessions = client.open_many(len(scripts))
        resets = client.reset_many(
            [
                (s, script.seed, script.task, None)
                for s, script in zip(sessions, scripts, strict=True)
            ]
        )
        told: list[Transcript] = [[_reset_as_told(reply)] for reply in resets]
        for turn in range(max(len(script.actions) for script in scripts)):
            playing = [i for i, script in enumerate(scripts) if turn < len(script.actions)]
            # Back and forth, so that no order of sessions is the only one seen.
            playing = playing[::-1] if turn % 2 else playing
            replies = client.step_many([(sessions[i], scripts[i].actions[turn]) for i in playing])
            for index, reply in zip(playing, replies, strict=True):
                told[index].append(_step_as_told(reply))
    for script, seen in zip(scripts, told, strict=True):
        where = difference([expected[id(script)]], [plain(seen)])
        if where:
            raise RuleBroken(f"task {script.task!r} among {len(scripts)} sessions: {where}")
    left_out = subject.sessions - len(scripts)
    return f"{len(scripts)} sessions" + (f"; too slow for {left_out} more" if left_out else "")


def _affordable(subject: Subject) -> int:
    """The number of sessions that there is time for, at the speed measured so far."""
    turns = sum(len(script.actions) for script in subject.scripts) / len(subject.scripts)
    seconds = turns * subject.steps.mean_s + subject.resets.mean_s
    limit = 2 * subject.rule_s
    return min(subject.sessions, max(2, int(limit / seconds))) if seconds else subject.sessions


def _answers(transport: Transport, script: Script) -> list[bytes]:
    """Every response of one episode, with the session's name replaced."""
    (created,) = decode(transport.send(Call("/v1/sessions", b"[{}]")).body, list[CreateReply])
    name = created.session
    calls: list[tuple[str, Any]] = [("/v1/reset", ResetRequest(name, script.seed, script.task))]
    for turn, action in enumerate(script.actions, 1):
        calls.append(("/v1/actions", SessionRequest(name)))
        calls.append(("/v1/step", StepRequest(name, turn, action)))
    calls.append(("/v1/close", SessionRequest(name)))
    bodies = [transport.send(Call(path, encode([message]))).body for path, message in calls]
    return [body.replace(name.encode(), b"SESSION") for body in bodies]


def _reset_as_told(reply: Any) -> Sequence[Any]:
    if isinstance(reply, AgentGymError):
        raise RuleBroken(f"a reset fails: {reply}")
    return (reply.observation, reply.info)


def _step_as_told(reply: Any) -> Sequence[Any]:
    if isinstance(reply, AgentGymError):
        raise RuleBroken(f"a step fails: {reply}")
    return (reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info)
