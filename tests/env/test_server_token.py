"""The token of a server: where it comes from, where it is sent, and what errors say."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import pytest
from typer.testing import CliRunner

import agentgym_env
import hosting
from agentgym_env.cli.main import make_app
from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.sync import EnvClient
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError, EnvironmentLost
from agentgym_env.launch import local_server
from agentgym_env.server_token import read_token_file, resolve_token
from agentgym_env.wrappers import RecordTrajectory

SECRET = "s3cret-for-tests"


@contextmanager
def recording(status: int = 404, location: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that notes the Authorization header of each request, and may redirect."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            """Write nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def run(*words: str) -> tuple[int, str]:
    """The exit status of a command, with its output or its error."""
    result = CliRunner().invoke(make_app(words), list(words), input="")
    if isinstance(result.exception, AgentGymError):
        return 2, str(result.exception)
    return result.exit_code, result.output


def test_an_argument_comes_before_the_variable(monkeypatch):
    monkeypatch.setenv("AGENTGYM_TOKEN", " from the variable \n")
    assert resolve_token("given") == "given"
    assert resolve_token(None) == "from the variable"
    assert resolve_token("") is None
    monkeypatch.setenv("AGENTGYM_TOKEN", "")
    assert resolve_token(None) is None


@pytest.mark.parametrize("token", ["a\nb", "é", "a\0"])
def test_a_token_that_is_no_header_is_rejected_without_being_named(monkeypatch, token):
    with pytest.raises(BadRequest, match=r"^token= must be one line of printable ASCII$"):
        resolve_token(token)
    if "\0" not in token:
        monkeypatch.setenv("AGENTGYM_TOKEN", token)
        with pytest.raises(BadRequest, match=r"^AGENTGYM_TOKEN must be"):
            resolve_token(None)


def test_token_files_that_cannot_be_used_are_rejected(tmp_path):
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match=r"cannot read the token file .*No such file"):
        read_token_file(file)
    with pytest.raises(ConfigError, match="cannot read the token file"):
        read_token_file(tmp_path)
    for content, message in ((b" \n", "is empty"), (b"a\nb\n", "one line"), (b"\xff", "one line")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_token_file(file)
    file.write_bytes(b"\n secret \n")
    assert read_token_file(file) == "secret"


def test_a_missing_token_and_a_wrong_one_have_different_errors(serve):
    server = serve(token=SECRET)
    missing = "the server requires a token: pass token=, --token-file or AGENTGYM_TOKEN"
    with pytest.raises(BadRequest, match=missing) as caught:
        gymnasium.make(hosting.GUESS, server=server.address)
    assert caught.value.code == "unauthorized"
    assert server.address in str(caught.value)
    with pytest.raises(BadRequest, match="the server rejected this token") as caught:
        gymnasium.make(hosting.GUESS, server=server.address, token="another")
    assert caught.value.code == "unauthorized"
    assert "another" not in str(caught.value)


def test_gym_make_and_make_vec_use_the_argument_or_the_variable(serve, monkeypatch):
    server = serve(token=SECRET)
    monkeypatch.setenv("AGENTGYM_TOKEN", "wrong")
    with gymnasium.make(hosting.GUESS, server=server.address, token=SECRET) as env:
        env.reset(seed=0)
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    with gymnasium.make(hosting.GUESS, server=server.address) as env:
        env.reset(seed=0)
    envs = gymnasium.make_vec(hosting.GUESS, num_envs=2, server=server.address)
    envs.reset(seed=0)
    envs.close()
    with gymnasium.make(hosting.GUESS, server="inprocess", token="unused") as env:
        env.reset(seed=0)


def test_a_redirect_is_not_followed_and_the_token_stays(monkeypatch):
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    with (
        recording() as (target, seen_there),
        recording(302, target) as (address, seen),
        EnvClient(address) as client,
        pytest.raises(EnvironmentLost, match="status 302"),
    ):
        client.card()
    assert seen == [f"Bearer {SECRET}"]
    assert seen_there == []


async def redirected(address: str) -> None:
    client = AsyncEnvClient(address)
    try:
        await client.card()
    finally:
        await client.close()


def test_an_asynchronous_client_follows_no_redirect_either(monkeypatch):
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    with (
        recording() as (target, seen_there),
        recording(302, target) as (address, seen),
        pytest.raises(EnvironmentLost, match="status 302"),
    ):
        asyncio.run(redirected(address))
    assert (seen, seen_there) == ([f"Bearer {SECRET}"], [])


def test_an_entry_of_netrc_does_not_replace_the_token(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 0.0.0.0 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with recording() as (address, seen):
        # Not an address of the loopback interface, for which netrc is not read.
        elsewhere = address.replace("127.0.0.1", "0.0.0.0")
        with EnvClient(elsewhere, token=SECRET) as client, pytest.raises(EnvironmentLost):
            client.card()
    assert seen == [f"Bearer {SECRET}"]


def test_local_servers_are_sent_no_token(monkeypatch):
    sent: list[str | None] = []
    make = agentgym_env.client.sync.HttpTransport

    def note(address: str, *, token: str | None, **settings: float) -> object:
        sent.append(token)
        return make(address, token=token, **settings)

    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    monkeypatch.setattr(agentgym_env.client.sync, "HttpTransport", note)
    with gymnasium.make(hosting.GUESS) as env:
        env.reset(seed=0)
        # The same server, connected to by its address.
        with local_server(hosting.GUESS) as server, EnvClient(server.address):
            pass
    assert sent == [None, SECRET]


@pytest.mark.parametrize(
    ("env_id", "scheme"),
    [("agentgym/OpenEnv-v0", "ws"), ("agentgym/TextCraft-v0", "agentgym+http")],
)
def test_servers_of_other_frameworks_are_sent_an_argument_and_never_the_variable(
    monkeypatch, env_id, scheme
):
    monkeypatch.setenv("AGENTGYM_TOKEN", "of the variable")
    for token, expected in ((None, ""), (SECRET, f"Bearer {SECRET}")):
        with recording() as (address, seen):
            server = address.replace("http", scheme, 1)
            with (
                pytest.raises(AgentGymError),
                gymnasium.make(env_id, server=server, token=token) as env,
            ):
                env.reset(seed=0)
        assert set(seen) == {expected}


def test_play_reads_the_token_file_before_the_variable(serve, monkeypatch, tmp_path):
    server = serve(token=SECRET)
    file = tmp_path / "token"
    file.write_text(SECRET)
    words = ("play", hosting.GUESS, "--server", server.address)
    status, output = run(*words)
    assert status == 2
    assert "the server requires a token" in output
    monkeypatch.setenv("AGENTGYM_TOKEN", "wrong")
    status, output = run(*words)
    assert status == 2
    assert "the server rejected this token" in output
    status, output = run(*words, "--token-file", str(file))
    assert (status, SECRET in output) == (0, False), output
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    assert run(*words)[0] == 0


@pytest.mark.parametrize(
    "words", [("play", hosting.GUESS), ("bench", hosting.GUESS)], ids=["play", "bench"]
)
def test_a_token_file_without_a_server_is_rejected(tmp_path, words):
    file = tmp_path / "token"
    file.write_text(SECRET)
    status, output = run(*words, "--token-file", str(file))
    assert status == 2
    assert "--token-file needs --server ADDRESS" in output


def test_bench_measures_a_server_with_a_token(serve, monkeypatch, tmp_path):
    server = serve(token=SECRET)
    words = ("bench", hosting.GUESS, "--server", server.address)
    short = ("--seconds", "0.05", "--concurrency", "2")
    assert "the server requires a token" in run(*words, *short)[1]
    file = tmp_path / "token"
    file.write_text(SECRET)
    report = tmp_path / "report.json"
    status, output = run(*words, *short, "--token-file", str(file), "--json", str(report))
    assert (status, SECRET in output + report.read_text()) == (0, False), output


def test_replay_repeats_an_episode_on_a_server_with_a_token(serve, monkeypatch, tmp_path):
    episodes = tmp_path / "trajectories" / "recorded.jsonl"
    with RecordTrajectory(gymnasium.make(hosting.GUESS, server="inprocess"), episodes) as env:
        env.reset(seed=3)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step("nothing")
            ended = terminated or truncated
    server = serve(token=SECRET)
    words = ("replay", str(episodes), "--server", server.address, "--trust")
    assert "the server requires a token" in run(*words)[1]
    file = tmp_path / "token"
    file.write_text(SECRET)
    status, output = run(*words, "--token-file", str(file))
    assert status == 0, output
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    assert run(*words)[0] == 0
