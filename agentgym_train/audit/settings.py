"""Settings: how the audit's episodes are played, and what they are held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the audit's episodes are played; a run's own values where there is a run."""

    turns: int = 3
    """Turns of every episode."""
    episodes: int = 4
    """Episodes sampled from the model; the written ones come on top."""
    seed: int = 0
    temperature: float = 1.0
    instruction: str = "You are in a world of text. Answer with one action."
    action_format: str = "plain"
    keep_reasoning: bool = False
    turn_max_tokens: int = 64
    max_tokens: int = 4096
    tolerance: float | None = None
    """Of one log-probability; None takes what suits the arithmetic."""
    trl: dict[str, Any] = field(default_factory=dict)
    """What the run tells TRL of precision and masks."""
