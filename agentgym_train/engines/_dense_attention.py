"""Attention for sampling: under any mask, and without copies of what query heads share.

Under a mask transformers' sdpa repeats keys and values for each query head of a group (Ainslie et
al. 2023, GQA), and so copies the whole cache in every layer for every token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED: Final = "agentgym_grouped"


@contextmanager
def dense_attention(model: Any) -> Iterator[None]:
    """Within, a model attends under any mask; varlen kernels know no rows with holes."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before != "eager" and model._can_set_attn_implementation():
        # A model without sdpa has something in its attention that sdpa would leave out.
        config._attn_implementation = GROUPED if model._supports_sdpa else "eager"
    try:
        yield
    finally:
        config._attn_implementation = before


def mask_for(model: Any, visible: Tensor) -> Tensor:
    """`visible`, (B, 1, q, n) bool, as the attention takes it: eager adds it to its scores."""
    if model.config.get_text_config()._attn_implementation != "eager":
        return visible
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, hidden)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """Attention of (B, H, q, D) queries to (B, H', n, D) keys and values; (B, q, H, D).

    One query a head: the H / H' heads that share keys stand in for as many queries of one head.
    More of them, on a CPU: its kernel knows groups. Elsewhere as transformers has it.
    """
    size, heads, queries, dim = query.shape
    grouped = heads != key.shape[1] and attention_mask is not None
    if not grouped or (queries > 1 and query.device.type != "cpu") or "position_bias" in further:
        told = {"scaling": scaling, **further}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **told)
    if queries == 1:
        query = query.reshape(size, key.shape[1], -1, dim)  # (B, H', H / H', D)
    found = scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, enable_gqa=queries > 1
    )
    return found.reshape(size, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
