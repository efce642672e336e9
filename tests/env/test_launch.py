"""Local servers: started once, shared, and gone with their users."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import requests

from agentgym_env import local_server
from agentgym_env.errors import BadRequest, MissingExtra, ServerStartFailed
from hosting import GUESS, TROUBLE, UNMAKEABLE


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # In a container nobody may reap orphans: a zombie has ended too.
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for_end(pid: int, limit_s: float = 15.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if has_ended(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_server_comes_up_answers_and_ends():
    server = local_server(GUESS)
    health = requests.get(server.address + "/health", timeout=5).json()
    assert (health["status"], health["env"]) == ("ok", GUESS)
    server.close()
    server.close()
    assert server.process.poll() is not None


def test_equal_settings_share_one_server_until_the_last_user_closes():
    first, second = local_server(GUESS), local_server(GUESS, {})
    other = local_server(GUESS, {"greeting": "Moin"})
    assert first.process is second.process and other.process is not first.process
    first.close()
    first.close()
    assert second.process.poll() is None
    second.close()
    other.close()
    assert second.process.poll() is not None


def test_a_server_that_died_is_started_again_for_the_next_user():
    first = local_server(GUESS)
    first.process.kill()
    first.process.wait()
    second = local_server(GUESS)
    assert second.process is not first.process and second.process.poll() is None
    first.close()
    assert second.process.poll() is None
    second.close()


def test_a_server_that_cannot_start_tells_why(caplog):
    with pytest.raises(ServerStartFailed, match="cannot be made: ValueError: no such luck"):
        local_server(UNMAKEABLE)
    with pytest.raises(
        BadRequest, match=r"^unknown option colour of .*; available: render_mode, greeting$"
    ):
        local_server(GUESS, {"colour": "red"})
    with pytest.raises(BadRequest, match=r"option legacy of .* is true or false, got 'no'"):
        local_server("agentgym/TextCraft-v0", {"legacy": "no"})
    assert not caplog.messages  # what is raised is not also logged


@pytest.mark.usefixtures("without_java")
def test_a_server_without_what_it_needs_says_what_to_install():
    with pytest.raises(MissingExtra, match=r"^SciWorld needs Java"):
        local_server("agentgym/SciWorld-v0")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"move_limit": 0}, "move_limit is a whole number from 1, got 0"),
        ({"simplifications": 3}, "simplifications are a list of names, got 3"),
    ],
)
def test_an_isolated_world_says_which_setting_is_wrong(settings, message, caplog):
    with pytest.raises(BadRequest, match=f"^{message}$"):
        local_server("agentgym/SciWorld-v0", settings)
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
        "raise SystemExit(0)",
        "raise RuntimeError('crash')",
        "os._exit(3)",
    ],
)
def test_the_server_ends_with_its_parent_however_that_ends(script, worlds_folder):
    with child(script, worlds_folder) as parent:
        pid, _ = json.loads(parent.stdout.readline())
        parent.wait(20)
    assert wait_for_end(pid)


def test_ctrl_c_is_the_parents_alone(worlds_folder):
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
        json.loads(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.readline() == TROUBLE + "\n"
        parent.stdin.close()
        assert parent.wait(20) == 0


def test_a_forked_process_does_not_end_its_parents_server():
    server = local_server(GUESS)
    pid = os.fork()
    if pid == 0:
        server.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert requests.get(server.address + "/health", timeout=5).ok
    server.close()


def test_nothing_but_what_serving_needs_is_imported(worlds_folder):
    script = """
        import sys
        from agentgym_servers import cli as commands
        print(*sys.modules, sep="\\n")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "trl", "datasets"} & set(ran.stdout.split())
