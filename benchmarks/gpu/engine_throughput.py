"""Sampled tokens a second: the hf engine with and without CUDA graphs, and transformers.

    python benchmarks/gpu/engine_throughput.py

transformers samples by `generate` and by continuous batching. SmolLM2-135M; every conversation
samples as many tokens, so `generate` pads nothing away. The ways take turns, and the best of the
rounds is shown.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import torch
from check import DEVICE, Check, synchronize
from continuous_batching import Turn, ours, theirs
from prefix_reuse import the_model

from agentgym_train.engines.base import Sampling


def main() -> None:
    """Measure and write."""
    check = Check("engine_throughput", __doc__)
    model = the_model("random" if check.tiny else "smollm2").to(DEVICE)
    if not check.tiny:
        model = model.to(torch.bfloat16)
    vocabulary = model.config.get_text_config().vocab_size
    found = {}
    for conversations, context in [(2, 32)] if check.tiny else [(16, 512), (64, 512), (256, 1024)]:
        if check.left > 120:
            found[f"{conversations} conversations of {context} tokens"] = rates(
                model, vocabulary, conversations, context, 4 if check.tiny else 64, check
            )
    check.write(tokens_per_s=found)


def rates(
    model: Any, vocabulary: int, conversations: int, context: int, tokens: int, check: Check
) -> dict[str, Any]:
    """Tokens a second of each engine, or why there are none."""
    draw = random.Random(0)
    episodes = [
        [
            Turn(
                [draw.randrange(3, vocabulary) for _ in range(context)],
                Sampling(tokens, 1.0, (), n),
            )
        ]
        for n in range(conversations)
    ]
    # On a GPU the manager takes as many blocks as fit.
    blocks = {"num_blocks": 64, "block_size": 32} if check.tiny else {}
    ways = {
        "hf engine": lambda: asyncio.run(ours(model, 0, episodes)).seconds,
        "hf engine with CUDA graphs": lambda: (
            asyncio.run(ours(model, 0, episodes, cuda_graphs=True)).seconds
        ),
        "generate": lambda: generate(model, episodes, tokens),
        "continuous batching": lambda: (
            asyncio.run(theirs(model, 0, episodes, max_batch_tokens=4096, **blocks)).seconds
        ),
    }
    found: dict[str, Any] = {}
    for _ in range(1 if check.tiny else 3):
        for name, way in ways.items():
            if isinstance(found.get(name), str) or check.left < 60:
                continue
            model.set_attn_implementation("sdpa")
            try:
                seconds = way()
            except (ImportError, ValueError, RuntimeError) as error:
                found[name] = f"failed: {str(error).splitlines()[0][:300]}"
                continue
            found[name] = max(found.get(name, 0.0), conversations * tokens / seconds)
    return found


@torch.no_grad()
def generate(model: Any, episodes: list[list[Turn]], tokens: int) -> float:
    """Seconds of transformers' generate for all conversations in one batch."""
    ids = torch.tensor([turns[0].prompt for turns in episodes], device=DEVICE)
    synchronize()
    began = time.perf_counter()
    model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0,
        max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0,
    )  # fmt: skip
    synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
