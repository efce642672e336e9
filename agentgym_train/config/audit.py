"""AuditSettings: the settings of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from agentgym_train.config.checks import NonNegative, Positive, Seed
from agentgym_train.config.policy import PolicyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(PolicyConfig):
    """The audited policy and the audit's episodes; a run's own values are the defaults."""

    turns: Positive = 3
    """Turns per episode."""
    episodes: Positive = 4
    """Number of episodes sampled from the model."""
    seed: Seed = 0
    """Seed of sampling."""
    instruction: str | None = "You are in a world of text. Answer with one action."
    turn_max_tokens: Positive = 64
    max_tokens: Positive = 4096
    temperature: Annotated[float, msgspec.Meta(ge=1e-3)] = 1.0
    """Sampling temperature."""
    tolerance: NonNegative | None = None
    """Tolerance of a log-probability. Without it 1e-4 in float32 and 2e-2 in 16 bits."""
    trainer_args: dict[str, Any] = field(default_factory=dict)
    """TRL's settings of the run that affect precision."""
