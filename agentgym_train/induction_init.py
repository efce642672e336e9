"""Initial weights that can already copy from their context: an induction head, wired by hand.

A model of a million parameters needs thousands of steps to discover that it can look up an earlier
token and repeat what followed it (the induction head of Olsson et al., arXiv:2209.11895). Here its
two halves are written into the initial weights of the first two layers, and training goes on from
there. Everything stays trainable; nothing about any environment is in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

EMBEDDING_STD = 0.08
_PREVIOUS_GAIN = 2.5
_MATCH_GAIN = 2.0
_PREVIOUS_FREQUENCIES = 4
"""The fastest rotary frequencies: together they single out the distance of one token."""
_SLOW = 0.01
"""Radians a token: slower rotary frequencies hardly see distance, so a match survives it."""


@torch.no_grad()
def induction_init(model: Qwen3ForCausalLM, seed: int) -> None:
    """Rewrite `model`'s initial weights in place.

    The residual stream of width C is split: tokens are embedded in the first half (its dimension 0
    is the same for every token), layer 0 writes the previous token into the second half, layer 1
    looks for places whose previous token is the present one and copies the token found there.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            writes = "down_proj" in name or "o_proj" in name
            weight.normal_(0.0, 0.02 if writes else 0.06, generator=generator)
    half = model.config.hidden_size // 2
    embedding = model.get_input_embeddings().weight  # (V, C)
    embedding.normal_(0.0, EMBEDDING_STD * 2**0.5, generator=generator)
    embedding[:, 0] = 2 * EMBEDDING_STD
    embedding[:, half:] = 0.0
    _previous_token_layer(model, half)
    _match_layer(model, half, generator)


def _frequencies(model: Qwen3ForCausalLM) -> Tensor:
    """Radians a token of each rotary pair: (D / 2,)."""
    return model.model.rotary_emb.inv_freq


def _previous_token_layer(model: Qwen3ForCausalLM, half: int) -> None:
    attention = model.model.layers[0].self_attn
    heads, dim = model.config.num_attention_heads, model.config.head_dim
    fast = _frequencies(model)[:_PREVIOUS_FREQUENCIES]
    query, key = torch.zeros(heads, dim, 2 * half), torch.zeros(heads, dim, 2 * half)
    pair = dim // 2
    # Keys of one fixed direction; queries are the same, turned back by one token.
    key[:, : len(fast), 0] = 1.0
    query[:, : len(fast), 0] = torch.cos(fast)
    query[:, pair : pair + len(fast), 0] = -torch.sin(fast)
    attention.q_proj.weight.copy_(query.flatten(0, 1))
    attention.k_proj.weight.copy_(key.flatten(0, 1))
    attention.q_norm.weight.fill_(_PREVIOUS_GAIN)
    attention.k_norm.weight.fill_(_PREVIOUS_GAIN)
    move = torch.zeros(2 * half, 2 * half)
    move[half:, :half] = torch.eye(half) * EMBEDDING_STD
    _carry_all(attention, move)


def _match_layer(model: Qwen3ForCausalLM, half: int, generator: torch.Generator) -> None:
    attention = model.model.layers[1].self_attn
    heads, dim = model.config.num_attention_heads, model.config.head_dim
    # The slowest of them, two rows each, and no more than there are directions to read.
    slow = (_frequencies(model) < _SLOW).nonzero().squeeze(1)[-((half - 1) // 2) :]
    rows = torch.cat([slow, slow + dim // 2])
    query, key = torch.zeros(heads, dim, 2 * half), torch.zeros(heads, dim, 2 * half)
    for head in range(heads):
        draw = torch.randn(half - 1, half - 1, generator=generator)
        reader = torch.linalg.qr(draw)[0][: len(rows)]  # skips dimension 0, alike in all tokens
        query[head, rows, 1:half] = reader
        key[head, rows, half + 1 :] = reader
    attention.q_proj.weight.copy_(query.flatten(0, 1))
    attention.k_proj.weight.copy_(key.flatten(0, 1))
    attention.q_norm.weight.fill_(_MATCH_GAIN)
    attention.k_norm.weight.fill_(_MATCH_GAIN)
    copy = torch.zeros(2 * half, 2 * half)
    copy[1:half, 1:half] = torch.eye(half - 1) * 4 * EMBEDDING_STD
    _carry_all(attention, copy)


def _carry_all(attention: Any, write: Tensor) -> None:
    """Values carry the whole residual, a slice a head; `write` (C, C) says where it lands."""
    attention.v_proj.weight.copy_(torch.eye(write.shape[0]))
    attention.o_proj.weight.copy_(write)
