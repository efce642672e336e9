"""How long an update of the weights takes: to a file, from a file, and to a colocated vLLM.

python benchmarks/gpu/weight_updates.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from check import DEVICE, Check, steps_of, synchronize
from prefix_reuse import the_model
from safetensors.torch import load_file, save_file

from agentgym_train.models.weights import checkpoint_weights


def main() -> None:
    """Measure and write."""
    check = Check("weight_updates", __doc__)
    model = the_model("random" if check.tiny else "smollm2").to(DEVICE, torch.bfloat16)
    weights = checkpoint_weights(model)
    copies = {name: torch.empty_like(weight) for name, weight in weights.items()}
    path = check.out / "weights.safetensors"

    def write() -> None:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, path)

    def read() -> None:
        for name, weight in load_file(path, device=DEVICE).items():
            copies[name].copy_(weight)

    def copy() -> None:
        for name, weight in weights.items():
            copies[name].copy_(weight)

    seconds = {"copy on the device": timed(copy), "write a file": timed(write)}
    seconds["read the file"] = timed(read)
    path.unlink()
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    check.write(mib=size / 2**20, update_seconds=seconds, vllm_colocate=colocated(check))


def timed(what: Callable[[], None], rounds: int = 5) -> float:
    """Median seconds, after a warm-up."""
    what()
    found = []
    for _ in range(rounds):
        synchronize()
        began = time.perf_counter()
        what()
        synchronize()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def colocated(check: Check) -> dict[str, Any]:
    """Three steps of a run whose vLLM shares the device."""
    if find_spec("vllm") is None:
        return {"not measured": "vLLM is not installed"}
    run = Path(check.out) / "weight-updates-run"
    check.agentgym(
        "train", "starter:textcraft/rl.yaml", "engine=vllm_colocate", f"output_dir={run}",
        "steps=3", "eval.before=false", "eval.after=false",
    )  # fmt: skip
    return steps_of(run)


if __name__ == "__main__":
    main()
