"""What a pass costs before it computes anything: its overhead, in seconds and in tokens.

    python benchmarks/gpu/passes.py

Forward and backward passes of a model of SmolLM2-135M's shape with random weights (bfloat16, sdpa,
the LM head at every sixth token), and a line fitted to them: seconds = overhead + tokens x each.
`agentgym_train/models/positions.py` estimates the overhead from layers and parameters.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch
from check import DEVICE, Check, synchronize
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym_train.models.positions import pass_cost_of

SHAPES = ((1, 512), (8, 768), (16, 768), (21, 768), (32, 768))
"""Rows and tokens of a row."""
TINY_SHAPES = ((1, 64), (4, 128), (8, 256))
SIZE = {
    "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
TINY_SIZE = {
    "vocab_size": 512, "hidden_size": 36, "intermediate_size": 64, "num_hidden_layers": 2,
}  # fmt: skip
EVERY = 6


def main() -> None:
    """Measure each shape and fit the line."""
    check = Check("passes", __doc__)
    config = LlamaConfig(**{**SIZE, **(TINY_SIZE if check.tiny else {})})
    model = LlamaForCausalLM(config).to(device=DEVICE, dtype=torch.bfloat16)
    shapes = TINY_SHAPES if check.tiny else SHAPES
    seconds = [seconds_of(model, *shape, passes=2 if check.tiny else 9) for shape in shapes]
    tokens = [rows * length for rows, length in shapes]
    each, overhead = np.polyfit(tokens, seconds, 1)
    check.write(
        passes=[
            {"rows": rows, "tokens": length, "seconds": round(took, 4)}
            for (rows, length), took in zip(shapes, seconds, strict=True)
        ],
        overhead_s=round(float(overhead), 4),
        microseconds_per_token=round(float(each) * 1e6, 2),
        overhead_in_tokens=round(float(overhead / each)),
        estimated_in_tokens=pass_cost_of(model),
    )


def seconds_of(model: LlamaForCausalLM, rows: int, length: int, passes: int) -> float:
    """Median seconds of a forward and backward pass, the first two left out."""
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device=DEVICE)
    took = []
    for _ in range(passes + 2):
        model.zero_grad()
        synchronize()
        began = time.perf_counter()
        hidden = model.model(ids, use_cache=False).last_hidden_state[:, ::EVERY]
        logits = model.lm_head(hidden).flatten(0, 1).float()
        torch.nn.functional.cross_entropy(logits, ids[:, ::EVERY].flatten()).backward()
        synchronize()
        took.append(time.perf_counter() - began)
    return median(took[2:])


if __name__ == "__main__":
    main()
