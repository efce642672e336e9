"""The values that the TRL configs of all methods have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from agentgym_train.config.run import RunConfig


def shared_values(config: RunConfig, batch: int, steps: int, checkpoints: Path) -> dict[str, Any]:
    """The values that the methods' TRL configs have in common; `batch` is of all processes."""
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(checkpoints),
        "run_name": Path(config.output_dir).name,
        "max_steps": steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "linear",
        "per_device_train_batch_size": batch // PartialState().num_processes,
        "gradient_accumulation_steps": 1,
        "seed": config.seed,
        "use_cpu": not on_gpu,
        "bf16": config.computes_in(on_gpu=on_gpu) == "bfloat16",
        "gradient_checkpointing": on_gpu,
        "logging_steps": 1,
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "disable_tqdm": True,
        # Every weight is used in every forward pass, so there is nothing to search for.
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "dataloader_num_workers": 0,
    }
