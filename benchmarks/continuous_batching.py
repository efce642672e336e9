"""Our transformers engine beside transformers' ContinuousBatchingManager, on TextCraft's rollouts.

    OMP_NUM_THREADS=1 python benchmarks/continuous_batching.py

The warm policy plays TextCraft once, and its prompts are recorded. Then each engine samples the
same turns again, with the same limits: a turn is requested when the one before it in its episode
has ended, and all episodes run side by side. Greedy turns show the speed, turns at temperature 1
how far the log-probabilities of the sampled tokens are from those of a plain forward pass.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.evaluation.play import evaluate
from agentgym_train.models.loading import load_policy, quiet_libraries
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner

WARM = Path(__file__).parents[1] / "examples" / "train" / "textcraft" / "warm_policy"
Generate = Callable[[list[int], Sampling, Hashable], Awaitable[tuple[list[int], list[float]]]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded request."""

    prompt: list[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Replayed:
    """What an engine made of the recorded turns."""

    seconds: float
    turns: list[tuple[Turn, list[int], list[float]]]
    """Each with the sampled ids and their log-probabilities."""

    @property
    def tokens(self) -> int:
        """Sampled in all turns."""
        return sum(len(ids) for _, ids, _ in self.turns)


class Recorder:
    """The engine of a real rollout, which keeps what it is asked for."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.episodes: dict[Hashable, list[Turn]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, conversation: Hashable = None
    ) -> Generation:
        """Sample as the engine does."""
        self.episodes.setdefault(conversation, []).append(Turn(list(prompt_ids), sampling))
        return await self._engine.generate(prompt_ids, sampling, conversation)


def recorded(episodes: int, horizon: int) -> list[list[Turn]]:
    """The turns of real episodes of held-out tasks, one list per episode."""
    config = PolicyConfig(
        model=str(WARM), instruction="", turn_max_tokens=32, max_tokens=1024, temperature=0.0
    )
    with RolloutRunner("agentgym/TextCraft-v0") as runner:
        policy = make_policy(config, env_instruction=runner.card.instruction)
        recorder = Recorder(policy.engine)
        actors = replace(policy, engine=recorder).actors()
        evaluate(runner, actors, split="test", horizon=horizon, limit=episodes)
        runner.run(policy.engine.close())
    return list(recorder.episodes.values())


async def replayed(generate: Generate, episodes: Sequence[Sequence[Turn]]) -> Replayed:
    """All episodes side by side, the turns of each one after the other."""

    async def play(number: int) -> list[tuple[Turn, list[int], list[float]]]:
        found = []
        for turn in episodes[number]:
            found.append((turn, *await generate(turn.prompt, turn.sampling, number)))
        return found

    began = time.perf_counter()
    played = await asyncio.gather(*map(play, range(len(episodes))))
    return Replayed(time.perf_counter() - began, [turn for turns in played for turn in turns])


async def ours(
    model: Any, pad_id: int, episodes: Sequence[Sequence[Turn]], **settings: Any
) -> Replayed:
    """HFEngine."""
    engine = HFEngine(model, pad_id, **settings)

    async def generate(
        prompt: list[int], sampling: Sampling, number: Hashable
    ) -> tuple[list[int], list[float]]:
        found = await engine.generate(prompt, sampling, number)
        return found.token_ids, found.logprobs

    try:
        return await replayed(generate, episodes)
    finally:
        await engine.close()


async def theirs(
    model: Any, pad_id: int, episodes: Sequence[Sequence[Turn]], **settings: Any
) -> Replayed:
    """ContinuousBatchingManager."""
    first = episodes[0][0].sampling
    sampled = {"do_sample": True, "temperature": first.temperature} if first.temperature else {}
    config = GenerationConfig(
        max_new_tokens=first.max_tokens, eos_token_id=list(first.stop_ids), pad_token_id=pad_id,
        **({"top_k": 0, "top_p": 1.0, **sampled} if sampled else {"do_sample": False}),
    )  # fmt: skip
    batching = ContinuousBatchingConfig(return_logprobs=True, seed=0, **settings)
    manager = model.init_continuous_batching(config, continuous_batching_config=batching)
    manager.start()

    async def generate(
        prompt: list[int], sampling: Sampling, _: Hashable
    ) -> tuple[list[int], list[float]]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        name = f"{id(reply)}"
        manager.register_result_handler(name, reply.set_result)
        manager.add_request(prompt, request_id=name, max_new_tokens=sampling.max_tokens)
        found = await reply
        if found.error:
            raise RuntimeError(found.error)
        return found.generated_tokens, found.logprobs

    try:
        return await replayed(generate, episodes)
    finally:
        manager.stop(block=True)


@torch.no_grad()
def off_by(model: Any, found: Replayed, temperature: float, turns: int = 40) -> float:
    """The largest difference of a log-probability from a plain forward pass, in some turns."""
    model.set_attn_implementation("sdpa")
    worst = 0.0
    for turn, ids, logprobs in found.turns[:: max(1, len(found.turns) // turns)]:
        whole = torch.tensor([turn.prompt + ids])
        logits = model(whole).logits[0, len(turn.prompt) - 1 : -1] / temperature  # (n, V)
        exact = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])[:, 0]  # (n,)
        worst = max(worst, float((exact - torch.tensor(logprobs)).abs().max()))
    return worst


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    quiet_libraries()
    model, tokenizer = load_policy(str(WARM))
    model.eval()
    pad = tokenizer.pad_token_id
    blocks = {"num_blocks": 1024, "max_batch_tokens": 2048, "block_size": 32}
    ways: dict[str, Callable[[Sequence[Sequence[Turn]]], Any]] = {
        "ours": lambda episodes: ours(model, pad, episodes),
        "theirs": lambda episodes: theirs(model, pad, episodes, **blocks),
    }
    print("| episodes | engine | tokens | tokens/s | same greedy turns | log-probability off by |")
    print("|---:|---|---:|---:|---:|---:|")
    for count in given.episodes:
        greedy = recorded(count, given.horizon)
        drawn = [
            [replace(t, sampling=replace(t.sampling, temperature=1.0)) for t in turns]
            for turns in greedy
        ]
        rates: dict[str, list[float]] = {name: [] for name in ways}
        replies: dict[str, list[list[int]]] = {}
        for _ in range(given.rounds):
            for name, way in ways.items():
                model.set_attn_implementation("sdpa")
                found = asyncio.run(way(greedy))
                rates[name].append(found.tokens / found.seconds)
                replies[name] = [ids for _, ids, _ in found.turns]
        for name, way in ways.items():
            same = sum(a == b for a, b in zip(replies["ours"], replies[name], strict=True))
            model.set_attn_implementation("sdpa")
            off = off_by(model, asyncio.run(way(drawn)), 1.0)
            print(
                f"| {count} | {name} | {sum(map(len, replies[name])):,} | {max(rates[name]):,.0f} "
                f"| {same} of {len(replies[name])} | {off:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
