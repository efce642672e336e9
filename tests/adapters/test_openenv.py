"""`--protocol openenv` message by message, and `agentgym/OpenEnv-v0` where things go wrong."""

from __future__ import annotations

import json
import socket as sockets
from contextlib import ExitStack, suppress

import gymnasium
import pytest
import requests

from agentgym_env.errors import BadRequest, EnvironmentLost, EpisodeOver
from hosting import Clock, Served, sessions_become
from worlds import Guess, Trouble

pytest.importorskip("websockets", reason="needs websockets: the extra `openenv`")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

OPENENV = "agentgym/OpenEnv-v0"


class Socket:
    """A WebSocket that sends and reads JSON."""

    def __init__(self, address: str, path: str = "/ws", **options) -> None:
        url = address.replace("http", "ws") + path
        self._opening = connect(url, proxy=None, open_timeout=60, **options)

    def __enter__(self) -> Socket:
        self.connection = self._opening.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._opening.__exit__(*error)

    def ask(self, message: object) -> dict:
        """Send a message, or raw text, and read the answer."""
        self.connection.send(message if isinstance(message, str) else json.dumps(message))
        return self.hear()

    def hear(self) -> dict:
        """The next message."""
        return json.loads(self.connection.recv(timeout=60))

    def reset(self, **data) -> dict:
        return self.ask({"type": "reset", "data": data})

    def step(self, message: str) -> dict:
        return self.ask({"type": "step", "data": {"message": message}})

    def wait_for_the_end(self) -> int:
        """The close code, once the server hangs up; 1006 if there was none."""
        with pytest.raises(ConnectionClosed) as closed:
            self.connection.recv(timeout=60)
        return closed.value.rcvd.code if closed.value.rcvd else 1006


@pytest.fixture(scope="module")
def served(worlds_folder):
    """The address of the command's server; each test leaves it without a session."""
    words = ("--protocol", "openenv", "--port", "0", "--max-body-mb", "1")
    one = Served(worlds_folder, "worlds:Guess", *words)
    yield one.address()
    one.stop()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ({"data": {}}, "VALIDATION_ERROR"),
        ({"type": "dance"}, "UNKNOWN_TYPE"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"message": "5", "loud": True}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"action": {"message": "5"}}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": 2.5}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"episode_id": "x" * 256}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"task": "77"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "night"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "night", "index": 0}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"index": 6}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {}, "more": 1}, "VALIDATION_ERROR"),
    ],
)
def test_a_malformed_message_gets_openenvs_error_and_costs_nothing(openenv_guess, message, code):
    with Socket(openenv_guess) as socket:
        socket.reset(task="5")
        answer = socket.ask(message)
        assert answer["type"] == "error" and answer["data"]["code"] == code
        assert answer["data"]["message"]
        if code == "VALIDATION_ERROR":
            (error,) = answer["data"]["errors"]
            assert set(error) == {"type", "loc", "msg", "input"}
        result = socket.step("5")["data"]
        assert (result["reward"], result["done"]) == (1.0, True)


@pytest.fixture
def openenv_guess(speak):
    return speak("openenv", Guess)


def test_a_session_is_a_connection(served):
    address = served
    with Socket(address) as one, Socket(address) as other:
        assert one.reset(task="3", seed=1, episode_id="mine")["data"]["done"] is False
        other.reset(task="4")
        assert one.step("3")["data"]["reward"] == 1.0
        assert other.step("3")["data"]["reward"] == 0.0
        state = other.ask({"type": "state"})["data"]
        assert state["step_count"] == 1 and state["available_actions"] == list("123456789")
        assert one.ask({"type": "state"})["data"]["episode_id"] == "mine"
        assert sessions_become(address, 2)
        one.connection.send('{"type": "close"}')
        assert one.wait_for_the_end() == 1000
        assert sessions_become(address, 1)
        # No leave is taken here: the program is gone.
        other.connection.socket.close()
    with Socket(address) as last:
        last.reset(task="1")
        assert sessions_become(address, 1)
    assert sessions_become(address, 0)


def test_a_full_server_says_how_full_it_is(speak):
    address = speak("openenv", Guess, max_sessions=1)
    with Socket(address) as first:
        first.reset(task="1")
        with Socket(address) as second:
            data = second.hear()["data"]
            assert data["code"] == "CAPACITY_REACHED"
            assert (data["active_sessions"], data["max_sessions"]) == (1, 1)
            assert second.wait_for_the_end() == 1000
    with Socket(address) as third:
        assert third.reset(task="1")["type"] == "observation"


def test_a_silent_connection_ends_with_its_session(speak):
    address = speak("openenv", Guess, ttl_s=0.5)
    with Socket(address) as socket:
        data = socket.hear()["data"]
        assert (data["code"], data["reason"]) == ("SESSION_ERROR", "unknown_session")
        assert socket.wait_for_the_end() == 1000
    assert sessions_become(address, 0)


def test_a_world_that_fails_is_an_error_and_never_a_reward(speak):
    address = speak("openenv", Trouble)
    with Socket(address) as socket:
        data = socket.reset(task="broken")["data"]
        assert (data["code"], data["reason"]) == ("EXECUTION_ERROR", "environment_error")
        for action in ("raise", "nan", "object"):
            socket.reset(task="fine")
            data = socket.step(action)["data"]
            assert (data["code"], data["reason"]) == ("EXECUTION_ERROR", "environment_error")
            data = socket.step("go on")["data"]
            assert (data["code"], data["reason"]) == ("EXECUTION_ERROR", "episode_over")
        socket.reset(task="fine")
        assert socket.step("end")["data"]["done"] is True


@pytest.mark.slow
def test_a_world_that_hangs_meets_its_deadline_and_a_reset_goes_on(run):
    words = ("--workers", "1", "--step-timeout", "10")
    address = run("worlds:Wild", "--protocol", "openenv", "--port", "0", *words).address()
    with Socket(address) as socket:
        socket.reset(task="a")
        assert socket.step("hang")["data"]["reason"] == "deadline"
        assert socket.step("go on")["data"]["reason"] == "episode_over"
        assert socket.reset(task="a")["type"] == "observation"
        assert socket.step("go on")["type"] == "observation"


class OnlyOnce(Guess):
    """Can be made for the server's own use and for one session."""

    made = 0

    def __init__(self) -> None:
        OnlyOnce.made += 1
        if OnlyOnce.made > 1:
            raise RuntimeError("out of numbers")
        super().__init__()


def test_a_world_that_cannot_be_made_is_a_factory_error(speak):
    OnlyOnce.made = 0
    address = speak("openenv", OnlyOnce)
    with Socket(address) as first, Socket(address) as second:
        assert first.reset(task="1")["type"] == "observation"
        data = second.hear()["data"]
        assert data["code"] == "FACTORY_ERROR" and data["factory_name"] == "tests/Guess-v0"


def test_the_token_opens_sockets_and_routes(speak):
    address = speak("openenv", Guess, token="secret")
    with pytest.raises(InvalidStatus) as refused, Socket(address):
        pass
    assert refused.value.response.status_code == 403
    assert requests.get(f"{address}/schema", timeout=60).status_code == 401
    assert requests.get(f"{address}/health", timeout=60).json() == {"status": "healthy"}
    with Socket(address, additional_headers={"Authorization": "Bearer secret"}) as socket:
        assert socket.reset(task="1")["type"] == "observation"
    env = gymnasium.make(OPENENV, server=address.replace("http", "ws"), token="secret")
    assert env.reset(options={"task": "2"})[1]["task"] == "2"
    env.close()


def test_web_pages_of_other_sites_are_turned_away(openenv_guess):
    pages = (
        (openenv_guess, True), ("http://localhost:3000", False), ("https://example.org", False)
    )  # fmt: skip
    for page, allowed in pages:
        answer = requests.post(f"{openenv_guess}/reset", headers={"Origin": page}, timeout=60)
        assert (answer.status_code == 200) is allowed
        if allowed:
            with Socket(openenv_guess, origin=page) as socket:
                assert socket.reset(task="1")["type"] == "observation"
        else:
            with pytest.raises(InvalidStatus), Socket(openenv_guess, origin=page):
                pass


def test_the_routes_of_http_open_a_session_each_and_leave_none(openenv_guess):
    def post(path: str, body: object, **options) -> requests.Response:
        return requests.post(openenv_guess + path, json=body, timeout=60, **options)

    first = post("/reset", {"seed": 4, "task": "2"}).json()
    assert first["done"] is False and first["reward"] is None
    assert first["metadata"]["instruction"].startswith("Guess the number")
    same = post("/reset", {"seed": 4, "split": "train", "index": 1, "unknown": 1}).json()
    assert same["observation"]["text"] == first["observation"]["text"]
    won = post("/step", {"action": {"message": "2"}, "task": "2", "timeout_s": 5}).json()
    assert (won["reward"], won["done"]) == (1.0, True)
    assert requests.get(f"{openenv_guess}/state", timeout=60).json()["step_count"] == 0
    assert sessions_become(openenv_guess, 0)
    misfit = post("/step", {"action": {"message": 1}})
    assert misfit.status_code == 422
    assert misfit.json()["detail"][0]["loc"] == ["body", "action", "message"]
    assert post("/step", {}).json()["detail"][0]["type"] == "missing"
    assert post("/reset", {"seed": "x"}).status_code == 422
    assert post("/reset", {"task": "77"}).status_code == 404
    assert post("/nowhere", {}).status_code == 404
    assert post("/schema", {}).status_code == 405
    plain = requests.post(f"{openenv_guess}/reset", data="{}", timeout=60,
                          headers={"Content-Type": "text/plain"})  # fmt: skip
    assert plain.status_code == 415


def test_tasks_are_listed_as_openenv_lists_them(openenv_guess):
    base = f"{openenv_guess}/Guess-v0"

    def post(path: str, **body) -> requests.Response:
        return requests.post(base + path, json=body, timeout=60)

    assert requests.get(f"{openenv_guess}/list_environments", timeout=60).json() == ["Guess-v0"]
    splits = requests.get(f"{base}/splits", timeout=60).json()
    assert splits == [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]
    assert post("/num_tasks", split="test").json() == {"num_tasks": 3}
    nine = {"id": "9", "index": 2, "split": "test", "category": "high"}
    assert post("/task", split="test", index=2).json() == {"task": nine}
    assert post("/task_range", split="test", start=2).json() == {"tasks": [nine]}
    assert [t["id"] for t in post("/tasks", split="train").json()["tasks"]] == list("123456")
    assert post("/task", split="test", index=3).status_code == 400
    assert post("/tasks", split="night").status_code == 404
    assert post("/tasks").status_code == 422
    assert requests.get(f"{openenv_guess}/Other-v0/splits", timeout=60).status_code == 404


def test_json_rpc_is_answered_and_says_that_there_are_no_tools(openenv_guess):
    def rpc(body: str) -> dict:
        return requests.post(f"{openenv_guess}/mcp", data=body, timeout=60,
                             headers={"Content-Type": "application/json"}).json()  # fmt: skip

    assert rpc("{")["error"]["code"] == -32700
    assert rpc("{}")["error"]["code"] == -32600
    listing = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
    assert rpc(json.dumps(listing))["error"]["message"] == "Environment does not support MCP"
    with Socket(openenv_guess, "/mcp") as socket:
        assert socket.ask(listing)["id"] == 7
        assert socket.ask({**listing, "method": "x"})["error"]["code"] == -32601
    with Socket(openenv_guess) as socket:
        answer = socket.ask({"type": "mcp", "data": listing})
        assert answer["type"] == "mcp" and answer["data"]["id"] == 7


@pytest.mark.slow
def test_several_processes_serve_it_together(run):
    words = ("--protocol", "openenv", "--port", "0", "--workers", "2")
    address = run("worlds:Guess", *words).address()
    with ExitStack() as stack:
        sockets = [stack.enter_context(Socket(address)) for _ in range(6)]
        for number, socket in enumerate(sockets, start=1):
            socket.reset(task=str(number))
        for number, socket in enumerate(sockets, start=1):
            assert socket.step(str(number))["data"]["reward"] == 1.0
        assert sessions_become(address, 6)
    assert sessions_become(address, 0)


def test_a_message_above_the_limit_ends_the_connection(served):
    address = served
    with Socket(address) as socket:
        socket.reset(task="1")
        # The end may come, and the rest be refused, before all of it is sent.
        with suppress(ConnectionClosed):
            socket.connection.send(json.dumps({"type": "step", "data": {"message": "x" * 2**20}}))
        assert socket.wait_for_the_end() in (1009, 1006)
    with Socket(address) as socket:
        socket.reset(task="1")
        assert sessions_become(address, 1)
    assert sessions_become(address, 0)


def make(address: str, **kwargs) -> gymnasium.Env:
    return gymnasium.make(OPENENV, server=address.replace("http", "ws"), **kwargs)


def test_our_environment_on_our_server_has_its_tasks_and_seeds(openenv_guess):
    env, native = make(openenv_guess).unwrapped, Guess()
    assert env.tasks.splits == native.tasks.splits
    assert env.instruction == native.instruction
    told = env.reset(seed=11, options={"task": "5"})
    assert told == native.reset(seed=11, options={"task": "5"})
    assert env.available_actions() == native.available_actions()
    assert env.step("4") == native.step("4") and env.step("5") == native.step("5")
    env.close()
    assert sessions_become(openenv_guess, 0)


def test_a_connection_that_breaks_loses_the_episode_and_another_may_begin(openenv_guess):
    env = make(openenv_guess)
    for lost in (True, False):  # in an episode, and between two
        env.reset(options={"task": "5"})
        env.unwrapped._socket._connection.socket.shutdown(sockets.SHUT_RDWR)
        if lost:
            with pytest.raises(EnvironmentLost):
                env.step("5")
            with pytest.raises(EpisodeOver):
                env.step("5")
    env.reset(options={"task": "5"})
    assert env.step("5")[1] == 1.0
    env.close()


def test_an_expired_session_is_lost_and_opened_anew_by_a_reset(speak):
    clock = Clock()
    env = make(speak("openenv", Guess, clock=clock))
    env.reset(options={"task": "5"})
    clock.now += 3600
    with pytest.raises(EnvironmentLost, match="expired"):
        env.step("5")
    env.reset(options={"task": "4"})
    assert env.step("4")[1] == 1.0
    env.close()


def test_what_is_no_openenv_server_is_said_so(serve):
    with pytest.raises(BadRequest, match="ws://host:port"):
        gymnasium.make(OPENENV, server="inprocess")
    with pytest.raises(BadRequest, match="agentgym/OpenEnv-v0"):
        gymnasium.make("tests/Guess-v0", server="ws://127.0.0.1:1")
    with pytest.raises(EnvironmentLost, match="schema does not answer like an OpenEnv server"):
        make(serve().address)
    with pytest.raises(BadRequest, match="vectorization_mode='sync'"):
        gymnasium.make_vec(OPENENV, num_envs=2, server="ws://127.0.0.1:1")
