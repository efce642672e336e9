"""LoRA adapters on a real vLLM server: the base weights once, then only the adapters."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import ServerSettings
from agentgym_train.engines.base import EngineLost, Sampling
from agentgym_train.engines.vllm.server import VLLMServerEngine, make_engine
from agentgym_train.engines.vllm.transports import sends_adapters
from tests.train.vllm_engines import MAX_TOKENS, turns, untied_model, worst_logprob

PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [20], [9, 10, 11, 12]]


def adapted(seed: int = 0) -> Any:
    """The small model with adapters that change what it says."""
    from peft import LoraConfig, get_peft_model

    base = copy.deepcopy(untied_model())
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear"))
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=noise) * 0.1)
    return model.eval()


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make setup-vllm")
@pytest.mark.slow
def test_adapters_alone_follow_each_version_and_a_restarted_server_gets_all() -> None:
    asyncio.run(follow())


async def follow() -> None:
    first, second = adapted(1), adapted(2)
    settings = ServerSettings(adapter_updates=True)
    engine = make_engine(settings, first, pad_id=0, max_tokens=MAX_TOKENS, dtype=None)
    calls: list[str] = []
    ask = engine._wire.call

    async def counted(address: str, path: str, body: Any = None) -> Any:
        calls.append(path)
        return await ask(address, path, body)

    engine._wire.call = counted  # type: ignore[method-assign]
    try:
        await sampled_like(engine, first, 0)
        assert sum("/pause" in path for path in calls) == 1, "for the base weights"
        calls.clear()
        await sampled_like(engine, second, 1)
        assert not any("/pause" in path or "collective_rpc" in path for path in calls)
        folder = engine._transport._folder  # type: ignore[attr-defined]
        sizes = {p.name: p.stat().st_size for p in folder.rglob("*.safetensors")}
        base, adapters = max(sizes.values()), sizes["adapter_model.safetensors"]
        assert len(sizes) == 2 and adapters < base / 2
        names = [card["id"] for card in (await ask(address_of(engine), "/v1/models"))["data"]]
        assert sum(name.startswith(engine._run) for name in names) == 1, "earlier ones are gone"
        (member,) = engine._fleet.members
        os.killpg(member.local.process.pid, signal.SIGKILL)
        assert worst_logprob(second, PROMPTS, await turns(engine, PROMPTS)) < 1e-4
    finally:
        await engine.close()


def address_of(engine: VLLMServerEngine) -> str:
    return engine._fleet.members[0].address


async def sampled_like(engine: VLLMServerEngine, model: Any, version: int) -> None:
    """The engine samples like the model that it was given last."""
    await engine.update_weights(model, version)
    generations = await turns(engine, PROMPTS)
    assert {g.version for g in generations} == {version}
    assert worst_logprob(model, PROMPTS, generations) < 1e-4


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make setup-vllm")
@pytest.mark.slow
def test_a_server_that_takes_no_adapters_says_what_it_needs() -> None:
    from agentgym_train.engines.vllm.process import launch_for

    server = launch_for(untied_model(), ServerSettings(), max_tokens=MAX_TOKENS)
    settings = ServerSettings(servers=[server.address], adapter_updates=True)

    async def fail() -> None:
        engine = make_engine(settings, adapted(), pad_id=0, max_tokens=MAX_TOKENS, dtype=None)
        try:
            with pytest.raises(EngineLost, match="--enable-lora"):
                await engine.update_weights(adapted(), 0)
                await engine.generate([5], Sampling(2, 0.0))
        finally:
            await engine.close()

    asyncio.run(fail())
    server.close()


def test_adapters_are_sent_where_they_pay_or_the_config_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SimpleNamespace(peft_config={})
    there = ["http://a:1"]
    for on_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda on_gpu=on_gpu: on_gpu)
        assert sends_adapters(ServerSettings(), model) is on_gpu
        assert not sends_adapters(ServerSettings(), SimpleNamespace())
    assert not sends_adapters(ServerSettings(servers=there), model)
    assert sends_adapters(ServerSettings(servers=there, adapter_updates=True), model)
    assert not sends_adapters(ServerSettings(adapter_updates=False), model)
    with pytest.raises(ConfigError, match="needs transport: file"):
        sends_adapters(ServerSettings(transport="nccl", adapter_updates=True), model)
