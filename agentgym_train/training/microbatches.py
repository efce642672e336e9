"""Micro-batches of rows of similar length, with the LM head on trained tokens only.

Used by all training methods. A micro-batch is one forward and one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_train.models.padding import PASS_COST, like_lengths, pass_cost_of

MicroBatches = list[list[int]]

"""Row indices of each forward and backward pass; every row is in exactly one."""

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


def plan(
    lengths: Sequence[int], budget: int, *, shared_rows: bool, pass_cost: int = PASS_COST
) -> MicroBatches:
    """Micro-batches of at most `budget` tokens with padding; a longer row gets its own.

    `pass_cost` is the overhead of a micro-batch in tokens. The largest is first, so that a run that
    exceeds the memory fails at its first micro-batch.
    """
    passes = _bins(lengths, budget) if shared_rows else like_lengths(lengths, pass_cost, budget)
    return sorted(passes, key=lambda rows: -sum(lengths[row] for row in rows))


def split(passes: MicroBatches, lengths: Sequence[int], count: int) -> MicroBatches:
    """The same rows in `count` micro-batches, by repeatedly halving the largest divisible one.

    The processes of a distributed model need equal numbers of micro-batches.
    """
    passes = list(passes)
    while len(passes) < count:
        divisible = [number for number, rows in enumerate(passes) if len(rows) > 1]
        if not divisible:
            raise ValueError(
                f"{len(lengths)} rows cannot be split into {count} micro-batches; give every "
                "process the same number of rows"
            )
        largest = max(divisible, key=lambda number: sum(lengths[r] for r in passes[number]))
        rows = passes[largest]
        passes[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return passes


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


def _bins(lengths: Sequence[int], budget: int) -> MicroBatches:
    """First fit, longest rows first."""
    passes: MicroBatches = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        fits = next((n for n, left in enumerate(room) if left >= lengths[row]), None)
        if fits is None:
            passes.append([row])
            room.append(budget - lengths[row])
        else:
            passes[fits].append(row)
            room[fits] -= lengths[row]
    return passes


_BUDGET = {"cpu": 4096}

_BUDGET_ELSEWHERE = 16384

"""Default tokens per micro-batch; the value for CPUs is measured."""


def make_microbatches(
    accelerator: Accelerator,
    model: Any,
    lengths: Sequence[int],
    budget: int,
    *,
    shared_rows: bool,
) -> MicroBatches:
    """This process's micro-batches, as many as the process with the most needs. A collective.

    `budget` is the maximum tokens per micro-batch; 0 chooses a default for the device.
    """
    device = accelerator.device
    budget = budget or _BUDGET.get(device.type, _BUDGET_ELSEWHERE)
    cost = pass_cost_of(model)
    passes = plan(lengths, budget, shared_rows=shared_rows, pass_cost=cost)
    if accelerator.num_processes > 1:
        counts = accelerator.gather(torch.tensor([len(passes)], device=device))
        passes = split(passes, lengths, int(counts.max()))
    return passes


@contextmanager
def synced(accelerator: Accelerator, model: Any, is_last: bool) -> Iterator[None]:
    """Synchronize DDP gradients only at the last micro-batch; sharded models do it at each."""
    by_ddp = accelerator.distributed_type in (
        DistributedType.MULTI_GPU,
        DistributedType.MULTI_CPU,
    )
    if is_last or not by_ddp:
        yield
    else:
        with accelerator.no_sync(model):
            yield


def backward(accelerator: Accelerator, loss: Tensor) -> None:
    """Accumulate the gradient of a micro-batch that is not the step's last."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        engine = accelerator.deepspeed_engine_wrapped
        engine.backward(loss, sync_gradients=False, scale_wrt_gas=False)
    else:
        accelerator.backward(loss)


def merge_metrics(
    metrics: dict[str, list[float]], before: Mapping[str, int], weights: Sequence[float]
) -> None:
    """Merge the values that TRL logged per micro-batch: a weighted mean, or the minimum or maximum.

    `before` is the number of values of each metric before the micro-batches; `weights` are the
    weights of the micro-batches.
    """
    for name, values in metrics.items():
        first = before.get(name, 0)
        found = [(v, n) for v, n in zip(values[first:], weights, strict=False) if v == v and n]
        if not values[first:]:
            continue
        if not found:
            merged = nan  # no tokens were trained on
        elif name.endswith(("_min", "_max")):
            merged = (min if name.endswith("_min") else max)(v for v, _ in found)
        else:
            merged = sum(v * n for v, n in found) / sum(n for _, n in found)
        values[first:] = [merged]


def loss_in_microbatches(
    accelerator: Accelerator,
    model: Any,
    microbatches: MicroBatches,
    loss_of: Callable[[list[int]], Tensor],
    metrics: dict[str, list[float]],
    weights: Sequence[float],
) -> Tensor:
    """The loss of a step; runs the backward pass of all micro-batches except the last.

    `loss_of` returns TRL's loss of some rows, scaled so that the losses of all micro-batches add
    up. The values that TRL appends to `metrics` per micro-batch are merged by `weights`.
    """
    before = {name: len(values) for name, values in metrics.items()}
    computed: Tensor | float = 0.0
    for number, rows in enumerate(microbatches, 1):
        is_last = number == len(microbatches)
        with synced(accelerator, model, is_last):
            loss = loss_of(rows)
            if not is_last and torch.is_grad_enabled():
                backward(accelerator, loss)
        computed = computed + loss.detach()
    merge_metrics(metrics, before, weights)
    return loss + (computed - loss.detach())


def summed(accelerator: Accelerator, values: Tensor) -> list[float]:
    """The sums over all processes of one value per micro-batch. A collective."""
    total: Tensor = accelerator.reduce(values.float(), reduction="sum")
    return total.tolist()


def shares_rows_of(core: Any) -> bool:
    """Whether rows of an unwrapped model can hold several episodes; see `shares_rows`."""
    model = core.get_base_model() if hasattr(core, "get_base_model") else core
    return shares_rows(model.config.get_text_config(), bool(model._is_stateful))


def rows_of(inputs: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The given rows of every tensor that has rows."""
    return {
        name: value[list(rows)] if isinstance(value, Tensor) and value.dim() else value
        for name, value in inputs.items()
    }


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


def check_router_loss(trainer: Any) -> None:
    """Raise `ConfigError` if TRL cannot compute the load-balancing loss of a model's routers.

    TRL adds it for every mixture of experts, and expects these names in the model's config.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    config = model.config.get_text_config()
    missing = [n for n in ("num_experts", "num_experts_per_tok") if not hasattr(config, n)]
    if trainer.aux_loss_enabled and missing:
        raise ConfigError(
            f"TRL cannot compute the load-balancing loss of {config.model_type}, whose config has "
            f"no {missing[0]}; train without it: trainer_args: {{router_aux_loss_coef: 0}}"
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
