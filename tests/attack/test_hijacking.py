"""One client of a server tries to use, end, read or fix the session of another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from hosting import Served, sessions_become

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"
MOST = 4
"""Sessions of a server."""
PARAMS: dict[str, Any] = {"responses_create_params": {"input": []}}
COOKIE = "agentgym_session"


def serving(protocol: str, world: str = "worlds:Guess") -> Iterator[str]:
    served = Served(
        SUPPORT, world, "--protocol", protocol, "--port", "0", "--max-sessions", str(MOST)
    )
    yield served.address()
    assert served.stop() == 0


nemo = pytest.fixture(name="nemo")(lambda: (yield from serving("nemo-gym")))
original = pytest.fixture(name="original")(lambda: (yield from serving("agentgym", "babyai")))


@pytest.fixture
def mcp() -> Iterator[str]:
    pytest.importorskip("mcp")
    yield from serving("mcp")


def reports(what: str) -> None:
    sys.stdout.write(f"{what}\n")


class Agent:
    """A rollout of NeMo Gym: the cookies of each answer go into the next call."""

    def __init__(self, address: str, cookies: dict[str, str] | None = None) -> None:
        self.address, self.cookies = address, dict(cookies or {})

    def post(self, path: str, body: object) -> requests.Response:
        answer = requests.post(self.address + path, json=body, cookies=self.cookies, timeout=60)
        self.cookies.update(answer.cookies)
        return answer

    def reset(self, task: str) -> int:
        return self.post("/reset", {**PARAMS, "task": task}).status_code

    def step(self, action: str, request: str | None = None) -> requests.Response:
        content = [{"type": "output_text", "text": action, "annotations": []}]
        output = [{"type": "message", "role": "assistant", "content": content}]
        named = {} if request is None else {"_ng_step_request_id": request}
        return self.post("/step", {**PARAMS, "response": {"output": output}, **named})

    def takes_turn(self, number: int) -> bool:
        """Whether its next step is that turn of its own episode."""
        return bool(self.step("0").json()["info"]["turn"] == number)


def test_no_made_up_cookie_is_a_session_of_nemo_gym(nemo):
    victim, attacker = Agent(nemo), Agent(nemo)
    victim.reset("7")
    attacker.reset("3")
    assert victim.step("1", "a-request").status_code == 200
    value, _, signature = victim.cookies[COOKIE].partition(".")
    own, _, own_signature = attacker.cookies[COOKIE].partition(".")
    forged = [
        value, f"{value}.", f"{value}.{own_signature}", f"{own}.{signature}", f".{signature}",
        f"{value}.{signature[:-1]}", f"{value}.{signature}0", f"{value}.{signature.upper()}",
        f"{value}..{signature}", f"{value[:-1]}.{signature}", f'"{value}"', "", ".", "None.None",
        f"{value}.{'0' * 64}", f"{own}.{own_signature}.{value}.{signature}",
    ]  # fmt: skip
    for cookie in forged:
        stranger = Agent(nemo, {COOKIE: cookie})
        assert stranger.step("7").status_code == 404, cookie
        # Nor is the stored reply to the victim's step told.
        assert stranger.step("1", "a-request").status_code == 404, cookie
        assert stranger.post("/close", {}).json() == {"closed": False}, cookie
    assert victim.takes_turn(2) and attacker.takes_turn(1)
    reports(f"NeMo Gym: {len(forged)} made-up cookies reached no session")


def test_a_cookie_of_another_server_is_none_here(nemo):
    elsewhere = serving("nemo-gym")
    victim, stranger = Agent(nemo), Agent(next(elsewhere))
    victim.reset("7")
    stranger.reset("7")
    stranger.address = nemo
    assert stranger.step("7").status_code == 404
    assert next(elsewhere, None) is None
    assert victim.takes_turn(1)
    reports("NeMo Gym: the cookie of another server was rejected")


@pytest.mark.parametrize("state", ["in play", "ended", "closed"])
def test_a_cookie_that_was_planted_is_not_that_of_the_victims_episode(nemo, state):
    attacker = Agent(nemo)
    attacker.reset("3")
    planted = dict(attacker.cookies)
    if state == "ended":
        assert attacker.step("3").json()["terminated"]
    elif state == "closed":
        attacker.post("/close", {})
    victim = Agent(nemo, planted)
    assert victim.reset("7") == 200
    for cookies in (planted, attacker.cookies):
        follower = Agent(nemo, cookies)
        assert follower.step("7").status_code in (404, 409)
        follower.post("/close", {})
    assert victim.takes_turn(1)
    # Two at once do not share an episode either.
    attacker = Agent(nemo)
    attacker.reset("3")
    both = [Agent(nemo, attacker.cookies) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda agent: agent.reset("5"), both)) == [200, 200]
    assert both[0].takes_turn(1) and both[1].takes_turn(1)
    reports(f"NeMo Gym: a planted cookie ({state}) gave no part in the victim's episode")


@pytest.mark.parametrize("how", ["ends", "resets", "closes"])
def test_other_clients_cannot_displace_a_session_of_nemo_gym(nemo, how):
    victim = Agent(nemo)
    victim.reset("7")
    other = Agent(nemo)
    for _ in range(5 * MOST):
        if how != "resets":
            other = Agent(nemo)
        assert other.reset("3") == 200
        if how == "ends":
            assert other.step("3").json()["terminated"]
        elif how == "closes":
            other.post("/close", {})
    assert victim.takes_turn(1)
    reports(f"NeMo Gym: {5 * MOST} episodes of a client that {how} them displaced no session")


class McpClient:
    """A client of MCP, with sessions or (`newest`) without."""

    def __init__(self, address: str, *, newest: bool = False, session: str | None = None) -> None:
        self.address, self.newest = f"{address}/mcp", newest
        self.headers = {"Accept": "application/json, text/event-stream"}
        if session is not None:
            self.headers["Mcp-Session-Id"] = session
        elif not newest:
            self.initialize()

    def initialize(self, **headers: str) -> requests.Response:
        params = {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }  # fmt: skip
        answer = self.post("initialize", params, **headers)
        if "Mcp-Session-Id" in answer.headers:
            self.headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
        return answer

    def post(self, method: str, params: object, number: int | None = 1, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "method": method, "params": params}
        body |= {} if number is None else {"id": number}
        sent = {**self.headers, **headers}
        return requests.post(self.address, json=body, headers=sent, timeout=60)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a tool, or None if there is none."""
        call: dict[str, Any] = {"name": tool, "arguments": arguments}
        headers = {}
        if self.newest:
            prefix = "io.modelcontextprotocol/"
            call["_meta"] = {
                f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {},
            }  # fmt: skip
            headers = {
                "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
            }  # fmt: skip
        answer = self.post("tools/call", call, **headers)
        result = answer.json().get("result", {})
        return None if result.get("isError", False) else result.get("structuredContent")


def test_a_session_of_mcp_is_reached_by_its_whole_name_alone(mcp):
    victim = McpClient(mcp)
    assert victim.call("reset", task="7")
    name = victim.headers["Mcp-Session-Id"]
    guesses = [
        "", "0", name[:-1], name + "0", name.upper(), f"{name}, {name}", f"{name};", f"{name}*",
        "0" * 32, "*",
    ]  # fmt: skip
    for guess in guesses:
        stranger = McpClient(mcp, session=guess)
        assert stranger.call("step", action="7") is None, guess
        assert requests.delete(
            f"{mcp}/mcp", headers={"Mcp-Session-Id": guess}, timeout=60
        ).status_code in (400, 404), guess
        # A name that the client has chosen is not that of a new session.
        assert stranger.initialize().headers.get("Mcp-Session-Id") not in (guess, name), guess
    assert requests.delete(f"{mcp}/mcp", timeout=60).status_code == 400
    # Nor as the name of an episode, where there are no sessions.
    newest = McpClient(mcp, newest=True)
    assert newest.call("step", episode=name, action="7") is None
    assert newest.call("close", episode=name) is None
    assert victim.call("step", action="1")["info"]["turn"] == 1
    reports(f"MCP: {len(guesses)} guesses at a session's name reached none")


def test_an_episode_of_mcp_without_sessions_is_reached_by_its_name_alone(mcp):
    victim, attacker = (McpClient(mcp, newest=True) for _ in range(2))
    name = victim.call("reset", task="7")["episode"]
    own = attacker.call("reset", task="3")["episode"]
    for guess in ("", name[:-1], name + "A", name.swapcase(), f"{name},{own}", [name], None, 0):
        for tool in ("step", "available_actions", "close"):
            arguments = {"action": "7"} if tool == "step" else {}
            assert attacker.call(tool, episode=guess, **arguments) is None, (tool, guess)
        assert guess is None or attacker.call("reset", episode=guess) is None, guess
    with_session = McpClient(mcp)
    assert with_session.call("step", episode=name, action="7") is None
    assert McpClient(mcp, session=name).call("step", action="7") is None
    assert victim.call("step", episode=name, action="1")["info"]["turn"] == 1
    reports("MCP: no guess at an episode's name reached it")


@pytest.mark.parametrize("newest", [False, True])
def test_equal_numbers_of_requests_and_cancellations_cross_no_sessions(mcp, newest):
    clients = [McpClient(mcp, newest=newest) for _ in range(MOST)]
    started = [client.call("reset", task=str(i + 1)) for i, client in enumerate(clients)]
    names = [{"episode": told["episode"]} if newest else {} for told in started]
    stranger = McpClient(mcp)

    def play(i: int) -> list[float]:
        told = []
        for turn in range(1, 16):
            stranger.post("notifications/cancelled", {"requestId": 1}, number=None)
            action = str(i + 1) if turn == 15 else "99"
            step = clients[i].call("step", action=action, **names[i])
            assert step["info"]["turn"] == turn
            told.append(step["reward"])
        return told

    with ThreadPoolExecutor(MOST) as pool:
        assert list(pool.map(play, range(MOST))) == [[0.0] * 14 + [1.0]] * MOST
    reports(f"MCP: {15 * MOST} calls of the same number at once, amid cancellations, each its own")


@pytest.mark.parametrize("how", ["steps without an episode", "resets", "episodes"])
def test_other_clients_cannot_displace_a_session_of_mcp(mcp, how):
    victim, named = McpClient(mcp), McpClient(mcp, newest=True)
    victim.call("reset", task="7")
    name = named.call("reset", task="7")["episode"]
    other = McpClient(mcp, newest=True)
    for _ in range(5 * MOST):
        if how == "episodes":
            assert other.call("close", episode=other.call("reset", task="3")["episode"])
        else:
            client = McpClient(mcp)
            client.call("step", action="3")
            if how == "resets":
                assert client.call("reset", task="3")
                requests.delete(f"{mcp}/mcp", headers=client.headers, timeout=60)
    assert victim.call("step", action="1")["info"]["turn"] == 1
    assert named.call("step", episode=name, action="1")["info"]["turn"] == 1
    assert sessions_become(mcp, 2)
    reports(f"MCP: {5 * MOST} {how} of another client displaced no session")


def test_ids_of_agentgyms_protocol_are_not_guessed(original):
    ids = [requests.post(f"{original}/create", timeout=60).json()["id"] for _ in range(MOST)]
    assert all(0 <= number < 2**53 for number in ids) and len(set(ids)) == MOST
    near = {number + step for number in ids for step in range(-50, 51)} - set(ids)
    with requests.Session() as attacker:
        for guess in [*range(200), *near]:
            start = {"id": guess, "data_idx": 0}
            assert "not valid" in attacker.post(f"{original}/reset", json=start).json()["error"]
            assert attacker.post(f"{original}/close", json={"id": guess}).json() is False
    assert sessions_become(original, MOST)
    reports(f"AgentGym's protocol: {200 + len(near)} guesses at {MOST} ids, none of them right")
