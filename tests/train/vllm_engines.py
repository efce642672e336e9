"""Engines for the tests of vLLM: made once, used by all, on one event loop."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from agentgym_train.config.engines import ColocateSettings, ServerSettings
from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.loading import load_policy
from tests.train.small import textcraft_tokenizer, tiny_model

MAX_TOKENS = 768
WARM = Path(__file__).parents[2] / "examples" / "train" / "textcraft" / "warm_policy"


@dataclass
class Stage:
    """The loop, and what is to be closed on it."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    engines: list[Any] = field(default_factory=list)
    """Of the whole module."""
    passing: list[Any] = field(default_factory=list)
    """Of one test."""
    servers: dict[str, list[Any]] = field(default_factory=dict)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def start_servers(self, models: dict[str, tuple[Any, int]]) -> None:
        """So many servers of each model, side by side: most of a start is waiting its turn."""
        from agentgym_train.engines.vllm.process import launch_for

        def start(model):
            return launch_for(model, ServerSettings(), max_tokens=MAX_TOKENS)

        with ThreadPoolExecutor() as pool:
            started = {
                name: [pool.submit(start, model) for _ in range(count)]
                for name, (model, count) in models.items()
            }
        self.servers = {name: [f.result() for f in futures] for name, futures in started.items()}

    def server(self, name: str, **settings: Any) -> Any:
        from agentgym_train.engines.vllm.server import VLLMServerEngine
        from agentgym_train.engines.vllm.wire import Member

        members = [Member(local.address, local) for local in self.servers[name]]
        engine = VLLMServerEngine(members, ServerSettings(**settings), max_tokens=MAX_TOKENS)
        self.engines.append(engine)
        return engine

    def colocate(self, model: Any, **settings: Any) -> Any:
        from agentgym_train.engines.vllm.colocate import VLLMColocateEngine

        engine = VLLMColocateEngine(model, ColocateSettings(**settings), max_tokens=MAX_TOKENS)
        self.passing.append(engine)
        return engine

    def end_test(self) -> None:
        for engine in self.passing:
            self.run(engine.close())
        self.passing.clear()

    def close(self) -> None:
        for engine in self.engines:
            self.run(engine.close())
        self.runner.close()


@cache
def untied_model() -> Any:
    """The quickstart's warm policy, with a head of its own."""
    model, _ = load_policy(str(WARM))
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    untied = type(model)(config).eval()
    untied.load_state_dict(model.state_dict())
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    return untied


@cache
def random_model() -> Any:
    """A small model whose logits are small, so that little is lost in bf16."""
    config = copy.deepcopy(tiny_model().config)
    config.tie_word_embeddings = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return type(tiny_model())(config).eval()


def changed(model: Any, seed: int = 1) -> Any:
    """The model after a large step into a random direction."""
    other = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * weight.std() * 0.3)
    return other


def hf_engine(model: Any) -> HFEngine:
    return HFEngine(model, textcraft_tokenizer().pad_token_id)


async def turns(engine: Any, prompts: Any, temperature: float = 0.0, **how: Any) -> Any:
    """One turn after each prompt, all at once."""
    n = how.pop("max_tokens", 16)
    return await asyncio.gather(
        *(
            engine.generate(p, Sampling(n, temperature, seed=seed, **how), ("talk", seed))
            for seed, p in enumerate(prompts)
        )
    )


def ids(generations: list[Generation]) -> list[list[int]]:
    return [g.token_ids for g in generations]


def worst_logprob(model: Any, prompts: Any, generations: Any, temperature: float = 1.0) -> float:
    """The largest difference to a forward pass over the whole conversation."""
    return float(logprob_errors(model, prompts, generations, temperature).abs().max())


def logprob_errors(
    model: Any, prompts: Any, generations: Any, temperature: float = 1.0, by: Any = None
) -> torch.Tensor:
    """(N,) what was told of the sampled tokens, or `by` says of them, less the model's forward."""
    errors = []
    for prompt, generation in zip(prompts, generations, strict=True):
        found = torch.tensor(generation.logprobs)  # (n,)
        if by is not None:
            found = _forward(by, prompt, generation, temperature)
        errors.append(found - _forward(model, prompt, generation, temperature))
    return torch.cat(errors)


@torch.no_grad()
def _forward(model: Any, prompt: Any, generation: Generation, temperature: float) -> torch.Tensor:
    every = torch.tensor([list(prompt) + generation.token_ids])  # (1, T)
    logits = model(every).logits[0, len(prompt) - 1 : -1].float() / temperature  # (n, V)
    return torch.log_softmax(logits, -1).gather(1, every[0, len(prompt) :, None]).squeeze(1)
