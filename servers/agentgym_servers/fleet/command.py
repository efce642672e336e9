"""`agentgym up`, `agentgym status` and `agentgym down`: server fleets on a Ray cluster."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from agentgym_env.errors import ConfigError, ServerStartFailed
from agentgym_env.printable import UncutTable, printable
from agentgym_servers.fleet.controller import Event, FleetStatus
from agentgym_servers.fleet.spec import Fleet, read_fleet

logger = logging.getLogger(__name__)

Cluster = Annotated[
    str | None,
    typer.Option(help="Address of the Ray cluster. Default: RAY_ADDRESS, or this machine's."),
]
_SHOWN_EVENTS = 5
_HEAD_GONE_S = 10.0
"""A head that is replaced, as KubeRay does, answers before."""


def up(
    fleet: Annotated[Path, typer.Argument(help="The fleet's YAML file.")],
    cluster: Cluster = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until all servers are ready; 0 does not wait.")
    ] = 900.0,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address of this machine by which others reach a cluster that is started here; "
            "Ray then requires a token. Default: 127.0.0.1, for this machine alone."
        ),
    ] = None,
) -> None:
    """Start a fleet of servers on a Ray cluster, or change a running one.

    A changed fleet moves to its new description server by server. Ctrl-C ends the waiting; the
    fleet goes on.

    Without a cluster, one is started on this machine.
    """
    from agentgym_servers.fleet import ray_cluster

    described = read_fleet(fleet)
    console = Console(file=sys.stdout)
    try:
        with ray_cluster.connected(cluster):
            if host is not None:
                raise ConfigError("--host is for a cluster that `up` starts, and one runs already")
            _apply(described, wait, console)
    except ray_cluster.NoCluster:
        if cluster is not None:
            raise
        where = f"at {host}" if host else "on 127.0.0.1, for this machine alone"
        console.print(f"No Ray cluster runs on this machine; starting one {where}.")
        ray_cluster.start_local(host)
        with ray_cluster.connected():
            _apply(described, wait, console)


def status(
    name: Annotated[str | None, typer.Argument(help="Name of a fleet. Default: all.")] = None,
    cluster: Cluster = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the servers of the fleets on a Ray cluster."""
    from agentgym_servers.fleet import ray_cluster

    with ray_cluster.connected(cluster):
        names = [name] if name else ray_cluster.fleets()
        found = [_status(ray_cluster.controller_of(each)) for each in names]
    if as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(found), indent=2) + "\n")
        return
    console = Console()
    if not found:
        console.print("The cluster has no fleet. Start one with `agentgym up FLEET.yaml`.")
    for each in found:
        show(each, console)


def down(
    name: Annotated[str, typer.Argument(help="Name of the fleet.")],
    cluster: Cluster = None,
    node: Annotated[
        str | None,
        typer.Option(help="Address of a machine: only its servers leave, once others run."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="With --node: seconds to wait until its servers have left.")
    ] = 0.0,
    stop_ray: Annotated[bool, typer.Option(help="Stop this machine's Ray processes too.")] = False,
) -> None:
    """Stop a fleet of servers, or free one of its machines."""
    from agentgym_servers.fleet import ray_cluster

    console = Console(file=sys.stdout)
    with _connected_to_stop(cluster, stop_ray), ray_cluster.connected(cluster):
        if node is not None:
            actor = ray_cluster.controller_of(name)
            _check_machine(node, ray_cluster.addresses(), _status(actor))
            count = ray_cluster.ask(actor, "drain_node", node)
            until = time.monotonic() + wait
            while count and (left := until - time.monotonic()) > 0:
                time.sleep(min(0.5, left))
                count = sum(server.node == node for server in _status(actor).servers)
            left_over = f"{count} servers are still leaving {node}; see `agentgym status {name}`."
            console.print(left_over if count else f"No server is left on {node}.")
            return
        found = _status(ray_cluster.controller_of(name))
        ray_cluster.remove(name)
    in_use = sum(server.load for server in found.servers)
    console.print(
        f"The fleet {name} was stopped."
        + (f" {in_use} sessions or requests were open." if in_use else "")
    )
    if stop_ray:
        ray_cluster.stop_local()


@contextmanager
def _connected_to_stop(cluster: str | None, stop_ray: bool) -> Iterator[None]:
    """With --stop-ray, a cluster that does not answer is stopped all the same."""
    from agentgym_servers.fleet import ray_cluster

    try:
        yield
    except ray_cluster.NoCluster as error:
        if not stop_ray or cluster is not None:
            raise
        ray_cluster.stop_local()
        raise ConfigError(f"{error}. What Ray ran on this machine was stopped") from error


def _check_machine(node: str, known: list[str], found: FleetStatus) -> None:
    """Raise `ConfigError` if a machine neither is in the cluster nor has a server."""
    if node not in known and all(server.node != node for server in found.servers):
        raise ConfigError(
            f"--node {node}: the Ray cluster has no such machine; it has {', '.join(known)}"
        )


def _apply(described: Fleet, wait_s: float, console: Console) -> None:
    from agentgym_servers.fleet import ray_cluster

    try:
        actor = ray_cluster.apply(described)
        if ray_cluster.ask(actor, "is_open"):
            logger.warning(
                "this Ray cluster requires no token: whoever reaches its ports can run code as "
                "you. Start Ray with RAY_AUTH_MODE=token on every machine (docs/fleets.md)"
            )
        found = _await_ready(actor, described.name, wait_s, console)
    except KeyboardInterrupt:
        console.print(
            f"Interrupted; the fleet goes on starting. See `agentgym status {described.name}`, or "
            f"stop it with `agentgym down {described.name}`."
        )
        raise
    show(found, console, events=False)
    kinds = {"env": "servers", "vllm": "engine.servers"}
    for name, group in described.servers.items():
        console.print(f"{kinds[group.kind]}: \\[ray://{described.name}/{name}]", highlight=False)


def _await_ready(actor: Any, name: str, wait_s: float, console: Console) -> FleetStatus:
    """Print what happens until all servers are ready; raises `ServerStartFailed`."""
    from agentgym_servers.fleet import ray_cluster

    shown = 0
    heard = time.monotonic()
    until = heard + wait_s
    while True:
        if ray_cluster.head_answers():
            heard = time.monotonic()
        elif time.monotonic() - heard > _HEAD_GONE_S:
            raise ServerStartFailed(
                f"the head of the Ray cluster has not answered for {_HEAD_GONE_S:g} s; if it is "
                "gone, its servers end within two minutes: start Ray and the fleet again"
            )
        found = _status(actor)
        _show_events(found.events[shown:], console)
        shown = len(found.events)
        if found.is_ready or wait_s == 0:
            return found
        if found.failure:
            show(found, console, events=False)
            raise ServerStartFailed(
                f"a server cannot start: {found.failure}\nThe others stay; change the file and run "
                f"`agentgym up` again, or stop all with `agentgym down {name}`"
            )
        if time.monotonic() > until:
            show(found, console, events=False)
            raise ServerStartFailed(
                f"the fleet was not ready after {wait_s:g} s; it goes on starting"
            )
        time.sleep(0.2)


def _status(actor: Any) -> FleetStatus:
    from agentgym_servers.fleet import ray_cluster

    return msgspec.json.decode(ray_cluster.ask(actor, "status"), type=FleetStatus)


def show(found: FleetStatus, console: Console, *, events: bool = True) -> None:
    """Print a fleet as a table, then why servers are not ready, and its last events."""
    table = Table("group", "state", "address", "load", "restarts", "age")
    for server in sorted(found.servers, key=lambda s: (s.group, s.address)):
        load = f"{server.load} of {server.places}" if server.places else ""
        table.add_row(
            server.group, server.state, server.address, load, str(server.restarts),
            f"{server.age_s:.0f} s",
        )  # fmt: skip
    wanted = ", ".join(f"{count} x {group}" for group, count in found.wanted.items())
    console.print(f"Fleet [bold]{found.name}[/]: {wanted}")
    console.print(UncutTable(table))
    for server in found.servers:
        if server.error:
            text = printable(f"{server.group} {server.address}: {server.error}")
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    if events:
        _show_events(found.events[-_SHOWN_EVENTS:], console)


def _show_events(events: Sequence[Event], console: Console) -> None:
    for event in events:
        when = datetime.fromtimestamp(event.time).strftime("%H:%M:%S")
        text = printable(f"{when} {event.text}")
        console.print(text, highlight=False, markup=False, soft_wrap=True)
