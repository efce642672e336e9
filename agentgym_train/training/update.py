"""The update of every method: rows of tokens -> micro-batches -> loss -> optimizer.

It is an object of its own, so that none of its names can hide one of TRL's trainers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor
from trl.models.utils import prepare_deepspeed, prepare_fsdp

from agentgym_train.training.finite import check_gradient
from agentgym_train.training.head import add_scoring
from agentgym_train.training.loss import Loss, Parts, RowScores
from agentgym_train.training.microbatches import MicroBatcher, backward
from agentgym_train.training.rows import Layout, TokenRows, shares_rows_of

logger = logging.getLogger(__name__)


class Update:
    """Computes a trainer's updates.

    Loss, gradient and metrics are sums over the trained tokens of all processes, so they do not
    depend on how rows are divided among micro-batches and processes, or whether they are padded or
    packed.
    """

    def __init__(
        self, trainer: Any, loss: Loss, *, max_tokens: int, shared_rows: bool | None = None
    ) -> None:
        """`trainer` is a transformers Trainer whose model has scores (see `add_scoring`).

        `max_tokens` is the maximum per micro-batch; 0 chooses a default. `shared_rows` packs rows;
        None does so where attention supports it.
        """
        self._trainer = trainer
        self._loss = loss
        model = trainer.accelerator.unwrap_model(trainer.model)
        if shared_rows is None:
            shared_rows = shares_rows_of(model)
        self.microbatches = MicroBatcher(
            trainer.accelerator, model, max_tokens, shared_rows=shared_rows
        )

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self._trainer.accelerator.process_index)

    def run(self, model: Any, updates: Sequence[TokenRows]) -> tuple[Tensor, dict[str, float]]:
        """Compute the gradient of each update, and take the optimizer steps of all but the last.

        The Trainer takes the last one. Returns the mean loss of the updates, of which each process
        has its share times the number of processes, and the metrics. A collective.
        """
        if isinstance(model, torch.nn.DataParallel):
            _warn_of_one_gpu()
            model = model.module
        losses, norms, sums = [], [], _Sums()
        for number, rows in enumerate(updates, 1):
            losses.append(self._gradient(model, rows, sums))
            if number < len(updates):
                norms.append(self._step(model))
        metrics = sums.means(self._trainer.accelerator)
        if norms:
            metrics["earlier_grad_norm"] = sum(norms) / len(norms)
        return torch.stack(losses).mean(), metrics

    @torch.no_grad()
    def logprobs(self, rows: TokenRows, model: Any = None) -> Tensor:
        """(R, W) log-probabilities of the trained tokens by a model, 0 elsewhere. A collective.

        The default is the policy.
        """
        model = self._trainer.model if model is None else model
        return self.microbatches.collected(rows, lambda own: self.scores(model, own).logprobs)

    def scores(self, model: Any, rows: TokenRows) -> RowScores:
        """The scores of R rows, in one pass through a model."""
        layout = Layout.from_rows(rows, shared_rows=self.microbatches.shared_rows)
        with self._trainer.accelerator.autocast():
            found = model(
                **layout.arguments(), scored_at=layout.predictors, scored_ids=layout.labels
            )
        logprobs, entropy, is_top = found
        return RowScores(
            layout.spread(logprobs), layout.spread(entropy), layout.spread(is_top.float())
        )

    def _gradient(self, model: Any, rows: TokenRows, sums: _Sums) -> Tensor:
        """Run the backward passes of an update; the loss, times the number of processes."""
        accelerator = self._trainer.accelerator
        losses = []
        for part in self.microbatches.split(rows):
            own = rows.take(part.rows)
            with self.microbatches.waiting(model, is_last=part.is_last):
                found = self._loss(self.scores(model, own), own)
                # Gradients are averaged over processes.
                loss = found.loss * (accelerator.num_processes if part.is_real else 0.0)
                backward(accelerator, loss, is_last=part.is_last)
            losses.append(loss.detach())
            if part.is_real:
                sums.add(found)
        return torch.stack(losses).sum()

    def _step(self, model: Any) -> float:
        """Take an optimizer step as transformers does; the norm of the gradient."""
        trainer = self._trainer
        most = trainer.args.max_grad_norm or float("inf")
        norm = float(trainer.accelerator.clip_grad_norm_(model.parameters(), most))
        check_gradient(trainer, norm, trainer.state.global_step + 1)
        trainer.optimizer.step()
        model.zero_grad()
        return norm


class _Sums:
    """Sums of a step's metrics, and what they are means over."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def add(self, parts: Parts) -> None:
        """Add a micro-batch."""
        for name, value in {**parts.sums, "": parts.items}.items():
            self._values[name] = self._values.get(name, 0.0) + value.detach().double()

    def means(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; NaN if nothing is trained. A collective."""
        names = sorted(self._values)
        stacked = torch.stack([self._values[name] for name in names])
        sums = dict(zip(names, accelerator.reduce(stacked, "sum").tolist(), strict=True))
        count = sums.pop("")
        return {name: value / count if count else float("nan") for name, value in sums.items()}


@cache
def _warn_of_one_gpu() -> None:
    logger.warning("this process trains on one GPU; for several, set --num-processes")


class Reference:
    """Scores tokens as the policy did before training."""

    def __init__(
        self, model: Any, lora: Mapping[str, Any] | None, temperature: float = 1.0
    ) -> None:
        """Of a policy that no trainer has wrapped yet; with adapters nothing is copied."""
        self.model: Any = None
        """The copy, if there is one."""
        self._without_adapters: Any = nullcontext
        self._is_prepared = False
        if lora is None:
            self.model = copy.deepcopy(model).requires_grad_(False).eval()
            add_scoring(self.model, temperature)

    def prepare(self, trainer: Any, prepared: Any = None) -> None:
        """Move the copy to the trainer's device, and shard it as the policy is.

        `prepared` is the copy if TRL has done that.
        """
        accelerator = trainer.accelerator
        if self._is_prepared and self.model is not None:
            return
        self._is_prepared = True
        if self.model is None:
            self._without_adapters = accelerator.unwrap_model(trainer.model).disable_adapter
        elif prepared is not None:
            self.model = prepared
        elif accelerator.distributed_type == DistributedType.DEEPSPEED:
            self.model = prepare_deepspeed(self.model, accelerator)
        elif accelerator.distributed_type == DistributedType.FSDP:
            self.model = prepare_fsdp(self.model, accelerator)
        else:
            self.model.to(accelerator.device)

    def logprobs(self, update: Update, rows: TokenRows) -> Tensor:
        """(R, W) log-probabilities of the trained tokens, 0 elsewhere. A collective."""
        with self._without_adapters():
            return update.logprobs(rows, self.model)
