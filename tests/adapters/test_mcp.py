"""MCP, with the official SDK, unmodified: its client on our server, and its server as ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import requests
from native_road import TEXTCRAFT, expert_episodes

from agentgym_adapters.function_calls import FunctionCall
from agentgym_env import TaskSet
from agentgym_env.errors import BadRequest, EnvironmentFault, EnvironmentLost, EpisodeOver
from agentgym_env.registry import env_class
from hosting import Clock, sessions_become
from worlds import Guess, Trouble

pytest.importorskip("mcp", reason="needs the SDK of MCP: the extra `mcp`")

import mcp
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from agentgym_adapters.mcp_tools import McpTools

EPISODES = expert_episodes(6)
CALCULATOR = (sys.executable, str(Path(__file__).parent / "calculator_server.py"))


@asynccontextmanager
async def client(address: str):
    """The SDK's client, initialized; results as on the wire."""
    async with (
        streamable_http_client(f"{address}/mcp") as streams,
        ClientSession(*streams[:2]) as session,
    ):
        told = await session.initialize()
        yield _Wire(session, told.model_dump(mode="json", by_alias=True))


class _Wire:
    """Reads both versions of the SDK alike."""

    def __init__(self, session: ClientSession, told: dict) -> None:
        self._session = session
        self.told = told

    async def tools(self) -> list[dict]:
        listed = await self._session.list_tools()
        return listed.model_dump(mode="json", by_alias=True)["tools"]

    async def call(self, name: str, **arguments) -> dict:
        result = await self._session.call_tool(name, arguments)
        return result.model_dump(mode="json", by_alias=True)


@pytest.fixture(autouse=True)
def _servers_need_version_2(request):
    if "speak" in request.fixturenames and not hasattr(mcp, "Client"):
        pytest.skip("`--protocol mcp` needs version 2 of the SDK")


@pytest.fixture(params=["here", pytest.param("command", marks=pytest.mark.slow)])
def textcraft(request, speak):
    """The address of a server of this process, and of the command's."""
    if request.param == "command":
        run = request.getfixturevalue("run")
        return run("textcraft", "--protocol", "mcp", "--port", "0").address()
    return speak("mcp", env_class(TEXTCRAFT), env_id=TEXTCRAFT)


async def test_their_client_plays_expert_episodes_as_the_native_road_does(textcraft):
    async with client(textcraft) as tools:
        for episode in EPISODES:
            told = await tools.call("reset", task=episode.task, seed=episode.seed)
            assert told["structuredContent"]["observation"] == episode.first
            assert told["content"][0]["text"] == episode.first
            results = [await tools.call("step", action=action) for action in episode.actions]
            assert not any(result["isError"] for result in results)
            steps = [result["structuredContent"] for result in results]
            assert [step["reward"] for step in steps] == list(episode.rewards)
            assert [step["observation"] for step in steps] == list(episode.observations)
            ends = [(step["terminated"], step["truncated"]) for step in steps]
            assert ends == [(False, False)] * (len(steps) - 1) + [(True, False)]
            assert steps[-1]["info"]["success"] is True
            assert "The episode has ended" in results[-1]["content"][-1]["text"]
        assert sessions_become(textcraft, 1)
    # The SDK's client took its leave, and that ended the session.
    assert sessions_become(textcraft, 0)


async def test_the_tools_have_schemas_and_are_told_of(speak):
    address = speak("mcp", Guess)
    async with client(address) as tools:
        assert tools.told["instructions"].startswith("Guess the number")
        listed = {tool["name"]: tool for tool in await tools.tools()}
        assert set(listed) == {"reset", "step", "available_actions"}
        assert listed["step"]["inputSchema"]["required"] == ["action"]
        assert listed["reset"]["inputSchema"]["properties"]["split"]["enum"] == ["train", "test"]
        assert all(tool["outputSchema"]["required"] for tool in listed.values())
        # Nobody who only looks takes a session.
        assert sessions_become(address, 0)
        await tools.call("reset", task="5")
        told = await tools.call("available_actions")
        assert told["structuredContent"] == {"actions": list("123456789")}


async def test_what_a_model_may_put_right_is_in_band(speak):
    async with client(speak("mcp", Guess)) as tools:
        assert "call reset" in (await refused(tools, "step", action="5"))
        assert "did you mean" in (await refused(tools, "reset", task="55"))
        assert "no split" in (await refused(tools, "reset", split="night"))
        assert "seed" in (await refused(tools, "reset", seed=-1))
        await tools.call("reset", task="5")
        assert "action" in (await refused(tools, "step"))
        assert "loud" in (await refused(tools, "step", action="5", loud=True))
        assert (await tools.call("step", action="5"))["structuredContent"]["reward"] == 1.0
        assert "reset" in (await refused(tools, "step", action="5"))
        assert "reset" in (await refused(tools, "available_actions"))


async def refused(tools: _Wire, name: str, **arguments) -> str:
    result = await tools.call(name, **arguments)
    assert result["isError"] is True
    return result["content"][0]["text"]


async def test_what_is_nobodys_doing_is_an_error_of_the_protocol(speak):
    async with client(speak("mcp", Trouble)) as tools:
        with pytest.raises(Exception, match="did not start") as broken:
            await tools.call("reset", task="broken")
        assert broken.value.error.code == -32603
        assert broken.value.error.data == {"code": "environment_error"}
        await tools.call("reset", task="fine")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await tools.call("step", action="raise")
        with pytest.raises(Exception, match="Unknown tool: dance") as unknown:
            await tools.call("dance")
        assert unknown.value.error.code == -32602


async def test_a_full_server_and_an_idle_session(speak):
    clock = Clock()
    address = speak("mcp", Guess, max_sessions=1, clock=clock)
    async with client(address) as one:
        await one.call("reset", task="1")
        async with client(address) as other:
            with pytest.raises(Exception, match="all 1 sessions are taken") as full:
                await other.call("reset", task="1")
            assert full.value.error.data == {"code": "too_many_sessions"}
        # Nobody closes it: it ends by itself.
        clock.now += 3600
        assert sessions_become(address, 0)


def post(address: str, body: object, **headers: str) -> requests.Response:
    data = body if isinstance(body, str) else json.dumps(body)
    fields = {"Content-Type": "application/json", **headers}
    return requests.post(f"{address}/mcp", data=data, headers=fields, timeout=60)


def test_malformed_messages_get_json_rpcs_errors(speak):
    address = speak("mcp", Guess)
    for body, code in (("{", -32700), ("[]", -32600), ('{"method": "ping"}', -32600),
                       ('{"jsonrpc": "1.0", "method": "ping", "id": 1}', -32600)):  # fmt: skip
        answer = post(address, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    begun = post(address, {**opening, "params": {"protocolVersion": "2024-11-05"}})
    assert begun.json()["result"]["protocolVersion"] == "2024-11-05"
    assert post(address, opening).json()["result"]["protocolVersion"] == "2025-11-25"
    session = {"Mcp-Session-Id": begun.headers["Mcp-Session-Id"]}
    ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
    assert post(address, ping, **session).json() == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert post(address, ping).status_code == 400
    assert post(address, ping, **{"Mcp-Session-Id": "mine"}).status_code == 404
    assert post(address, ping, **session, **{"MCP-Protocol-Version": "1999"}).status_code == 400
    assert post(address, {**ping, "method": "sing"}, **session).json()["error"]["code"] == -32601
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"arguments": {}}}
    assert post(address, call, **session).json()["error"]["code"] == -32602
    noted = post(address, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
    assert (noted.status_code, noted.content) == (202, b"")
    assert post(address, ping, Origin="https://example.org", **session).status_code == 403
    assert requests.get(f"{address}/mcp", headers=session, timeout=60).status_code == 405
    ended = requests.delete(f"{address}/mcp", headers=session, timeout=60)
    again = requests.delete(f"{address}/mcp", headers=session, timeout=60)
    assert (ended.status_code, again.status_code) == (200, 404)
    assert post(address, ping, **session).status_code == 404


async def test_the_sdks_newest_client_plays_by_the_handshake_too(speak):
    async with mcp.Client(f"{speak('mcp', Guess)}/mcp", mode="legacy") as older:
        assert len((await older.list_tools()).tools) == 3
        await older.call_tool("reset", {"task": "5"})
        told = await older.call_tool("step", {"action": "5"})
        assert told.structured_content["reward"] == 1.0


async def test_without_sessions_reset_names_the_episode(speak):
    address = speak("mcp", Guess)
    async with mcp.Client(f"{address}/mcp") as newest:
        assert newest.session.protocol_version == "2026-07-28"
        listed = {tool.name: tool for tool in (await newest.list_tools()).tools}
        assert listed["step"].input_schema["required"] == ["action", "episode"]
        assert listed["reset"].output_schema["required"] == ["observation", "info", "episode"]
        assert sessions_become(address, 0)
        names = [await begun(newest, task) for task in ("5", "7")]
        assert len(set(names)) == 2 and sessions_become(address, 2)
        for name, guess, reward in zip(names, ("5", "5"), (1.0, 0.0), strict=True):
            told = await newest.call_tool("step", {"action": guess, "episode": name})
            assert told.structured_content["reward"] == reward
        # A reset of the same name goes on in the same session of the host.
        again = await newest.call_tool("reset", {"task": "3", "episode": names[0]})
        assert again.structured_content["episode"] == names[0]
        told = await newest.call_tool("available_actions", {"episode": names[0]})
        assert told.structured_content == {"actions": list("123456789")}
        assert sessions_become(address, 2)


async def test_without_sessions_close_ends_an_episode(speak):
    address = speak("mcp", Guess)
    async with mcp.Client(f"{address}/mcp") as newest:
        listed = {tool.name: tool for tool in (await newest.list_tools()).tools}
        assert listed["close"].input_schema["required"] == ["episode"]
        first, second = [await begun(newest, task) for task in ("5", "7")]
        assert sessions_become(address, 2)
        told = await newest.call_tool("close", {"episode": first})
        assert told.structured_content == {"closed": True}
        assert sessions_become(address, 1)
        for tool, arguments in (("step", {"action": "5"}), ("close", {})):
            gone = await newest.call_tool(tool, {**arguments, "episode": first})
            assert gone.is_error and "unknown or expired" in gone.content[0].text
        wrong = await newest.call_tool("close", {"episode": second, "loud": True})
        assert wrong.is_error and "loud" in wrong.content[0].text
        # An episode that has ended has its session still, until it is closed.
        told = await newest.call_tool("step", {"action": "7", "episode": second})
        assert told.structured_content["terminated"] and sessions_become(address, 1)
        assert (await newest.call_tool("close", {"episode": second})).is_error is False
        assert sessions_become(address, 0)
    async with mcp.Client(f"{address}/mcp", mode="legacy") as older:
        assert "close" not in {tool.name for tool in (await older.list_tools()).tools}
        with pytest.raises(Exception, match="Unknown tool: close"):
            await older.call_tool("close", {"episode": first})


async def begun(client: mcp.Client, task: str) -> str:
    told = await client.call_tool("reset", {"task": task})
    name = told.structured_content["episode"]
    assert told.content[-1].text == f"episode: {name}"
    return name


async def test_without_sessions_what_a_model_may_put_right_is_in_band(speak):
    address = speak("mcp", Guess)
    async with mcp.Client(f"{address}/mcp") as newest:
        for tool, arguments, words in (
            ("step", {"action": "5"}, "takes the episode that reset returned"),
            ("available_actions", {}, "takes the episode that reset returned"),
            ("step", {"action": "5", "episode": "mine"}, "unknown or expired"),
            ("reset", {"episode": "mine"}, "unknown or expired"),
            ("reset", {"episode": 3}, "unknown or expired"),
            ("reset", {"task": "55"}, "did you mean"),
            ("reset", {"seed": -1}, "seed"),
        ):
            told = await newest.call_tool(tool, arguments)
            assert told.is_error and words in told.content[0].text
        # A reset that failed leaves no session behind.
        assert sessions_become(address, 0)


async def test_without_sessions_a_full_server_and_an_idle_episode(speak):
    clock = Clock()
    address = speak("mcp", Guess, max_sessions=1, ttl_s=0.5, clock=clock)
    async with mcp.Client(f"{address}/mcp") as newest:
        name = await begun(newest, "1")
        with pytest.raises(Exception, match="all 1 sessions are taken") as full:
            await newest.call_tool("reset", {"task": "1"})
        assert full.value.error.data == {"code": "too_many_sessions"}
        clock.now += 1
        assert sessions_become(address, 0)
        await asyncio.sleep(0.6)  # the endpoint forgets the name by a clock of its own
        told = await newest.call_tool("step", {"action": "5", "episode": name})
        assert told.is_error and "call reset" in told.content[0].text


async def test_without_sessions_a_worlds_fault_is_an_error_of_the_protocol(speak):
    address = speak("mcp", Trouble)
    async with mcp.Client(f"{address}/mcp") as newest:
        with pytest.raises(Exception, match="did not start") as broken:
            await newest.call_tool("reset", {"task": "broken"})
        assert broken.value.error.code == -32603
        assert broken.value.error.data == {"code": "environment_error"}
        assert sessions_become(address, 0)
        with pytest.raises(Exception, match="Unknown tool: dance"):
            await newest.call_tool("dance", {})


def test_a_call_without_sessions_is_one_post(speak):
    address = speak("mcp", Guess)
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "reset",
    }
    call = {"name": "reset", "arguments": {"task": "5"}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = post(address, body, **headers)
    assert answer.status_code == 200 and "Mcp-Session-Id" not in answer.headers
    assert answer.json()["result"]["structuredContent"]["episode"]
    assert answer.json()["result"]["resultType"] == "complete"
    # The headers that route a call must say what its body says.
    assert post(address, body, **{**headers, "Mcp-Name": "step"}).status_code == 400
    ended = requests.delete(f"{address}/mcp", headers=headers, timeout=60)
    assert (ended.status_code, ended.headers["Allow"]) == (405, "POST")


def test_a_missing_sdk_names_the_extra():
    done = subprocess.run(
        [sys.executable, "-c",
         "import sys; sys.modules['mcp'] = None\n"
         "from agentgym_servers.host.protocols.dispatch import check_protocol\n"
         "from agentgym_servers.host.settings import ServeSettings\n"
         "check_protocol(ServeSettings(env_id='x/Y-v0', entry_point='x:Y', protocol='nemo-gym'))\n"
         "check_protocol(ServeSettings(env_id='x/Y-v0', entry_point='x:Y', protocol='mcp'))"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "line 5" in done.stderr and "MissingExtra: " in done.stderr
    assert "pip install 'agentgym-sdk[serve,mcp]'" in done.stderr


class TextCraftTools(McpTools):
    """TextCraft behind its own MCP server: the rewards are those that the server tells."""

    instruction = "Craft what the goal says."
    tasks = TaskSet({"train": [episode.task for episode in EPISODES]})
    hidden = frozenset({"reset"})

    def _begin(self, task: str) -> str:
        return self.call_tool("reset", {"task": task, "seed": self.episode_seed}).text

    def _called(self, call, result) -> tuple[float, bool]:
        if call.name != "step":
            return 0.0, False
        return result.structured["reward"], result.structured["terminated"]


def test_our_environment_on_a_tool_server_is_paid_as_the_native_road(textcraft):
    env = TextCraftTools(server=f"{textcraft}/mcp")
    assert '"step"' in env.instruction and '"reset"' not in env.instruction
    for episode in EPISODES:
        observation, _ = env.reset(seed=episode.seed, options={"task": episode.task})
        assert observation == episode.first
        calls = [FunctionCall("step", {"action": action}).render() for action in episode.actions]
        steps = [env.step(call) for call in calls]
        assert [step[1] for step in steps] == list(episode.rewards)
        assert [step[0] for step in steps[:-1]] == list(episode.observations[:-1])
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1][4]["success"] is True
    env.close()
    assert sessions_become(textcraft, 0)


class Calculator(McpTools):
    """Sums, worked out with the SDK's own server."""

    instruction = "Work out the task with the tools. Then write the number."
    tasks = TaskSet({"train": ["2 + 2", "1 / 4"]})
    server = CALCULATOR

    def _begin(self, task: str) -> str:
        return f"What is {task}?"

    def _answered(self, text: str) -> tuple[str, float]:
        return "Thank you.", float(text.strip() == {"2 + 2": "4", "1 / 4": "0.25"}[self.task])


def test_a_tool_server_of_somebody_else_over_stdio_is_started_for_each_episode():
    env = Calculator()
    assert env.reset(options={"task": "1 / 4"})[0] == "What is 1 / 4?"
    remember = '{"name": "remember", "arguments": {"number": 7}}'
    assert [env.step(remember)[0] for _ in "12"] == ["kept 1", "kept 2"]
    assert env.step('{"name": "divide", "arguments": {"a": 1, "b": 4}}')[0] == "0.25"
    told = env.step(
        'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    )
    assert float(told[0]) == 3 and told[1:4] == (0.0, False, False)
    wrong_calls_are_observations(env)
    assert env.step("0.25")[:4] == ("Thank you.", 1.0, True, False)
    assert env.reset(options={"task": "2 + 2"})[0] == "What is 2 + 2?"
    assert env.step(remember)[0] == "kept 1"
    with pytest.raises(EnvironmentLost, match="is gone"):
        env.step('{"name": "die", "arguments": {}}')
    with pytest.raises(EpisodeOver):
        env.step("4")
    env.reset(options={"task": "2 + 2"})
    assert env.step("5")[1] == 0.0
    env.close()


def wrong_calls_are_observations(env: Calculator) -> None:
    for action, told in {
        '{"name": "divide", "arguments": {"a": 1, "b": 0}}': "Error executing tool divide",
        '{"name": "divide", "arguments": {"a": 1}}': "b",
        '{"name": "divide", "arguments": {"a": 1, "b": "x"}}': "b",
        '{"name": "multiply", "arguments": {}}': "no function 'multiply'; there are add",
        '{"name": "divide", "arguments": 3}': "arguments are not an object",
        '{"arguments": {}}': "names no function",
        '{"name": ': "is no JSON",
        "<tool_call>{}</tool_call><tool_call>{}</tool_call>": "There are 2 calls",
    }.items():
        observation, *rest = env.step(action)
        assert told in observation, (action, observation)
        assert rest[:3] == [0.0, False, False]


def test_a_server_that_is_not_there_is_an_environment_lost():
    with pytest.raises(EnvironmentLost, match="is gone"):
        Calculator(server="http://127.0.0.1:9/mcp")
    with pytest.raises(EnvironmentLost, match="is gone"):
        Calculator(server=[sys.executable, "-c", "pass"])
    with pytest.raises(BadRequest, match="needs the address of an MCP server"):
        Calculator(server="")


def test_a_worlds_fault_behind_the_tools_is_a_fault(speak):
    class TroubleTools(TextCraftTools):
        tasks = TaskSet({"train": ["fine", "broken"]})

    env = TroubleTools(server=f"{speak('mcp', Trouble)}/mcp")
    with pytest.raises(EnvironmentFault, match="did not start"):
        env.reset(options={"task": "broken"})
    env.reset(options={"task": "fine"})
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError"):
        env.step(FunctionCall("step", {"action": "raise"}).render())
    env.close()


def test_a_token_is_a_header(speak):
    address = f"{speak('mcp', Guess, token='secret')}/mcp"
    with pytest.raises(EnvironmentLost):
        TextCraftTools(server=address)
    env = TextCraftTools(server=address, headers={"Authorization": "Bearer secret"})
    assert set(env.tools) == {"reset", "step", "available_actions"}
    env.close()
