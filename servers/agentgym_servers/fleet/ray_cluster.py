"""The fleet's actors on Ray: the only module that imports it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

import msgspec

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_servers.fleet.controller import FleetController, Lost, ReplicaHandle
from agentgym_servers.fleet.directory_server import serve_directory
from agentgym_servers.fleet.replica import Replica, Report
from agentgym_servers.fleet.spec import Fleet, ServerGroup

try:
    import ray
    from ray._private import ray_constants, services
    from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as error:
    raise MissingExtra("server fleets need Ray: pip install 'agentgym-sdk[ray]'") from error

NAMESPACE: Final = "agentgym"
_CONTROLLER: Final = "fleet:"
_REPLICA: Final = "replica:"
_REACH_S: Final = 5.0
_ANSWER_S: Final = 30.0
_END_S: Final = 30.0
_MOVE_S: Final = 45.0
"""Time in which Ray starts an actor again whose process ended."""
_FULL_SPEED: Final = {"env_vars": {"RAY_worker_niceness": "0"}}
"""Ray gives its workers, and what they start, the niceness 15."""
_ENV_CPU: Final = 0.5
_ON_HEAD: Final = {"node:__internal_head__": 0.001}
"""Requires the head: a node affinity can be ignored, and without the head nothing works anyway."""

_ENABLED: Final = ray_constants.ENABLE_RAY_CLUSTER
"""Without it, Ray listens on and connects to 127.0.0.1; with it, never."""


class NoCluster(ConfigError):
    """No Ray cluster answers."""


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """A connection to the Ray cluster: `address`, RAY_ADDRESS, or the one on this machine.

    Uses the program's own connection if it has one. Otherwise standard output leads to standard
    error meanwhile: Ray prints there that a machine was lost, whatever its options say, and a
    command's output is for programs. Raises `NoCluster` if there is none.
    """
    if ray.is_initialized():
        yield
        return
    with redirect_stdout(sys.stderr), _joined(address):
        yield


@contextmanager
def _joined(address: str | None) -> Iterator[None]:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray_constants.ENABLE_RAY_CLUSTER = _ENABLED and not _reach(address)
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, RuntimeError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "this machine"
        raise NoCluster(
            f"no Ray cluster at {where}: {str(error).rstrip('.')}. Start one with "
            "`ray start --head` or, of this machine alone, with `agentgym up FLEET.yaml`, or name "
            "another with --cluster or RAY_ADDRESS; where it requires a token, set "
            "RAY_AUTH_MODE=token"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str | None) -> bool:
    """Whether the cluster is of this machine's loopback interface alone.

    Raises `OSError` if nothing listens at the cluster's address; Ray would try for minutes.

    Without an address, Ray uses the one that the last `ray start` on this machine wrote down, which
    stays when its cluster was killed.
    """
    named = address or os.environ.get("RAY_ADDRESS")
    if not named or named == "auto":
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        last = Path(folder) / "ray" / "ray_current_cluster"
        named = last.read_text(encoding="utf-8") if last.is_file() else ""
    host, _, port = named.strip().rpartition("://")[2].rpartition(":")
    host = host.strip("[]")
    if not port.isdigit():
        return False
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error})") from error
    if not _is_loopback(host):
        return False
    try:
        # A cluster of all interfaces can be named by this one, too.
        own = services.node_ip_address_from_perspective()
        socket.create_connection((own, int(port)), timeout=_REACH_S).close()
    except OSError:
        return True
    return _is_loopback(own)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def head_answers() -> bool:
    """Whether the connected cluster's head answers; without it, Ray ends programs in a minute."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError:
        return False
    return True


def start_local(host: str | None = None) -> None:
    """Start a cluster whose head is this machine; it runs until `stop_local`.

    It listens on the loopback interface only. With another `host`, an address of this machine that
    others can reach, it requires a token, which it takes from the home folder or leaves there.
    Raises `ConfigError`. Ctrl-C does not reach Ray: half a cluster would answer nobody.
    """
    command = ["start", "--head", "--include-dashboard=false", "--disable-usage-stats"]
    if host is None or _is_loopback(host):
        _ray(command, {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"})
        return
    _check_own(host)
    token = {"RAY_AUTH_MODE": "token"}
    # Ray would leave the file readable for all users.
    _ray(["get-auth-token", "--generate"], token, umask=0o077)
    _ray([*command, f"--node-ip-address={host}"], token)


def _check_own(host: str) -> None:
    """Raise `ConfigError` unless `host` is an address of this machine."""
    try:
        is_one = not ipaddress.ip_address(host).is_unspecified
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
            bound.bind((host, 0))
    except (ValueError, OSError):
        is_one = False
    if not is_one:
        raise ConfigError(
            f"--host must be an address of this machine by which others reach it, got {host!r}"
        )


def _ray(words: list[str], env: dict[str, str], umask: int = -1) -> None:
    ended = subprocess.run(
        [_ray_program(), *words],
        capture_output=True,
        text=True,
        start_new_session=True,
        env={**os.environ, **env},
        umask=umask,
    )
    if ended.returncode:
        raise ConfigError(f"Ray does not start on this machine: {ended.stderr or ended.stdout}")


def stop_local() -> None:
    """Stop what Ray runs on this machine."""
    subprocess.run([_ray_program(), "stop"], capture_output=True)


def _ray_program() -> str:
    return str(Path(sys.executable).parent / "ray")


def addresses() -> list[str]:
    """The addresses of the connected cluster's machines."""
    return sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])


def fleets() -> list[str]:
    """The names of the fleets of the connected cluster."""
    return sorted(name.removeprefix(_CONTROLLER) for name in _actors(_CONTROLLER))


def controller_of(name: str) -> Any:
    """The controller's actor; raises `ConfigError` if the cluster has no such fleet."""
    try:
        return ray.get_actor(_CONTROLLER + name, NAMESPACE)
    except ValueError as error:
        known = fleets()
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(
            f"the Ray cluster has no fleet {name!r}; {there}. Start one with `agentgym up`"
        ) from error


def ask(actor: Any, method: str, *arguments: Any, timeout_s: float = _ANSWER_S) -> Any:
    """Call an actor's method and wait; raises `ConfigError` if it does not answer.

    While Ray starts the actor again, the method is called again; so it must be one that may run
    twice.
    """
    until = time.monotonic() + _MOVE_S
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*arguments), timeout=timeout_s)
        except GetTimeoutError as error:
            text = f"the fleet's controller has not answered for {timeout_s:g} s"
            raise ConfigError(text) from error
        except ActorUnavailableError as error:
            if time.monotonic() > until:
                text = f"the fleet's controller has been unavailable for {_MOVE_S:g} s: {error}"
                raise ConfigError(text) from error
            time.sleep(0.5)
        except RayActorError as error:
            text = "the fleet's controller ended; another `agentgym up` or `down` may be under way"
            raise ConfigError(f"{text}: {error}") from error
        except RayError as error:
            raise ConfigError(f"the fleet's controller failed: {error}") from error


def apply(fleet: Fleet) -> Any:
    """Start the controller of a fleet, or replace the one that runs; servers keep running."""
    token = secrets.token_urlsafe(24)
    if fleet.name in fleets():
        old = controller_of(fleet.name)
        token = ask(old, "token")
        ray.kill(old, no_restart=True)
        _await_gone(fleet.name)
    actor = (
        ray.remote(ControllerActor)
        .options(
            name=_CONTROLLER + fleet.name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources=_ON_HEAD,
            max_restarts=-1,
            max_concurrency=8,
            runtime_env=_FULL_SPEED,
        )
        .remote(msgspec.json.encode(fleet), token)
    )
    ask(actor, "endpoint", timeout_s=60.0)
    return actor


def remove(name: str) -> None:
    """Stop a fleet's servers, and when they have ended its controller."""
    actor, prefix = controller_of(name), f"{_REPLICA}{name}:"
    ask(actor, "stop", timeout_s=60.0)
    until = time.monotonic() + _END_S
    while (left := _actors(prefix)) and time.monotonic() < until:
        time.sleep(0.05)
    for each in left:
        with contextlib.suppress(ValueError):  # it ended just now
            ray.kill(ray.get_actor(each, NAMESPACE), no_restart=True)
    ray.kill(actor, no_restart=True)
    _await_gone(name)


def _await_gone(name: str) -> None:
    until = time.monotonic() + _ANSWER_S
    while name in fleets() and time.monotonic() < until:
        time.sleep(0.05)


def _actors(prefix: str) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [
        actor["name"]
        for actor in named
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(prefix)
    ]


class ControllerActor:
    """`FleetController` as an actor on the head. If its process ends, Ray starts it again."""

    def __init__(self, fleet: bytes, token: str) -> None:
        described = msgspec.json.decode(fleet, type=Fleet)
        self._token = token
        self._controller = FleetController(described, RayLauncher(described.name, token))
        host = ray.util.get_node_ip_address()
        self._endpoint = serve_directory(self._controller.addresses, host, token)
        threading.Thread(target=self._controller.run, daemon=True).start()

    def endpoint(self) -> tuple[str, str]:
        """(address, token) of the page that lists the servers."""
        return self._endpoint, self._token

    def token(self) -> str:
        """The token of all servers."""
        return self._token

    def is_open(self) -> bool:
        """Whether whoever reaches this machine can use the cluster: Ray requires no token."""
        has_token = os.environ.get("RAY_AUTH_MODE", "disabled").lower() != "disabled"
        return not has_token and not _is_loopback(ray.util.get_node_ip_address())

    def status(self) -> bytes:
        """A `FleetStatus` as JSON."""
        return msgspec.json.encode(self._controller.status())

    def drain_node(self, node: str) -> int:
        """Replace a machine's servers elsewhere."""
        return self._controller.drain_node(node)

    def stop(self) -> None:
        """Stop the servers."""
        self._controller.stop()


class ReplicaActor:
    """`Replica` as an actor."""

    def __init__(self, name: str, group: bytes, token: str) -> None:
        self._replica = Replica(name, group, ray.util.get_node_ip_address(), token)

    def report(self) -> bytes:
        """A `Report` as JSON: the controller may be of a newer version."""
        return msgspec.json.encode(self._replica.report())

    def stop(self) -> None:
        """Stop the server."""
        self._replica.stop()


class RayLauncher:
    """Starts replicas on the cluster's machines."""

    def __init__(self, fleet: str, token: str) -> None:
        self._prefix = f"{_REPLICA}{fleet}:"
        self._token = token

    def start(self, name: str, group: ServerGroup, avoided: Collection[str]) -> ReplicaHandle:
        """Start a replica. The machine is Ray's choice among those that fit."""
        actor_name = f"{self._prefix}{name}:{secrets.token_hex(4)}"
        options = {
            "name": actor_name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_concurrency": 4,
            **_resources(group),
            **({"label_selector": group.labels} if group.labels else {}),
            "scheduling_strategy": _strategy(group, avoided),
            "runtime_env": _FULL_SPEED,
        }
        actor = ray.remote(ReplicaActor).options(**options)
        return RayReplica(actor.remote(name, msgspec.json.encode(group), self._token))

    def found(self) -> list[ReplicaHandle]:
        """The replicas of this fleet that run already."""
        handles: list[ReplicaHandle] = []
        for name in _actors(self._prefix):
            try:
                handles.append(RayReplica(ray.get_actor(name, NAMESPACE)))
            except ValueError:
                continue  # it ended just now
        return handles


class RayReplica:
    """One replica's actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._asked: Any = None

    def ask(self) -> None:
        """Ask for a report, unless one is on its way."""
        if self._asked is None:
            self._asked = self._actor.report.remote()

    def poll(self) -> Report | None:
        """The report, if it has come; raises `Lost`."""
        if self._asked is None:
            return None
        done, _ = ray.wait([self._asked], timeout=0)
        if not done:
            return None
        self._asked = None
        try:
            return msgspec.json.decode(ray.get(done[0]), type=Report)
        except RayActorError as error:
            raise Lost(_reason(error)) from error
        except (RayError, msgspec.DecodeError) as error:
            self.kill()
            raise Lost(f"it does not report as this version expects: {error}") from error

    def stop(self) -> None:
        """Stop the server, then the actor."""
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        with contextlib.suppress(RayError):  # it is gone, or hangs
            ray.get(self._actor.stop.remote(), timeout=_END_S)
        self.kill()

    def kill(self) -> None:
        """Kill the actor; its server ends with it."""
        ray.kill(self._actor, no_restart=True)


def _reason(error: Exception) -> str:
    text = str(error)
    if "node has died" in text or "node was terminated" in text:
        return "its machine is gone"
    return "its process ended" if "worker process has died" in text else text.strip()[:200]


def _resources(group: ServerGroup) -> dict[str, Any]:
    """Ray's options for what a group's server needs."""
    given = dict(group.resources)
    if not given:
        gpus = float(group.options.get("tensor_parallel_size", 1))
        has_gpus = ray.cluster_resources().get("GPU", 0) >= gpus
        on_cpus = {"CPU": _ENV_CPU if group.kind == "env" else 1.0}
        given = {"GPU": gpus} if group.kind == "vllm" and has_gpus else on_cpus
    options: dict[str, Any] = {
        "num_cpus": given.pop("CPU", 0),
        "num_gpus": given.pop("GPU", 0),
    }
    if "memory" in given:
        options["memory"] = given.pop("memory")
    return options | ({"resources": given} if given else {})


def _strategy(group: ServerGroup, avoided: Collection[str]) -> Any:
    """Where Ray places a server: away from avoided machines, and worlds away from GPUs."""
    if group.labels:
        return "DEFAULT"
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in nodes if node["NodeManagerAddress"] not in avoided]
    if group.kind == "env":
        fitting = [n for n in fitting if not n["Resources"].get("GPU")] or fitting
    if not fitting or len(fitting) == len(nodes):
        return "SPREAD"
    chosen = secrets.choice(fitting)
    return NodeAffinitySchedulingStrategy(chosen["NodeID"], soft=not avoided)
