"""Settings of the gateway: further fields of a config's `agent`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_train.config.checks import Count, Port, Positive, Settings, made


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(Settings):
    """The gateway of black-box agents: its address, and the limits of an episode."""

    host: str = "127.0.0.1"
    """Address that it listens on. Requests are not encrypted: a network must be trusted."""
    port: Port = 0
    """Port that it listens on; 0 takes a free one."""
    address_file: str | None = None
    """File that gets the base URL and the key for taking episodes, for `agent: external`."""
    calls: Count = 0
    """Maximum model calls of an episode; 0 sets no limit."""
    sampled_tokens: Count = 0
    """Maximum tokens that an episode samples, over all its calls; 0 sets no limit."""
    concurrent_calls: Count = 8
    """Maximum calls of one episode that are sampled at the same time; others wait. 0 sets no
    limit."""
    body_bytes: Positive = 8 * 2**20
    """Maximum size of a request."""
    crashes: Literal["lost", "failure"] = "lost"
    """What an episode is whose agent crashes. `lost`: it is retried, and lost if the agent crashes
    before the first reply. A later crash is a failure, unless the agent gets the same replies again
    and goes on; it counts in `max_lost_rate`. `failure`, for agents that crash because of what the
    model says: a failure at once, which counts in no rate."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> GatewaySettings:
        """The settings of a config's `agent`; raises `ConfigError` for an unknown key."""
        return made(cls, values, "agent")
