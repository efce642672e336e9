"""Weight updates of a vLLM server on this machine: all weights, and only LoRA adapters.

    python benchmarks/lora_updates.py

For each manner: the time of an update, how long the server pauses for it, and the tokens per second
that it samples afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from peft import LoraConfig, get_peft_model

from agentgym_train.config.engines import ServerSettings
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.vllm.server import VLLMServerEngine, make_engine
from agentgym_train.models.loading import load_policy

MAX_TOKENS = 512


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="starter:textcraft/warm_policy")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    model, _ = load_policy(args.model)
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).eval()
    print("| sent | update, ms | pause, ms | longest pause, ms | tokens/s |")
    print("|---|---:|---:|---:|---:|")
    for adapters in (False, True):
        settings = ServerSettings(adapter_updates=adapters)
        engine = make_engine(settings, model, pad_id=0, max_tokens=MAX_TOKENS, dtype=None)
        update, pauses, rate = asyncio.run(measured(engine, model, args.rounds))
        pause, longest = statistics.median(pauses), max(pauses)
        print(f"| {'adapters' if adapters else 'all weights'} | {update:.0f} | {pause:.0f} "
              f"| {longest:.0f} | {rate:,.0f} |", flush=True)  # fmt: skip


async def measured(
    engine: VLLMServerEngine, model: Any, rounds: int
) -> tuple[float, list[float], float]:
    """(median milliseconds of an update, milliseconds of each pause, tokens per second)."""
    marks: dict[str, float] = {}
    call = engine._wire.call

    async def timed(address: str, path: str, body: Any = None) -> Any:
        marks.setdefault(path.partition("?")[0], time.perf_counter())
        found = await call(address, path, body)
        marks[f"after {path}"] = time.perf_counter()
        return found

    engine._wire.call = timed  # type: ignore[method-assign]
    updates, pauses = [], []
    for version in range(rounds + 5):
        marks.clear()
        began = time.perf_counter()
        await engine.update_weights(model, version)
        updates.append(1e3 * (time.perf_counter() - began))
        paused = "/pause" in marks
        pauses.append(1e3 * (marks["after /resume"] - marks["/pause"]) if paused else 0.0)
    rates = [await rate(engine) for _ in range(4)]
    await engine.close()
    # The first ones compile and load.
    return statistics.median(updates[5:]), pauses[5:], max(rates)


async def rate(engine: VLLMServerEngine) -> float:
    """Tokens per second of 32 turns at once."""
    began = time.perf_counter()
    found = await asyncio.gather(
        *(engine.generate([5, 6, 7 + i], Sampling(64, 1.0, seed=i)) for i in range(32))
    )
    return sum(len(each.token_ids) for each in found) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
