"""Packs rows into the input of one model call, and scores the trained tokens alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym_env.errors import AgentGymError, ConfigError

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one model call for R rows of W columns, and the positions to score."""

    input_ids: Tensor
    """(R, L) each row's tokens from column 0 on, or (1, N) all rows concatenated."""
    position_ids: Tensor | None
    """(1, N) restarting at every row; None if positions are the columns."""
    predictors: Tensor
    """(S,) index into the flattened `input_ids` of the token before each scored token."""
    labels: Tensor
    """(S,) the scored tokens."""
    scored: Tensor
    """(R, W) bool: the positions of the S scores, in order."""


def shares_rows(config: Any, stateful: bool) -> bool:
    """Whether several episodes can be packed into one row: this needs varlen attention.

    FlashAttention derives the boundaries of episodes from the position ids. Other kernels would
    need a dense mask over the whole row, and a recurrent layer would leak one episode into the
    next.
    """
    layers = set(getattr(config, "layer_types", None) or ())
    varlen = "flash" in (config._attn_implementation or "")
    return varlen and not stateful and layers <= _ATTENTION_LAYERS


def pack(
    input_ids: Tensor, attention_mask: Tensor, trained: Tensor, *, shared_rows: bool
) -> Layout:
    """The `Layout` of R padded rows; all inputs are (R, W), `trained` is true at trained tokens.

    Left padding is removed, so that positions count from the first token. Right padding needs no
    mask, since attention is causal. A row's first token has no predictor and is not scored.
    """
    real = attention_mask.bool()  # (R, W)
    position = real.cumsum(1) - 1  # (R, W)
    lengths = real.sum(1)  # (R,)
    if shared_rows:
        first = lengths.cumsum(0) - lengths  # (R,)
        ids = input_ids[real][None]  # (1, N)
    else:
        width = int(lengths.max())
        first = torch.arange(len(lengths), device=lengths.device) * width  # (R,)
        ids = input_ids.new_zeros(len(lengths), width)  # (R, L)
    flat = first[:, None] + position  # (R, W)
    if not shared_rows:
        ids.view(-1)[flat[real]] = input_ids[real]
    scored = trained.bool() & real & (position > 0)  # (R, W)
    return Layout(
        input_ids=ids,
        position_ids=position[real][None] if shared_rows else None,
        predictors=flat[scored] - 1,  # (S,)
        labels=input_ids[scored],  # (S,)
        scored=scored,
    )


def shares_rows_of(core: Any) -> bool:
    """Whether rows of an unwrapped model can hold several episodes; see `shares_rows`."""
    model = core.get_base_model() if hasattr(core, "get_base_model") else core
    return shares_rows(model.config.get_text_config(), bool(model._is_stateful))


@torch.no_grad()
def check_packing(model: Any) -> None:
    """Raise `ConfigError` if packed episodes would influence each other in this model.

    Runs the model: two short texts in one row must give the same result as each of them alone.
    """
    length = 8
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.arange(2 * length, device=device)[None] % vocabulary  # (1, 2 length)
    positions = torch.arange(length, device=device).repeat(2)[None]  # (1, 2 length)
    was_training = model.training
    model.eval()
    together = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, length:]
    alone = model(input_ids=ids[:, length:], use_cache=False).logits[0]
    model.train(was_training)
    if not torch.allclose(together, alone, rtol=1e-2, atol=1e-2):
        raise ConfigError(
            f"packing: the output of {type(model).__name__} for a text depends on the text before "
            "it in its row. Set packing: false; rows are then padded"
        )


class UnscorableModel(AgentGymError, RuntimeError):
    """The model's backbone does not return one hidden vector per input token."""


def backbone_of(model: Any) -> Any:
    """The model below the LM head of an unwrapped model, with its PEFT adapters."""
    return (model.get_base_model() if hasattr(model, "get_base_model") else model).base_model


def score(model: Any, backbone: Any, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """(logprobs (R, W), entropies (R, W) or None), 0 where nothing is scored.

    `model` has TRL's fused LM head and may be wrapped for distribution; `backbone` is a part of it.
    The head computes its logits in tiles, and again in the backward pass, so no (S, V) tensor is
    kept. It also applies temperature, softcapping and scaling.
    """
    positions = packed_positions(layout)
    with hidden_states_at(backbone, layout):
        output = model(
            input_ids=layout.input_ids,
            shift_labels=layout.labels[None],  # (1, S)
            fused_lm_head=True,
            **positions,
        )

    def back(values: Tensor) -> Tensor:
        return values.new_zeros(layout.scored.shape).masked_scatter(layout.scored, values)

    return back(output.log_probs), None if output.entropy is None else back(output.entropy)


def packed_positions(layout: Layout) -> dict[str, Any]:
    """The arguments of a model call that separate the episodes of a packed row.

    Varlen attention gets the boundaries, so that it need not find them again in each layer.
    """
    positions = layout.position_ids
    if positions is None:
        return {}
    starts = (positions[0] == 0).nonzero()[:, 0]  # (R,)
    bounds = torch.cat([starts, starts.new_tensor([positions.shape[1]])]).int()  # (R + 1,)
    longest = int(bounds.diff().max())
    return {
        "position_ids": positions,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


@contextmanager
def hidden_states_at(backbone: Any, layout: Layout) -> Iterator[None]:
    """Context in which the backbone returns only the predictors' hidden states, as (1, S, H)."""

    def select(module: Any, inputs: Any, output: Any) -> Any:
        hidden = output.last_hidden_state  # (R, L, H)
        if hidden.shape[:2] != layout.input_ids.shape:
            raise UnscorableModel(
                f"{type(module).__name__} returned {tuple(hidden.shape[:2])} hidden vectors for "
                f"{tuple(layout.input_ids.shape)} tokens; train without virtual prompt tokens"
            )
        output.last_hidden_state = hidden.flatten(0, 1)[layout.predictors][None]  # (1, S, H)
        return output

    handle = backbone.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()
