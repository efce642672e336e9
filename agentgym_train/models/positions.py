"""How the layers of a model attend, and how many tokens it can take, by its config alone."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from agentgym_env.errors import ConfigError
from agentgym_train.config.policy import PolicyConfig

_C = TypeVar("_C", bound=PolicyConfig)

_MULTIPLIED: Final = ("linear", "dynamic", "yarn")
"""Kinds of RoPE scaling that a config may have without the positions they add."""

_ALIBI_ALWAYS = ("bloom", "mpt")

logger = logging.getLogger(__name__)


def layer_kinds(config: Any) -> set[str]:
    """The kinds of a text model's layers, by transformers' names."""
    found = set(getattr(config, "layer_types", None) or _kinds_unnamed(config))
    if getattr(config, "alibi", False) or config.model_type in _ALIBI_ALWAYS:
        found.add("alibi")
    if getattr(config, "kv_lora_rank", None):
        found.add("latent_attention")
    return found


def positions_of(config: Any) -> int | None:
    """The positions of a model's config; None without a limit, as with ALiBi and recurrence."""
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    attends = getattr(text, "num_attention_heads", None) is not None
    if most is None or not attends or "alibi" in layer_kinds(text):
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in _MULTIPLIED or not rope.get("factor"):
        return int(most)
    before = rope.get("original_max_position_embeddings") or most
    return max(int(most), int(before * rope["factor"]))


def default_max_tokens(config: PolicyConfig) -> int:
    """The `max_tokens` that a config has if none is set."""
    (found,) = (f.default for f in fields(config) if f.name == "max_tokens")
    assert isinstance(found, int)
    return found


def lowered(config: _C, positions: int | None, what: str = "the model") -> _C:
    """The config with a default `max_tokens` lowered to the positions."""
    default = default_max_tokens(config)
    if positions is None or config.max_tokens != default or default <= positions:
        return config
    logger.warning(
        "%s has %d positions: max_tokens is %d instead of %d", what, positions, positions, default
    )
    return replace(config, max_tokens=positions)


def within(config: _C, positions: int | None, what: str = "the model") -> _C:
    """`lowered`; raises `ConfigError` for a `max_tokens` that was set above the positions.

    Learned positions end there, and beyond others a model answers with noise.
    """
    config = lowered(config, positions, what)
    if positions is not None and config.max_tokens > positions:
        raise ConfigError(
            f"max_tokens is {config.max_tokens}, but {what} has {positions} positions; set "
            f"max_tokens (--max-tokens) to at most {positions}"
        )
    return config


def _kinds_unnamed(config: Any) -> list[str]:
    """The kinds of a config without `layer_types`: GPT-Neo has its own key, Mistral a window."""
    layers: list[str] = getattr(config, "attention_layers", None) or []
    if layers:
        return ["full_attention" if kind == "global" else kind for kind in layers]
    used = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if used else None
    narrow = window is not None and window < config.max_position_embeddings
    return ["sliding_attention" if narrow else "full_attention"]
