"""How a model computes while turns are sampled: its attention, its precision and its head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentgym_train.models.weights import head_of

GROUPED: Final = "agentgym_grouped"
Copies = dict[nn.Module, tuple[Tensor, Tensor | None]]
"""Weight and bias of linear layers, in the precision that is used for computing."""
_TILE = 8192
"""Rows of the head that are converted at a time."""


@contextmanager
def dense_attention(model: Any) -> Iterator[None]:
    """Within, a model attends under any mask; varlen kernels know no rows with holes."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before != "eager" and model._can_set_attn_implementation():
        # A model without sdpa support has parts in its attention that sdpa would omit.
        config._attn_implementation = GROUPED if model._supports_sdpa else "eager"
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def float32_head(model: Any) -> Iterator[None]:
    """Within, the LM head returns float32 logits that were never rounded to 16 bits.

    Rounded logits of a bfloat16 model differ by up to 0.06 at a value of 16, so many tokens would
    share one probability.
    """
    head = head_of(model)
    if type(head) is not nn.Linear:
        yield
        return

    def forward(hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return _float32_linear(hidden, head.weight, head.bias)

    head.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del head.forward


@contextmanager
def reduced_weights(model: Any, dtype: torch.dtype, copies: Copies) -> Iterator[None]:
    """Within, linear layers other than the LM head use copies of their float32 weights in `dtype`.

    Autocast would convert all weights at each token, with the same result: in inference mode it
    keeps no copies. `copies` is filled where it is empty, and valid until the weights change.
    """
    head = head_of(model)
    changed = []
    try:
        for module in model.modules():
            # A parameter of another type is a part of a sharded weight.
            ordinary = type(module) is nn.Linear and type(module.weight) is nn.Parameter
            if not ordinary or module is head or "forward" in vars(module):
                continue
            if module.weight.dtype != torch.float32:
                continue
            if module not in copies:
                bias = None if module.bias is None else module.bias.detach().to(dtype)
                copies[module] = module.weight.detach().to(dtype), bias
            weight, bias = copies[module]
            module.forward = partial(linear, weight=weight, bias=bias)  # type: ignore[method-assign]
            changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


@contextmanager
def without_router_loss(model: Any) -> Iterator[None]:
    """Within, a mixture of experts computes no load-balancing loss, which takes no dense mask."""
    parts = {id(c): c for c in (model.config, model.config.get_text_config())}
    asked = [c for c in parts.values() if getattr(c, "output_router_logits", False)]
    for config in asked:
        config.output_router_logits = False
    try:
        yield
    finally:
        for config in asked:
            config.output_router_logits = True


def mask_for(model: Any, visible: Tensor) -> Tensor:
    """`visible`, (B, 1, q, n) bool, in the form that the attention expects; eager adds it."""
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

    With one query per head, the H / H' heads that share keys become queries of one head. With more,
    on a CPU, its kernel supports groups. Otherwise transformers' own function is used.
    """
    size, heads, queries, dim = query.shape
    grouped = heads != key.shape[1] and attention_mask is not None
    if not grouped or (queries > 1 and query.device.type != "cpu") or "position_bias" in further:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **further
        )
    if queries == 1:
        query = query.reshape(size, key.shape[1], -1, dim)  # (B, H', H / H', D)
    found = scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, enable_gqa=queries > 1
    )
    return found.reshape(size, heads, queries, -1).transpose(1, 2), None


def _float32_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., V) float32 logits of (..., H) hidden states."""
    flat = hidden.flatten(0, -2)  # (N, H)
    if weight.device.type == "cuda" and weight.dtype != torch.float32:
        logits = torch.mm(flat.to(weight.dtype), weight.t(), out_dtype=torch.float32)  # (N, V)
    else:
        parts = weight.split(weight.shape[0] if weight.dtype == torch.float32 else _TILE)
        logits = torch.cat([flat.float() @ part.float().t() for part in parts], 1)  # (N, V)
    if bias is not None:
        logits = logits + bias.float()
    return logits.unflatten(0, hidden.shape[:-1])


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
