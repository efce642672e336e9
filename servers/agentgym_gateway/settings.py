"""Settings of the gateway: a config's `gateway`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_keys, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The gateway of black-box agents: its address, and the limits of an episode."""

    host: str = "127.0.0.1"
    """Address that it listens on. Requests are not encrypted: a network must be trusted."""
    port: int = 0
    """0 takes a free one."""
    address_file: str | None = None
    """File that gets the base URL and the key for taking episodes, for `agent: external`."""
    calls: int = 0
    """Maximum model calls of an episode; 0 sets no limit."""
    sampled_tokens: int = 0
    """Maximum tokens that an episode samples, over all its calls; 0 sets no limit."""
    concurrent_calls: int = 8
    """Maximum calls of one episode that are sampled at the same time; others wait. 0 sets no
    limit."""
    body_bytes: int = 8 * 2**20
    """Maximum size of a request."""
    crashes: Literal["lost", "failure"] = "lost"
    """What an episode is whose agent crashes. `lost`: it is retried, and lost if the agent crashes
    before the first reply. A later crash is a failure, unless the agent gets the same replies again
    and goes on; it counts in `max_lost_rate`. `failure`, for agents that crash because of what the
    model says: a failure at once, which counts in no rate."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.port > 65_535:
            raise ConfigError(f"gateway.port must be at most 65535, got {self.port}")
        if self.body_bytes < 1:
            raise ConfigError(f"gateway.body_bytes must be at least 1, got {self.body_bytes}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GatewaySettings:
        """The settings of a config's `gateway`; raises `ConfigError` for an unknown key."""
        check_keys(" in gateway", values, (f.name for f in fields(cls)))
        try:
            return msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"gateway is invalid: {error}") from error
