"""The settings of a server; sent to its worker processes as JSON."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal, get_args

from msgspec import Struct

from agentgym_env.registry import construct, env_class
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import MAX_ITEMS
from agentgym_servers.host.request_guard import RequestGuard
from agentgym_servers.host.router import name_prefix, share_of
from agentgym_servers.host.sessions import SessionTable

Protocol = Literal["agentgym-sdk", "agentgym", "openenv", "nemo-gym", "mcp"]
PROTOCOLS: Final[tuple[str, ...]] = get_args(Protocol)
OWN: Final = "agentgym-sdk"
AGENTGYM: Final = "agentgym"
OPENENV: Final = "openenv"


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The options of `agentgym serve`, checked."""

    env_id: str
    entry_point: str
    env_kwargs: dict[str, Any] = {}
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_sessions: int = TextEnv.max_sessions
    session_ttl_s: float = 3600.0
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that requests may name, beside those of `host`."""
    max_body_bytes: int = 16 * 2**20
    max_items: int = MAX_ITEMS
    """Maximum items of one call."""
    workers: int = 1
    """Processes that share the sessions."""
    isolated: bool = False
    """Whether worlds step in processes that serve nothing else, under a deadline."""
    step_timeout_s: float = 60.0
    protocol: Protocol = OWN
    """Our own protocol, or one of another framework."""
    log_level: int = 20
    log_json: bool = False
    log_actions: bool = False

    def guard(self) -> RequestGuard:
        """What checks the headers of every request."""
        return RequestGuard(self.host, self.allowed_hosts)

    @property
    def max_socket_bytes(self) -> int | None:
        """The longest message of a WebSocket; None where the protocol has none.

        It is an action. What unfinished messages hold together is limited in `socket_guard`.
        """
        return min(self.max_body_bytes, 2**20) if self.protocol == OPENENV else None


def session_table(settings: ServeSettings, index: int | None = None) -> SessionTable:
    """The session table of a whole server, or the part of process `index`."""
    env_type = env_class(settings.entry_point)

    def make_env() -> TextEnv:
        return construct(env_type, settings.env_kwargs)

    alone = index is None
    return SessionTable(
        make_env,
        env_id=settings.env_id,
        max_sessions=settings.max_sessions
        if index is None
        else share_of(settings.max_sessions, index, settings.workers),
        server_sessions=settings.max_sessions,
        ttl_s=settings.session_ttl_s,
        version=sdk_version(),
        name_prefix="" if alone else name_prefix(index or 0),
        log_actions=settings.log_actions,
        step_timeout_s=settings.step_timeout_s,
    )


def sdk_version() -> str:
    """This distribution's version, or nothing where it is not installed."""
    try:
        return version("agentgym-sdk")
    except PackageNotFoundError:
        return ""
