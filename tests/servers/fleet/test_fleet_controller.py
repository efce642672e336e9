"""The controller's steps: what it starts, drains, replaces and lists."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from agentgym_servers.fleet import controller as module
from agentgym_servers.fleet.controller import FleetController, Lost
from agentgym_servers.fleet.replica import Report
from agentgym_servers.fleet.spec import Fleet, Limits, ServerGroup


class Clock:
    """The controller's time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """A replica that does what the test says."""

    def __init__(self, name: str, group: ServerGroup, number: int, node: str) -> None:
        self.report = Report(
            name, group.digest(), "ready", f"http://{node}:{number}", node, places=10
        )
        self.silent = self.lost = self.stopped = self.killed = False

    def ask(self) -> None:
        pass

    def poll(self) -> Report | None:
        if self.lost:
            raise Lost("its process ended")
        return None if self.silent else self.report

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.killed = True

    def set(self, **changes: object) -> None:
        self.report = msgspec.structs.replace(self.report, **changes)


class Machines:
    """Starts servers on the machines that are not avoided, in turn."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes or ("a", "b")
        self.servers: list[Server] = []
        self.room = True

    def start(self, name: str, group: ServerGroup, avoided: Collection[str]) -> Server:
        free = [node for node in self.nodes if node not in avoided]
        server = Server(name, group, len(self.servers), free[len(self.servers) % len(free)])
        server.silent = not self.room
        self.servers.append(server)
        return server

    def found(self) -> list[Server]:
        return [server for server in self.servers if not server.stopped]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def group(**values: object) -> ServerGroup:
    return ServerGroup(env="x", **values)  # type: ignore[arg-type]


def managed(machines: Machines, described: ServerGroup) -> FleetController:
    return FleetController(Fleet(name="lab", servers={"w": described}), machines)


def after(controller: FleetController, clock: Clock, seconds: float) -> None:
    for _ in range(int(seconds / 0.25)):
        clock.now += 0.25
        controller.reconcile()


def listed(controller: FleetController) -> list[str]:
    return controller.addresses()["w"][1]


def test_it_starts_what_is_described_and_no_more(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=3))
    after(controller, clock, 5)
    assert len(machines.servers) == 3
    assert len(listed(controller)) == 3
    assert controller.status().is_ready


def test_a_lost_server_is_replaced(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=2))
    after(controller, clock, 2)
    machines.servers[0].lost = True
    after(controller, clock, 1)
    assert listed(controller) == ["http://b:1", "http://a:2"]
    assert "its process ended" in controller.status().events[-2].text


def test_a_silent_machine_gets_no_sessions_and_is_then_replaced(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=2))
    after(controller, clock, 2)
    machines.servers[0].silent = True
    after(controller, clock, 4)
    assert listed(controller) == ["http://b:1"], "listed although it is silent"
    assert len(machines.servers) == 2, "replaced although it may only be slow"
    after(controller, clock, 8)
    assert machines.servers[0].killed
    assert listed(controller) == ["http://b:1", "http://a:2"]


def test_a_machine_that_was_slow_is_listed_again(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=1))
    after(controller, clock, 2)
    machines.servers[0].silent = True
    after(controller, clock, 5)
    assert listed(controller) == []
    machines.servers[0].silent = False
    after(controller, clock, 1)
    assert listed(controller) == ["http://a:0"]
    assert len(machines.servers) == 1


def test_a_new_description_replaces_servers_one_by_one_without_a_gap(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group(replicas=3)), clock, 3)
    controller = managed(machines, group(replicas=3, options={"workers": 2}))
    most, least = 0, 9
    for _ in range(200):
        after(controller, clock, 0.25)
        most = max(most, len(machines.found()))
        least = min(least, len(listed(controller)))
    assert [server.stopped for server in machines.servers] == [True] * 3 + [False] * 3
    assert least >= 3
    assert controller.status().is_ready
    assert most <= 6, "draining servers and their replacements"


def test_sessions_end_before_their_server_does_unless_they_take_too_long(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group()), clock, 3)
    old = machines.servers[0]
    old.set(load=2)
    controller = managed(machines, group(options={"workers": 2}, drain_s=60))
    after(controller, clock, 50)
    assert not old.stopped
    assert listed(controller) == ["http://b:1"]
    after(controller, clock, 20)
    assert old.stopped
    assert controller.status().events[-1].text.endswith("with 2 sessions left")


def test_a_server_that_is_idle_still_waits_for_clients_that_do_not_know_yet(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group()), clock, 3)
    controller = managed(machines, group(options={"workers": 2}))
    after(controller, clock, 2)
    assert not machines.servers[0].stopped
    after(controller, clock, 3)
    assert machines.servers[0].stopped


def test_the_server_in_least_use_is_replaced_first(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group(replicas=2)), clock, 3)
    machines.servers[0].set(load=1)
    machines.room = False
    controller = managed(machines, group(replicas=2, options={"workers": 2}))
    after(controller, clock, 30)
    assert [server.stopped for server in machines.servers[:2]] == [False, True]


def test_an_event_says_once_that_a_server_waits_for_room(clock: Clock) -> None:
    machines = Machines()
    machines.room = False
    controller = managed(machines, group())
    after(controller, clock, 60)
    told = [event.text for event in controller.status().events]
    assert told == ["w: a server waits, no machine has room for it yet"]


def test_an_event_has_the_end_of_a_failed_servers_output(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group())
    after(controller, clock, 1)
    error = "exited with status 2; its last output was:\nloading\nerror: no such option\n"
    machines.servers[0].set(state="failed", error=error)
    after(controller, clock, 1)
    told = controller.status().events[-1].text
    assert told.endswith("exited with status 2; its last output was: error: no such option")


def test_without_room_for_another_an_old_server_makes_room(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group(replicas=2)), clock, 3)
    machines.room = False
    controller = managed(machines, group(replicas=2, options={"workers": 2}))
    after(controller, clock, 15)
    assert len(listed(controller)) == 2
    after(controller, clock, 15)
    assert [server.stopped for server in machines.servers[:2]].count(True) == 1, "one at a time"
    machines.room = True
    for server in machines.servers:
        server.silent = False
    after(controller, clock, 20)
    assert controller.status().is_ready
    assert len(machines.found()) == 2


def test_the_number_follows_the_load_and_falls_only_after_a_while(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=Limits(1, 3), scale_down_after_s=30))
    after(controller, clock, 2)
    machines.servers[0].set(load=9)
    after(controller, clock, 2)
    assert controller.status().wanted == {"w": 2}
    machines.servers[1].set(load=100)
    after(controller, clock, 2)
    assert controller.status().wanted == {"w": 3}, "at most the limit"
    machines.servers[0].set(load=0)
    machines.servers[1].set(load=0)
    after(controller, clock, 20)
    assert controller.status().wanted == {"w": 3}
    after(controller, clock, 20)
    assert controller.status().wanted == {"w": 1}
    assert len(machines.found()) == 1


def test_a_machine_that_leaves_is_replaced_first_and_used_no_more(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group(replicas=2))
    after(controller, clock, 3)
    machines.servers[0].set(load=1)
    assert controller.drain_node("a") == 1
    after(controller, clock, 5)
    assert listed(controller) == ["http://b:1", "http://b:2"]
    assert not machines.servers[0].stopped
    machines.servers[0].set(load=0)
    after(controller, clock, 5)
    assert machines.servers[0].stopped


def test_another_manager_takes_over_and_removes_what_does_not_answer(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group(replicas=3)), clock, 3)
    machines.servers[1].silent = True
    controller = managed(machines, group(replicas=3))
    assert machines.servers[1].killed
    after(controller, clock, 3)
    assert listed(controller) == ["http://a:0", "http://a:2", "http://b:3"]


def test_a_group_that_was_removed_is_drained(clock: Clock) -> None:
    machines = Machines()
    after(managed(machines, group()), clock, 3)
    controller = FleetController(Fleet(name="lab", servers={"v": group()}), machines)
    after(controller, clock, 6)
    assert machines.servers[0].stopped
    assert list(controller.addresses()) == ["v"]


def test_a_failed_start_is_reported_once(clock: Clock) -> None:
    machines = Machines()
    controller = managed(machines, group())
    machines_server_state = {"state": "failed", "error": "exited with status 2:\n1\nNo module"}
    controller.reconcile()
    machines.servers[0].set(**machines_server_state)
    after(controller, clock, 5)
    texts = [event.text for event in controller.status().events]
    assert texts == ["w at http://a:0 cannot start: exited with status 2: No module"]
    assert controller.status().failure == "w: exited with status 2:\n1\nNo module"
    assert listed(controller) == []
