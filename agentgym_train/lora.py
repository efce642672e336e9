"""LoRA through PEFT: adapters in place of a whole model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_env.errors import BadRequest, MissingExtra

_DEFAULTS = {"task_type": "CAUSAL_LM", "target_modules": "all-linear"}
"""Adapters on every linear layer but the head: what full training is matched by
(arXiv:2405.09673)."""


def lora_config(fields: Mapping[str, Any] | None) -> Any:
    """PEFT's LoraConfig of a run's `lora`, None where there is none."""
    if fields is None:
        return None
    try:
        from peft import LoraConfig
    except ModuleNotFoundError as error:
        raise MissingExtra("lora needs peft: pip install 'agentgym-sdk[train]'") from error
    try:
        return LoraConfig(**{**_DEFAULTS, **fields})
    except (TypeError, ValueError) as error:
        raise BadRequest(
            f"lora holds LoraConfig's fields, such as r, lora_alpha and target_modules: {error}"
        ) from error
