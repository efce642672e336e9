"""The update in bf16 beside TRL's: trained tokens a second and peak memory, for each kernel here.

    python benchmarks/gpu/update_throughput.py

TRL's trainer computes 4 episodes a pass with its fused LM head and sdpa; ours all that fit, with
sdpa, flex attention, and FlashAttention if it is installed. Random weights, ragged episodes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from check import DEVICE, ON_GPU, Check, synchronize
from trl import GRPOTrainer
from update import (
    SIZES,
    Ours,
    make_trainer,
    own_step,
    peak,
    ragged_batch,
    reset_peak,
    rows_of,
    start,
    step,
)

LARGE = {
    "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
"""About half a billion parameters."""
WAYS = {
    "TRL, sdpa": (GRPOTrainer, "sdpa", 4),
    "ours, sdpa": (Ours, "sdpa", 0),
    "ours, flex attention": (Ours, "flex_attention", 0),
    "ours, FlashAttention 2": (Ours, "flash_attention_2", 0),
    "ours, FlashAttention 3": (Ours, "flash_attention_3", 0),
}


def main() -> None:
    """Measure every way, one after another: two models would not share the memory fairly."""
    check = Check("update_throughput", __doc__)
    size = SIZES["small"] if check.tiny else LARGE
    batch = ragged_batch(4 if check.tiny else 64, 80, size["vocab_size"])
    trained = int(batch["num_items_in_batch"])
    found: dict[str, Any] = {}
    for name, (kind, attention, a_pass) in WAYS.items():
        if not ON_GPU and "Flash" in name:
            found[name] = {"not measured": "FlashAttention needs a GPU"}
            continue
        if check.left < 60:
            found[name] = {"not measured": "no time was left"}
            continue
        try:
            found[name] = measured(kind, attention, a_pass, size, batch, check)
        except (ImportError, ValueError, RuntimeError) as error:
            found[name] = {"not measured": str(error).splitlines()[0][:300]}
    for figures in found.values():
        if "seconds" in figures:
            figures["trained_tokens_per_s"] = trained / figures["seconds"]
            figures["times_trl"] = found["TRL, sdpa"]["seconds"] / figures["seconds"]
    check.write(model=size, episodes=len(batch["prompt_ids"]), trained_tokens=trained, ways=found)


def measured(
    kind: Any, attention: str, a_pass: int, size: dict[str, int], batch: Any, check: Check
) -> dict[str, float]:
    """Median seconds of a step, its peak memory and its loss."""
    trainer = make_trainer(kind, size, attention)
    trainer.model.to(DEVICE)
    if kind is Ours:
        start(trainer)
    rows = rows_of(batch)

    def once() -> float:
        return own_step(trainer, rows) if kind is Ours else step(trainer, batch, a_pass)

    loss = once()
    seconds, peaks = [], []
    for _ in range(1 if check.tiny else 7):
        before = reset_peak()
        synchronize()
        began = time.perf_counter()
        once()
        synchronize()
        seconds.append(time.perf_counter() - began)
        peaks.append((peak() - before) / 2**20)
        if check.left < 30:
            break
    return {
        "seconds": statistics.median(seconds),
        "peak_memory_mib": statistics.median(peaks),
        "loss": loss,
    }


if __name__ == "__main__":
    main()
