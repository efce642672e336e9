"""The description of a fleet: which servers it has, how many, and where they may run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from agentgym_env.errors import ConfigError, MissingExtra

Kind = Literal["env", "vllm"]
T = TypeVar("T")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How many servers a group may have; it has what its load needs."""

    min: int = 1
    max: int = 1


class ServerGroup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Servers that are alike: of one environment, or of one model."""

    env: str | None = None
    """Id of the environment that they serve."""
    env_kwargs: dict[str, Any] = {}
    """Keyword arguments of the environment."""
    model: str | None = None
    """Folder or hub id of the model that vLLM serves, as the servers' machines see it."""
    options: dict[str, Any] = {}
    """For an environment, the options of `agentgym serve`, such as `{workers: 4}`; for a model, the
    settings of vLLM in `engine`, such as `{max_model_len: 4096}`."""
    replicas: int | Limits = 1
    """Number of servers, or `{min, max}` for a number that follows the load."""
    scale_at: float = 0.8
    """Share of the places in use above which another server is started."""
    scale_down_after_s: float = 60.0
    """Time in seconds with less load until a server is drained."""
    places: int | None = None
    """Load that one server takes. Null uses the maximum number of sessions of an environment, and
    `max_num_seqs` of vLLM."""
    resources: dict[str, float] = {}
    """What Ray reserves for each server: CPU, GPU, memory (bytes), or resources of your own. Empty
    reserves half a CPU for an environment; for a model one GPU per `tensor_parallel_size`, or one
    CPU in a cluster without GPUs."""
    labels: dict[str, str] = {}
    """Ray's labels of the nodes that may run these servers (`ray start --labels`)."""
    env_vars: dict[str, str] = {}
    """Environment variables of the servers."""
    start_s: float = 600.0
    """Time in seconds that a server may take to start."""
    unhealthy_s: float = 30.0
    """Time in seconds without an answer after which a server is replaced."""
    drain_s: float = 600.0
    """Time in seconds that sessions and turns have to end before their server is stopped."""

    @property
    def kind(self) -> Kind:
        """`env` or `vllm`."""
        return "env" if self.env is not None else "vllm"

    @property
    def limits(self) -> Limits:
        """The least and the most servers."""
        count = self.replicas
        return count if isinstance(count, Limits) else Limits(count, count)

    def digest(self) -> str:
        """What differs between two descriptions whose servers differ; counts do not matter."""
        alike = msgspec.structs.replace(
            self, replicas=1, scale_at=0.8, scale_down_after_s=60.0, places=None, drain_s=600.0
        )
        text = msgspec.json.encode(alike, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:12]


class Fleet(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named set of server groups."""

    name: str
    servers: dict[str, ServerGroup]
    """Name of a group -> its servers."""


def read_fleet(path: str | Path) -> Fleet:
    """Read a fleet's YAML file; raises `ConfigError` for what is not valid."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "a fleet needs Ray: install 'agentgym-sdk[ray]' on every machine"
        ) from error
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return fleet_of(values, str(path))


def fleet_of(values: Any, source: str = "the fleet") -> Fleet:
    """The checked description; raises `ConfigError`."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source} must be a mapping with the keys name and servers")
    groups = values.get("servers")
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        _converted(group, ServerGroup, f"{source}: servers.{name}")
    fleet = _converted(values, Fleet, source)
    if not fleet.servers:
        raise ConfigError(f"{source} has no servers; name at least one group")
    for name in (fleet.name, *fleet.servers):
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{source}: the name {name!r} must have letters, digits, '.', '_' and '-' only"
            )
    for name, group in fleet.servers.items():
        _check(f"{source}: servers.{name}", group)
    return fleet


def _converted(values: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} is invalid: {error}") from error


def _check(where: str, group: ServerGroup) -> None:
    if (group.env is None) == (group.model is None):
        raise ConfigError(f"{where} must have either env or model")
    if group.env_kwargs and group.env is None:
        raise ConfigError(f"{where}.env_kwargs is for environments")
    limits = group.limits
    if not 1 <= limits.min <= limits.max:
        raise ConfigError(
            f"{where}.replicas must be at least 1, with min at most max; got {limits.min} to "
            f"{limits.max}"
        )
    if not 0 < group.scale_at <= 1:
        raise ConfigError(f"{where}.scale_at must be above 0 and at most 1, got {group.scale_at}")
    for field in ("scale_down_after_s", "start_s", "unhealthy_s", "drain_s"):
        if not 0 <= getattr(group, field) < float("inf"):
            raise ConfigError(f"{where}.{field} must be a number of seconds, at least 0")
    if group.places is not None and group.places < 1:
        raise ConfigError(f"{where}.places must be at least 1, got {group.places}")
    for name, amount in group.resources.items():
        if not 0 <= amount < float("inf"):
            raise ConfigError(f"{where}.resources.{name} must be at least 0, got {amount}")
