"""Small policies for the examples, the benchmarks and the tests: a Qwen3 model and its tokenizer.

The initial weights contain induction heads (arXiv:2209.11895), so that an untrained policy already
copies what followed a token before. That is most of what a text world requires of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentgym_train.models.setup import CHATML, TURN_BEGINS, TURN_ENDS

_PADDING = "<|endoftext|>"

EMBEDDING_STD = 0.08
_PREVIOUS_GAIN = 2.5
_MATCH_GAIN = 2.0
_PREVIOUS_FREQUENCIES = 4
"""The fastest rotary frequencies: together they identify the distance of one token."""
_SLOW = 0.01
"""Radians per token: slower rotary frequencies hardly depend on distance."""


def small_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A lossless byte-level BPE tokenizer of an environment's words, in ChatML."""
    tokenizer = Tokenizer(models.BPE())
    # A word or a digit takes the space before it along, so most words cost one token.
    pieces = Regex(r" ?[A-Za-z]+| ?[0-9]|\s|[^\sA-Za-z0-9]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PADDING, TURN_BEGINS, TURN_ENDS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_ENDS,
        pad_token=_PADDING,
        additional_special_tokens=[TURN_BEGINS],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML
    return fast


def small_policy(
    tokenizer: PreTrainedTokenizerFast,
    *,
    layers: int = 4,
    hidden: int = 128,
    heads: int = 4,
    max_length: int = 8192,
    seed: int = 0,
) -> Qwen3ForCausalLM:
    """A Qwen3-style policy of about a million parameters, with weights drawn from `seed`.

    `hidden / heads` is best 32 or 64: vLLM on CPU supports no smaller head.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=hidden * 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden // heads,
            max_position_embeddings=max_length,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = Qwen3ForCausalLM(config)
    induction_init(model, seed)
    return model


@torch.no_grad()
def induction_init(model: Qwen3ForCausalLM, seed: int) -> None:
    """Rewrite `model`'s initial weights in place.

    The residual stream of width C is split: tokens are embedded in the first half (its dimension 0
    is the same for every token), layer 0 writes the previous token into the second half, layer 1
    looks for places whose previous token is the current one and copies the token found there.
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
    """Radians per token of each rotary pair: (D / 2,)."""
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
    shift = torch.zeros(2 * half, 2 * half)
    shift[half:, :half] = torch.eye(half) * EMBEDDING_STD
    _carry_all(attention, shift)


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
