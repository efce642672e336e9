"""Lengths: how many tokens a model can take, how its layers attend, and what padding costs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from math import inf
from typing import Any, Final, TypeVar

from agentgym_env.errors import ConfigError
from agentgym_train.config.policy import PolicyConfig

_C = TypeVar("_C", bound=PolicyConfig)

_MULTIPLIED: Final = ("linear", "dynamic", "yarn")
"""Kinds of RoPE scaling that a config may have without the positions they add."""

PASS_COST: Final = 256
"""Overhead of a pass, in tokens; measured on a CPU."""
_ON_GPU = 8.6e10
"""The same, times parameters per layer: a layer's kernels take a time to start, whatever they
compute. Measured on an H100 with 135M parameters: 80 ms for 30 layers, and 4.1 us per token."""

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


def lowered(config: _C, positions: int | None, what: str = "the model") -> _C:
    """The config with a default `max_tokens` lowered to the positions."""
    (default,) = (f.default for f in fields(config) if f.name == "max_tokens")
    assert isinstance(default, int)
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


def pass_cost_of(model: Any) -> int:
    """Overhead of a pass through a model on its device, in tokens."""
    if next(iter(model.parameters())).device.type == "cpu":
        return PASS_COST
    # DeepSpeed's stage 3 leaves empty tensors.
    count = sum(getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
    layers: int = getattr(model.config.get_text_config(), "num_hidden_layers", 1)
    return int(_ON_GPU * layers / count)


def like_lengths(lengths: Sequence[int], pass_cost: int, budget: float = inf) -> list[list[int]]:
    """The cheapest split of rows, sorted by length, into padded passes of at most `budget` tokens.

    cost[j] = min over i <= j of cost[i] + (j - i) * longest of rows i..j-1 + pass_cost.
    """
    rows = sorted(range(len(lengths)), key=lengths.__getitem__)
    cost = [0.0] + [inf] * len(rows)
    start = [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        longest = lengths[rows[end - 1]]
        for begin in range(end - 1, -1, -1):
            tokens = (end - begin) * longest
            if tokens > budget and begin < end - 1:
                break
            if cost[begin] + tokens + pass_cost < cost[end]:
                cost[end] = cost[begin] + tokens + pass_cost
                start[end] = begin
    passes: list[list[int]] = []
    end = len(rows)
    while end:
        passes.append(rows[start[end] : end])
        end = start[end]
    return passes


def _kinds_unnamed(config: Any) -> list[str]:
    """The kinds of a config without `layer_types`: GPT-Neo has its own key, Mistral a window."""
    layers: list[str] = getattr(config, "attention_layers", None) or []
    if layers:
        return ["full_attention" if kind == "global" else kind for kind in layers]
    used = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if used else None
    narrow = window is not None and window < config.max_position_embeddings
    return ["sliding_attention" if narrow else "full_attention"]
