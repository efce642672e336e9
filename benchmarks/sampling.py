"""Tokens a second of the transformers engine in long conversations, beside transformers' attention.

    OMP_NUM_THREADS=1 python benchmarks/sampling.py

Both roads are our engine with the same conversations, which it has in its cache. On one it attends
as transformers' sdpa does under a mask, which repeats keys and values for every query head; on the
other as it does by itself. They take turns as B, A, A, B, so that conversations are as long for
either.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from prefix_reuse import the_model
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf.contexts import GROUPED, grouped_attention
from agentgym_train.engines.hf.engine import HFEngine

ROADS = {
    "transformers' sdpa": sdpa_attention_forward,
    "ours": grouped_attention,
}


async def rates(model: Any, conversations: int, context: int, tokens: int) -> list[float]:
    """Sampled tokens a second of each road, all conversations of `context` tokens together."""
    engine = HFEngine(model, 0, dtype="float32")
    vocabulary = model.config.get_text_config().vocab_size
    draws = [random.Random(number) for number in range(conversations)]
    ids = [[draw.randrange(3, vocabulary) for _ in range(context)] for draw in draws]

    async def turn(number: int, most: int) -> None:
        said = await engine.generate(ids[number], Sampling(most, seed=len(ids[number])), number)
        ids[number] += [*said.token_ids, 3]

    async def all_turns(most: int) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(turn(number, most) for number in range(conversations)))
        return time.perf_counter() - began

    try:
        await all_turns(1)
        seconds = dict.fromkeys(ROADS, 0.0)
        for road in (*reversed(ROADS), *ROADS):
            AttentionInterface.register(GROUPED, ROADS[road])
            seconds[road] += await all_turns(tokens)
        return [2 * conversations * tokens / seconds[road] for road in ROADS]
    finally:
        await engine.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, random, or a folder")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=24, help="sampled in each conversation")
    args = parser.parse_args()
    model = the_model(args.model)
    print("| context | " + " | ".join(ROADS) + " | ratio |\n|" + "---|" * (len(ROADS) + 2))
    for context in args.contexts:
        found = asyncio.run(rates(model, args.conversations, context, args.tokens))
        cells = [f"{context:,}", *(f"{rate:.1f}" for rate in found), f"{found[1] / found[0]:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
