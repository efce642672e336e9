"""Micro-batches of rows of similar length, and the loss of a step over all of them.

Used by all training methods. A micro-batch is one forward and one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from agentgym_env.errors import ConfigError
from agentgym_train.models.padding import PASS_COST, like_lengths, pass_cost_of

MicroBatches = list[list[int]]
"""Row indices of each forward and backward pass; every row is in exactly one."""

_BUDGET = {"cpu": 4096}

_BUDGET_ELSEWHERE = 16384
"""Default tokens per micro-batch; the value for CPUs is measured."""


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


def rows_of(inputs: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The given rows of every tensor that has rows."""
    return {
        name: value[list(rows)] if isinstance(value, Tensor) and value.dim() else value
        for name, value in inputs.items()
    }


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
