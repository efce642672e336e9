"""What the vLLM engines are made of, where no vLLM is needed: settings, weights, gate and fleet."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model

from agentgym_env.errors import BadRequest
from agentgym_train.config.engines import ServerSettings, engine_settings
from agentgym_train.engines.base import EngineLost, Sampling, UpdateGate
from agentgym_train.engines.hf.contexts import float32_head
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.engines.hf.kv_batch import KVBatch
from agentgym_train.engines.vllm.pool import VLLMPool
from agentgym_train.engines.vllm.process import command_line, engine_values
from agentgym_train.engines.vllm.server import VLLMServerEngine
from agentgym_train.engines.vllm.wire import Member, Unreachable, VLLMWire
from agentgym_train.models.weights import checkpoint_weights
from hosting import nobody
from tests.train.small import tiny_model


@pytest.mark.parametrize(
    ("engine", "values", "said"),
    [
        ("hf", {"dtype": "float32"}, "unknown key dtype in engine of type hf"),
        ("vllm", {"severs": []}, r"unknown key severs .*did you mean servers\?"),
        ("vllm_colocate", {"sleep_level": 3}, "engine.sleep_level must be one of 0, 1, 2, got 3"),
        ("vllm_colocate", {"tensor_parallel_size": 2}, "is 1, got 2: .*use engine: vllm$"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(engine, values, said):
    with pytest.raises(BadRequest, match=said):
        engine_settings({"type": engine, **values})


def test_on_a_cpu_what_is_for_gpus_does_no_harm():
    told = {"gpu_memory_utilization": 0.8, "attention_backend": "FLASH_ATTN", "sleep_level": 1}
    values = engine_values(engine_settings({"type": "vllm_colocate", **told}), 64, memory_share=0.3)
    assert not {"gpu_memory_utilization", "attention_backend"} & set(values)
    assert (values["dtype"], values["block_size"], values["enforce_eager"]) == ("float32", 32, True)


def test_vllms_own_arguments_become_words_of_its_command_line():
    words = command_line({"max_model_len": 64, "enforce_eager": True, "x": None, "c": {"a": 1}})
    assert words[-5:] == ["--max-model-len", "64", "--enforce-eager", "--c", '{"a": 1}']
    assert "--no-trust-remote-code" in words


def test_tied_weights_are_given_once_and_as_the_models_own():
    model = tiny_model()
    weights = checkpoint_weights(model)
    assert "lm_head.weight" not in weights
    table = model.model.embed_tokens.weight
    assert weights["model.embed_tokens.weight"].data_ptr() == table.data_ptr()
    assert not any(weight.requires_grad for weight in weights.values())


def test_adapters_are_given_within_the_weights_and_the_model_stays_as_it_was():
    model = get_peft_model(tiny_model(), LoraConfig(r=4, init_lora_weights=False))
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    weights = checkpoint_weights(model)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
    merged = dict(model.merge_and_unload().named_parameters())
    assert set(weights) == set(merged)
    for name, weight in merged.items():
        assert torch.allclose(weights[name], weight, atol=1e-6), name
    assert not torch.equal(merged["model.layers.0.self_attn.q_proj.weight"],
                           tiny_model().model.layers[0].self_attn.q_proj.weight)  # fmt: skip


def test_adapters_that_are_no_plain_lora_are_refused():
    model = get_peft_model(tiny_model(), LoraConfig(r=4, use_dora=True))
    with pytest.raises(BadRequest, match="use plain LoRA, or engine: hf"):
        checkpoint_weights(model)


async def test_an_update_waits_for_turns_and_turns_wait_for_the_update():
    gate, happened = UpdateGate(), []
    ends = {name: asyncio.Event() for name in "abc"}

    async def turn(name):
        async with gate.turn():
            happened.append(f"{name} begins")
            await ends[name].wait()
            happened.append(f"{name} ends")

    async def update():
        async with gate.update():
            happened.append("update")

    async def a_few_turns_of_the_loop():
        for _ in range(20):
            await asyncio.sleep(0)

    early = [asyncio.create_task(turn("a")), asyncio.create_task(turn("b"))]
    await a_few_turns_of_the_loop()
    others = [asyncio.create_task(update()), asyncio.create_task(turn("c"))]
    for name in "ca":
        ends[name].set()
    await a_few_turns_of_the_loop()
    assert happened == ["a begins", "b begins", "a ends"]
    early[1].cancel()  # a turn that was given up counts no more
    await asyncio.gather(*others)
    assert happened[3:] == ["update", "c begins", "c ends"]


async def test_when_no_server_answers_the_turn_waits_and_then_is_lost_with_what_to_do(caplog):
    with nobody() as place:
        address = f"http://{place}"
        settings = ServerSettings(servers=[address], wait_s=0.3)
        engine = VLLMServerEngine([Member(address)], settings, max_tokens=64)
        said = f"available for 0.3 s .{address}.*at the same addresses"
        with pytest.raises(EngineLost, match=said):
            await engine.generate([1], Sampling(4))
    assert "none remains, so turns wait" in caplog.text
    await engine.close()


async def test_conversations_stay_with_their_server_and_new_ones_go_to_the_idlest():
    wire = VLLMWire(5.0)
    a, b = Member("http://a"), Member("http://b")
    fleet = VLLMPool([a, b], wire, wait_s=1.0)
    homes = [await fleet.choose(name) for name in "wxyz"]
    assert homes == [a, b, a, b]
    a.in_flight = 9
    assert await fleet.choose("w") is a and await fleet.choose("new") is b
    fleet.lose(a, Unreachable("unplugged"))
    assert await fleet.choose("w") is b
    assert (a.conversations, b.conversations) == (1, 4)
    for name in ["w", "x", "y", "z", "new", "unknown"]:
        fleet.forget(name)
    assert (a.conversations, b.conversations) == (0, 0)
    await fleet.close()
    await wire.close()


def test_a_bfloat16_model_is_sampled_from_unrounded_logits_and_a_cache_in_its_precision():
    model = tiny_model().to(torch.bfloat16)
    ids = torch.arange(3, 24)[None]  # (1, 21)
    with torch.inference_mode():
        hidden = model.model(ids).last_hidden_state[0, -1]  # (H,)
        exact = hidden.float() @ model.lm_head.weight.float().t()  # (V,)
        assert not torch.equal(exact, exact.bfloat16().float()), "rounding would show"
        with float32_head(model):
            found = model(ids, logits_to_keep=1).logits[0, -1]
        assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=1e-6)
        assert model(ids, logits_to_keep=1).logits.dtype == torch.bfloat16, "it is as before"
    engine = HFEngine(model, 0)
    said = asyncio.run(engine.generate(ids[0].tolist(), Sampling(1, seed=3)))
    expected = torch.log_softmax(exact, -1)[said.token_ids[0]]
    assert said.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


def test_under_autocast_the_cache_has_the_precision_of_autocast():
    engine = HFEngine(tiny_model(), 0, dtype="bfloat16")
    asyncio.run(engine.generate([5, 6, 7], Sampling(2, seed=1), conversation="c"))
    _, cache = engine._caches["c"]
    assert cache.dtype == torch.bfloat16


@torch.inference_mode()
def test_a_batch_keeps_no_cache_that_it_has_copied():
    prompt = [5, 6, 7, 8, 9]
    first = KVBatch(tiny_model(), [None], [prompt[:3]], 4, 0)
    first.prefill()
    cache = first.row(0, 3)
    kept = weakref.ref(cache)
    batch = KVBatch(tiny_model(), [cache], [prompt], 4, 0)
    logits = batch.prefill()
    whole = KVBatch(tiny_model(), [None], [prompt], 4, 0).prefill()
    assert torch.allclose(logits, whole, atol=1e-5)
    del cache
    assert kept() is None and batch.columns == 5
    gc.disable()
    try:
        ended = weakref.ref(batch)
        del batch
        assert ended() is None, "its buffer is free without a garbage collection"
    finally:
        gc.enable()
