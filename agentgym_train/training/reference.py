"""The reference policy: a frozen copy of the policy at the start, or the policy without adapters.

TRL would load it from the path of the policy, without changes made in memory, and in a precision
that differs between its versions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from accelerate.utils import DistributedType
from torch import Tensor
from trl.models.utils import prepare_deepspeed, prepare_fsdp

from agentgym_train.training.head import add_scoring
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.update import Update


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
