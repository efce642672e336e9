"""Local servers: started once, shared, and gone with their users."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import requests

from agentgym_env import local_server
from agentgym_env.errors import (
    BadRequest,
    ConfigError,
    EnvironmentLost,
    MissingExtra,
    ServerStartFailed,
    UnknownEnvironment,
)
from agentgym_env.launch import failure_report, reported_failure
from hosting import GUESS, TROUBLE, UNMAKEABLE
from waiting import until


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # In a container nobody may reap orphans: a zombie has ended too.
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_equal_settings_share_one_server_which_is_replaced_when_it_died():
    # Other tests of this process may hold a server with the default settings.
    settings = {"greeting": "Moin"}
    first, second = local_server(GUESS, settings), local_server(GUESS, dict(settings))
    assert first.process is second.process
    health = requests.get(first.address + "/health", timeout=60).json()
    assert (health["status"], health["env"]) == ("ok", GUESS)
    first.close()
    first.close()
    forked = os.fork()
    if forked == 0:
        second.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert requests.get(second.address + "/health", timeout=60).ok, "it has a user left"
    second.process.kill()
    second.process.wait()
    third, fourth = local_server(GUESS, settings), local_server(GUESS, settings)
    assert third.process is fourth.process is not second.process
    second.close()
    third.close()
    assert third.process.poll() is None
    fourth.close()
    assert third.process.poll() is not None


def test_a_server_that_cannot_start_tells_why(caplog):
    with pytest.raises(ServerStartFailed, match="cannot be made: ValueError: no such luck"):
        local_server(UNMAKEABLE)
    with pytest.raises(
        BadRequest, match=r"^unknown option colour of .*; available: render_mode, greeting$"
    ):
        local_server(GUESS, {"colour": "red"})
    assert not caplog.messages  # what is raised is not also logged


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest, BadRequest),
        (ConfigError, BadRequest),
        (MissingExtra, MissingExtra),
        (UnknownEnvironment, UnknownEnvironment),
        (EnvironmentLost, ServerStartFailed),
    ],
)
def test_an_error_of_a_servers_process_is_raised_as_one_of_its_kind(error, kind):
    raised = reported_failure(json.loads(json.dumps(failure_report(error("no")))))
    assert type(raised) is kind and str(raised) == "no"


def test_an_isolated_world_says_which_setting_is_wrong(caplog):
    with pytest.raises(BadRequest, match="move_limit is a whole number from 1, got 0"):
        local_server("agentgym/SciWorld-v0", {"move_limit": 0})
    assert not caplog.messages


def test_settings_that_cannot_travel_are_refused():
    with pytest.raises(BadRequest, match="must be JSON"):
        local_server(GUESS, {"greeting": object()})


def child(script: str, folder: Path) -> subprocess.Popen[str]:
    """A process that starts a local server, says its pid, and goes on with `script`."""
    head = f"""
        import json, os, signal, sys
        sys.path.insert(0, {str(folder)!r})
        import agentgym_env
        agentgym_env.register({TROUBLE!r}, "worlds:Trouble")
        server = agentgym_env.local_server({TROUBLE!r})
        print(json.dumps([server.process.pid, server.address]), flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        pytest.param("raise SystemExit(0)", marks=pytest.mark.slow),
        pytest.param("raise RuntimeError('crash')", marks=pytest.mark.slow),
        pytest.param("os._exit(3)", marks=pytest.mark.slow),
    ],
)
def test_the_server_ends_with_its_parent_however_that_ends(script, worlds_folder):
    with child(script, worlds_folder) as parent:
        pid, _ = json.loads(parent.stdout.readline())
        parent.wait(120)
    until(lambda: has_ended(pid))


def test_ctrl_c_is_the_parents_alone_and_the_server_ends_with_it(worlds_folder):
    script = """
        try:
            # A process started in the background of a shell ignores it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("ready", flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            print(agentgym_env.EnvClient(server.address).card().env, flush=True)
    """
    with child(script, worlds_folder) as parent:
        pid, _ = json.loads(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == TROUBLE + "\n"
        parent.stdin.close()
        assert parent.wait(120) == 0
    until(lambda: has_ended(pid))


def test_nothing_but_what_serving_needs_is_imported():
    script = "import sys, agentgym_servers.cli; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in ran.stdout.split()}
    assert "uvicorn" in modules
    assert not modules & {"torch", "transformers", "trl", "datasets"}
    # Each costs a tenth of a second or more at the start of every server.
    assert not modules & {"aiohttp", "requests", "rich", "mcp", "websockets", "starlette", "ray"}
