"""Steps against servers that are killed and stopped, each compared with the same step in-process.

python tests/support/soaking.py --steps 300000 --record benchmarks/fault_soak.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agentgym_env import EnvClient
from agentgym_env.errors import EpisodeFailure
from agentgym_env.launch import free_port
from agentgym_servers.worlds.textcraft.env import TextCraft
from hosting import Served
from processes import workers_of
from waiting import port_is_free, until

SUPPORT = Path(__file__).parent
MAX_TURNS = 20


class Servers:
    """Servers on ports that stay theirs; each fault is one method."""

    def __init__(self, count: int, workers: int) -> None:
        self._workers = workers
        self.ports = [free_port("127.0.0.1") for _ in range(count)]
        self.running = [self._start(port) for port in self.ports]
        for served in self.running:
            served.address()

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def kill_worker(self, draw: random.Random) -> None:
        """End a worker by force."""
        with suppress(psutil.NoSuchProcess):
            self._worker(draw).kill()

    def stop_worker(self, draw: random.Random) -> None:
        """Stop a worker for ever: the supervisor must replace it."""
        with suppress(psutil.NoSuchProcess):
            self._worker(draw).suspend()

    def pause_worker(self, draw: random.Random) -> None:
        """Stop a worker, but not for long."""
        with suppress(psutil.NoSuchProcess):
            worker = self._worker(draw)
            worker.suspend()
            time.sleep(draw.uniform(0, 2))
            worker.resume()

    def kill_server(self, draw: random.Random) -> None:
        """End a server by force, and start another on its port."""
        self._restart(draw, signal.SIGKILL)

    def end_server(self, draw: random.Random) -> None:
        """End a server in order, and start another on its port."""
        self._restart(draw, signal.SIGTERM)

    def pause_server(self, draw: random.Random) -> None:
        """Stop a server's first process; its workers serve on."""
        served = draw.choice(self.running)
        served.process.send_signal(signal.SIGSTOP)
        time.sleep(draw.uniform(0, 2))
        served.process.send_signal(signal.SIGCONT)

    def close(self) -> list[int]:
        """End all servers; the ports that cannot be used then."""
        for served in self.running:
            served.stop()
        return [port for port in self.ports if not port_is_free(f"http://127.0.0.1:{port}")]

    def _worker(self, draw: random.Random) -> psutil.Process:
        workers = workers_of(draw.choice(self.running).process)
        if not workers:
            raise psutil.NoSuchProcess(0)
        return draw.choice(workers)

    def _restart(self, draw: random.Random, how: int) -> None:
        place = draw.randrange(len(self.running))
        self.running[place].stop(how)
        until(lambda: port_is_free(self.addresses[place]), f"port {self.ports[place]} stays in use")
        self.running[place] = self._start(self.ports[place])
        self.running[place].address()

    def _start(self, port: int) -> Served:
        return Served(SUPPORT, "textcraft", "--port", str(port), "--workers", str(self._workers))


FAULTS: dict[str, Callable[[Servers, random.Random], None]] = {
    name: getattr(Servers, name)
    for name in (
        "kill_worker", "stop_worker", "pause_worker", "kill_server", "end_server", "pause_server",
    )
}  # fmt: skip


class Faults(threading.Thread):
    """Does one fault after another, until it is ended."""

    def __init__(self, servers: Servers, seed: int, every_s: tuple[float, float]) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._servers = servers
        self._draw = random.Random(seed)
        self._every_s = every_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Do faults, each kind as often."""
        kinds: list[str] = []
        try:
            while not self._ended.wait(self._draw.uniform(*self._every_s)):
                kinds = kinds or self._draw.sample(list(FAULTS), len(FAULTS))
                kind = kinds.pop()
                FAULTS[kind](self._servers, self._draw)
                self.done[kind] += 1
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Let the last fault end; raises what one of them raised."""
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error


@dataclass
class Told:
    """What came of it."""

    steps: int = 0
    episodes: int = 0
    solved: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


class Mirror:
    """One episode on a server, and the same in this process."""

    def __init__(self, seed: int) -> None:
        self.world = TextCraft()
        self.session: Any = None
        self.over = True
        self._draw = random.Random(seed)
        self._expert = False

    def begin(self) -> tuple[int, str]:
        """The seed and task of the next episode."""
        self._expert = self._draw.random() < 0.5
        self.task = self._draw.choice(self.world.tasks.split("train"))
        self.seed = self._draw.randrange(2**31)
        return self.seed, self.task

    def started(self, observation: str) -> str:
        """Start the mirror; what differs."""
        mine, _ = self.world.reset(seed=self.seed, options={"task": self.task})
        self.over, self.turns = False, 0
        return "" if mine == observation else f"{self.task}: {observation!r} is not {mine!r}"

    def act(self) -> str:
        """The next action: the expert's, or one of many forms."""
        expert = self.world.expert_action() if self._expert else None
        if expert is not None:
            return expert
        noun = self._draw.choice(("oak log", "stick", "planks", "\u00e9\u4e16", "x" * 300, ""))
        verb = self._draw.choice(("get 1 {}", "craft 4 {} using 1 oak log", "inventory", "{}"))
        return verb.format(noun)

    def compare(self, action: str, reply: Any) -> str:
        """Take the same step; what differs."""
        mine = self.world.step(action)
        self.turns += 1
        theirs = (reply.observation, reply.reward, reply.terminated)
        self.over = mine[2] or self.turns == MAX_TURNS
        return "" if mine[:3] == theirs else f"{self.task} {action!r}: {theirs} is not {mine[:3]}"


def soak(
    steps: int, count: int, servers: Servers, seed: int = 0,
    every_s: tuple[float, float] = (0.5, 2.0),
) -> tuple[Told, Counter[str], list[int]]:  # fmt: skip
    """Play until so many steps are compared and each fault was done; then end the servers."""
    told = Told()
    mirrors = [Mirror(seed * 1000 + i) for i in range(count)]
    faults = Faults(servers, seed, every_s)
    with EnvClient(servers.addresses, timeout_s=60, retries=5) as client:
        faults.start()
        try:
            while told.steps < steps or len(faults.done) < len(FAULTS):
                assert faults.error is None, faults.error
                began = time.monotonic()
                _reset(client, [mirror for mirror in mirrors if mirror.over], told)
                _step(client, [mirror for mirror in mirrors if not mirror.over], told)
                told.slowest_s = max(told.slowest_s, time.monotonic() - began)
        finally:
            faults.end()
        client.close_many([mirror.session for mirror in mirrors if mirror.session])
    return told, faults.done, servers.close()


def _reset(client: EnvClient, mirrors: list[Mirror], told: Told) -> None:
    for mirror in mirrors:
        if mirror.session is None:
            try:
                mirror.session = client.open()
            except EpisodeFailure as error:
                told.lost[f"open: {error.kind}"] += 1
    ready = [mirror for mirror in mirrors if mirror.session is not None]
    asked = [(mirror.session, *mirror.begin(), None) for mirror in ready]
    for mirror, reply in zip(ready, client.reset_many(asked), strict=True):
        if _is_lost(mirror, reply, told, "reset"):
            continue
        told.episodes += 1
        _note(told, mirror.started(reply.observation))


def _step(client: EnvClient, mirrors: list[Mirror], told: Told) -> None:
    actions = [mirror.act() for mirror in mirrors]
    asked = [(mirror.session, action) for mirror, action in zip(mirrors, actions, strict=True)]
    for mirror, action, reply in zip(mirrors, actions, client.step_many(asked), strict=True):
        if _is_lost(mirror, reply, told, "step"):
            continue
        told.steps += 1
        _note(told, mirror.compare(action, reply))
        told.solved += mirror.over and reply.reward == 1


def _is_lost(mirror: Mirror, reply: Any, told: Told, what: str) -> bool:
    """Whether the session is lost; another exception ends the soak."""
    if not isinstance(reply, Exception):
        return False
    if not isinstance(reply, EpisodeFailure):
        raise reply
    told.lost[f"{what}: {reply.kind}"] += 1
    mirror.session, mirror.over = None, True
    return True


def _note(told: Told, difference: str) -> None:
    if difference:
        told.mismatches.append(difference)


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in told.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def main() -> None:
    """Run it and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    told, faults, taken = soak(
        args.steps, args.environments, Servers(args.servers, args.workers), args.seed
    )
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=SUPPORT
    ).stdout.strip()
    record = {
        "command": f"python tests/support/soaking.py --steps {args.steps} --seed {args.seed}",
        "commit": commit, "python": platform.python_version(), "processor": _processor(),
        "cores": os.cpu_count(), "environments": args.environments, "servers": args.servers,
        "workers": args.workers, "seconds": round(time.monotonic() - began, 1),
        "steps": told.steps, "episodes": told.episodes, "solved": told.solved,
        "lost": dict(told.lost), "faults": dict(faults), "mismatches": len(told.mismatches),
        "ports_in_use": taken, "slowest_round_s": round(told.slowest_s, 1),
    }  # fmt: skip
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text + "\n".join(told.mismatches[:10]))
    if args.record is not None:
        args.record.write_text(text)


if __name__ == "__main__":
    main()
