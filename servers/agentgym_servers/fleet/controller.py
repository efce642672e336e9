"""FleetController: the actor that keeps a fleet as described, and says where its servers are."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec import Struct

from agentgym_servers.fleet.directory_server import Listing
from agentgym_servers.fleet.replica import Report
from agentgym_servers.fleet.spec import Fleet, ServerGroup

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
_SUSPECT_S: Final = 3.0
"""Silence of a replica after which its server is listed no longer."""
_GONE_S: Final = 10.0
"""Silence of a replica after which its server is replaced; a replica only watches and reports."""
_SETTLE_S: Final = 3.0
"""Least time of draining: clients look for changes once a second."""
_ROOM_S: Final = 20.0
"""Time without a place for a new server after which an old one makes room for it."""
_KEPT_EVENTS: Final = 200
_NO_ROOM: Final = "no machine has room for it yet"


class Event(Struct, frozen=True):
    """Something that happened to the fleet."""

    time: float
    """Seconds since 1970."""
    text: str


class ServerStatus(Struct, frozen=True):
    """One server of a fleet."""

    group: str
    state: str
    """`starting`, `ready`, `failed`, `unreachable`, `old` (it will be replaced), or `draining`."""
    address: str = ""
    node: str = ""
    load: int = 0
    places: int = 0
    restarts: int = 0
    age_s: float = 0.0
    error: str = ""


class FleetStatus(Struct, frozen=True):
    """A fleet as it is now."""

    name: str
    wanted: dict[str, int]
    """Servers that each group should have."""
    servers: list[ServerStatus]
    events: list[Event]

    @property
    def is_ready(self) -> bool:
        """Whether every group has its servers, and no old ones are left."""
        ready = [s.group for s in self.servers if s.state == "ready"]
        return len(ready) == len(self.servers) and all(
            ready.count(group) >= count for group, count in self.wanted.items()
        )

    @property
    def failure(self) -> str | None:
        """Why a server cannot start, if one cannot."""
        return next((f"{s.group}: {s.error}" for s in self.servers if s.state == "failed"), None)


class Lost(Exception):
    """A replica's process or machine is gone."""


class ReplicaHandle(Protocol):
    """A replica, wherever it runs; no method waits for it."""

    def ask(self) -> None:
        """Ask for a report, unless one is on its way."""
        ...

    def poll(self) -> Report | None:
        """A report that came since the last call; raises `Lost`."""
        ...

    def stop(self) -> None:
        """Stop the server, and remove the replica when it has ended."""
        ...

    def kill(self) -> None:
        """Remove the replica at once."""
        ...


class ReplicaLauncher(Protocol):
    """Starts replicas, and finds those of a controller that ended."""

    def start(self, name: str, group: ServerGroup, avoided: Collection[str]) -> ReplicaHandle:
        """Start a replica on a machine that is not avoided."""
        ...

    def found(self) -> list[ReplicaHandle]:
        """The replicas that run already."""
        ...


@dataclass(slots=True, eq=False)
class _Member:
    """A replica as the controller knows it."""

    group: str
    digest: str
    handle: ReplicaHandle
    began: float = field(default_factory=lambda: time.monotonic())
    heard: float = field(default_factory=lambda: time.monotonic())
    report: Report | None = None
    draining_since: float | None = None
    was_ready: bool = False
    was_told: bool = False
    """Whether an event says that there is no room for it."""

    @property
    def is_silent(self) -> bool:
        return self.report is not None and time.monotonic() - self.heard > _SUSPECT_S

    @property
    def waits_for_room(self) -> bool:
        return self.report is None and time.monotonic() - self.began > _ROOM_S

    @property
    def is_ready(self) -> bool:
        ready = self.report is not None and self.report.state == "ready"
        return ready and self.draining_since is None and not self.is_silent


class FleetController:
    """Compares the fleet with its description and starts, drains and replaces servers.

    `reconcile` does one such comparison; a thread calls it several times a second.
    """

    def __init__(self, fleet: Fleet, launcher: ReplicaLauncher) -> None:
        self._fleet = fleet
        self._launcher = launcher
        self._members: list[_Member] = []
        self._events: deque[Event] = deque(maxlen=_KEPT_EVENTS)
        self._wanted = {name: group.limits.min for name, group in fleet.servers.items()}
        self._less_since: dict[str, float] = {}
        self._room_made: dict[str, float] = {}
        self._avoided: set[str] = set()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._adopt(launcher.found())

    def run(self) -> None:
        """Keep the fleet until `stop`."""
        while not self._over.wait(_INTERVAL_S):
            with self._lock:
                self.reconcile()

    def status(self) -> FleetStatus:
        """Every server, and the last events."""
        with self._lock:
            servers = [self._status_of(member) for member in self._members]
            return FleetStatus(self._fleet.name, dict(self._wanted), servers, list(self._events))

    def addresses(self) -> Listing:
        """Group -> its kind, and the addresses that take new sessions or turns."""
        with self._lock:
            return {
                name: (
                    group.kind,
                    [
                        m.report.address
                        for m in self._members
                        if m.group == name and m.is_ready and m.report
                    ],
                )
                for name, group in self._fleet.servers.items()
            }

    def drain_node(self, node: str) -> int:
        """Replace the servers of a machine elsewhere, then stop them; how many there are."""
        with self._lock:
            self._avoided.add(node)
            leaving = [m for m in self._members if m.report and m.report.node == node]
            self._record(f"node {node} leaves; {len(leaving)} servers are replaced")
            return len(leaving)

    def stop(self) -> None:
        """Stop every server and the controller."""
        self._over.set()
        with self._lock:
            for member in self._members:
                member.handle.stop()
            self._members.clear()

    def reconcile(self) -> None:
        """Hear the replicas and take the next step towards the description."""
        for member in list(self._members):
            self._update(member)
            if member.waits_for_room and not member.was_told:
                member.was_told = True
                self._record(f"{member.group}: a server waits, {_NO_ROOM}")
        for name, group in self._fleet.servers.items():
            self._wanted[name] = self._count_for(name, group)
            self._reconcile_group(name, group)
        for member in [m for m in self._members if m.group not in self._fleet.servers]:
            self._drain(member, "its group was removed")
        for member in list(self._members):
            self._end_drained(member)

    def _adopt(self, handles: Iterable[ReplicaHandle]) -> None:
        """Take over replicas; those that do not answer in time are removed."""
        waiting = list(handles)
        for handle in waiting:
            handle.ask()
        until = time.monotonic() + _SUSPECT_S
        while waiting and time.monotonic() < until:
            for handle in list(waiting):
                try:
                    report = handle.poll()
                except Lost:
                    waiting.remove(handle)
                    continue
                if report is not None:
                    waiting.remove(handle)
                    member = _Member(report.group, report.digest, handle, report=report)
                    member.was_ready = report.state == "ready"
                    self._members.append(member)
            time.sleep(0.02)
        for handle in waiting:
            handle.kill()

    def _update(self, member: _Member) -> None:
        try:
            report = member.handle.poll()
        except Lost as lost:
            self._members.remove(member)
            self._record(f"{_name(member)} is lost: {lost}")
            return
        member.handle.ask()
        if report is None:
            if member.report is not None and time.monotonic() - member.heard > _GONE_S:
                self._members.remove(member)
                member.handle.kill()
                self._record(f"{_name(member)}: its machine has not answered for {_GONE_S:g} s")
            return
        before, member.report, member.heard = member.report, report, time.monotonic()
        if report.state == "ready" and not member.was_ready:
            member.was_ready = True
            took = time.monotonic() - member.began
            self._record(f"{_name(member)} is ready after {took:.1f} s")
        elif before is not None and report.restarts > before.restarts:
            why = before.error or report.error or "it ended"
            self._record(f"{_name(member)} was restarted: {_brief(why)}")
        if report.state == "failed" and (before is None or before.state != "failed"):
            self._record(f"{_name(member)} cannot start: {_brief(report.error)}")

    def _count_for(self, name: str, group: ServerGroup) -> int:
        """How many servers the group needs for its load; it shrinks only after a while."""
        limits, now = group.limits, time.monotonic()
        before = min(max(self._wanted.get(name, limits.min), limits.min), limits.max)
        reports = [
            m.report
            for m in self._members
            if m.group == name and m.report and m.draining_since is None and self._is_current(m)
        ]
        places = max((r.places for r in reports), default=0)
        if limits.min == limits.max or not places:
            return before
        load = sum(r.load for r in reports)
        needed = min(max(math.ceil(load / (group.scale_at * places)), limits.min), limits.max)
        if needed >= before:
            self._less_since.pop(name, None)
        elif now - self._less_since.setdefault(name, now) < group.scale_down_after_s:
            return before
        if needed != before:
            self._less_since.pop(name, None)
            self._record(f"{name} has a load of {load}: {before} -> {needed} servers")
        return needed

    def _reconcile_group(self, name: str, group: ServerGroup) -> None:
        """Start one server that is missing, or drain one that is too many."""
        wanted = self._wanted[name]
        staying = [m for m in self._members if m.group == name and m.draining_since is None]
        current = [m for m in staying if self._is_current(m)]
        old = [m for m in staying if m not in current]
        if len(current) < wanted and (len(staying) <= wanted or not old):
            # At most one server more than wanted while old ones are replaced.
            self._start(name, group)
            return
        ready = sum(m.is_ready for m in current)
        spare = ready + sum(m.is_ready for m in old) > wanted
        stuck = any(m.waits_for_room for m in current) and self._may_make_room(name)
        if old and (spare or stuck or not all(m.is_ready for m in old)):
            self._drain(min(old, key=_in_use), "it is replaced")
        elif not old and len(current) > wanted:
            self._drain(min(current, key=_in_use), "fewer are needed")

    def _may_make_room(self, name: str) -> bool:
        """Whether the room that a drained server leaves has been tried before."""
        if any(m.group == name and m.draining_since is not None for m in self._members):
            self._room_made[name] = time.monotonic()
        return time.monotonic() - self._room_made.get(name, -math.inf) > _ROOM_S

    def _is_current(self, member: _Member) -> bool:
        """Whether it is as described, and on a machine that stays."""
        group = self._fleet.servers.get(member.group)
        leaves = member.report is not None and member.report.node in self._avoided
        return group is not None and member.digest == group.digest() and not leaves

    def _start(self, name: str, group: ServerGroup) -> None:
        handle = self._launcher.start(name, group, self._avoided)
        self._members.append(_Member(name, group.digest(), handle))

    def _drain(self, member: _Member, why: str) -> None:
        if member.draining_since is None:
            member.draining_since = time.monotonic()
            self._record(f"{_name(member)} takes no new sessions: {why}")

    def _end_drained(self, member: _Member) -> None:
        if member.draining_since is None:
            return
        group = self._fleet.servers.get(member.group)
        limit = group.drain_s if group else _SETTLE_S
        drained_s = time.monotonic() - member.draining_since
        report = member.report
        serves = report is not None and report.state == "ready" and report.load > 0
        if drained_s < _SETTLE_S and report is not None and report.state == "ready":
            return
        if serves and drained_s < limit:
            return
        self._members.remove(member)
        member.handle.stop()
        left = f" with {report.load} sessions left" if serves and report else ""
        self._record(f"{_name(member)} was stopped{left}")

    def _status_of(self, member: _Member) -> ServerStatus:
        report = member.report
        if report is None:
            waited_s = round(time.monotonic() - member.began, 1)
            note = _NO_ROOM if member.waits_for_room else ""
            return ServerStatus(member.group, "starting", age_s=waited_s, error=note)
        state: str = report.state
        if member.is_silent:
            state = "unreachable"
        elif member.draining_since is not None:
            state = "draining"
        elif not self._is_current(member):
            state = "old"
        return ServerStatus(
            group=member.group,
            state=state,
            address=report.address,
            node=report.node,
            load=report.load,
            places=report.places,
            restarts=report.restarts,
            age_s=report.age_s,
            error=report.error,
        )

    def _record(self, text: str) -> None:
        logger.info("%s", text)
        self._events.append(Event(time.time(), text))


def _in_use(member: _Member) -> tuple[bool, int]:
    """Sorts members by how little a drain would disturb."""
    return member.is_ready, member.report.load if member.report else 0


def _brief(error: str) -> str:
    """The first and the last line of an error: what happened, and the end of its output."""
    first, *others = error.splitlines() or [""]
    return f"{first} {others[-1].strip()}" if others else first


def _name(member: _Member) -> str:
    where = f" at {member.report.address}" if member.report else ""
    return f"{member.group}{where}"
