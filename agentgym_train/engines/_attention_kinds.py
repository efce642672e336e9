"""Which kinds of attention a model has; the transformers engine keeps the cache of one of them.

Its rows lie side by side with holes, and a column of one may be another place of another row. So
what counts columns, such as a window or ALiBi (Press et al. 2022), would see other tokens there.
"""

from __future__ import annotations

from typing import Any

from agentgym_env.errors import BadRequest

_ALIBI_ALWAYS = ("bloom", "mpt")


def check_full_attention(config: Any) -> None:
    """Raise `BadRequest` unless all layers of a text model attend to all tokens by position."""
    kinds = sorted(_kinds(config))
    if kinds != ["full_attention"]:
        raise BadRequest(
            f"the hf engine keeps the cache of full attention layers only, and this model has "
            f"{kinds}; use a full-attention model, or a vLLM engine"
        )


def _kinds(config: Any) -> set[str]:
    found = set(getattr(config, "layer_types", None) or _kinds_unnamed(config))
    if getattr(config, "alibi", False) or config.model_type in _ALIBI_ALWAYS:
        found.add("alibi")
    if getattr(config, "kv_lora_rank", None):
        found.add("latent_attention")
    return found


def _kinds_unnamed(config: Any) -> list[str]:
    """The kinds of a config that names none as others do: GPT-Neo has its own, Mistral a window."""
    layers: list[str] = getattr(config, "attention_layers", None) or []
    if layers:
        return ["full_attention" if kind == "global" else kind for kind in layers]
    used = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if used else None
    narrow = window is not None and window < config.max_position_embeddings
    return ["sliding_attention" if narrow else "full_attention"]
