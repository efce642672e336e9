"""Precision and attention kernels: what suits a GPU, and is passed over on a CPU."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentgym_env.errors import BadRequest
from agentgym_train.config.read import config_from
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models import setup
from agentgym_train.models.loading import load_policy
from tests.train.small import save_tiny_policy, tiny_model

NEEDED = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}


@pytest.mark.parametrize(
    ("changes", "on_cpu", "on_gpu"),
    [
        ({}, "float32", "bfloat16"),
        ({"dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({"compute_dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({"compute_dtype": "float32"}, "float32", "float32"),
    ],
)
def test_what_is_computed_in_suits_the_device_where_nothing_is_said(changes, on_cpu, on_gpu):
    config = config_from({**NEEDED, **changes})
    assert config.computes_in(on_gpu=False) == on_cpu
    assert config.computes_in(on_gpu=True) == on_gpu


def test_half_weights_with_full_computing_and_other_precisions_are_refused():
    with pytest.raises(BadRequest, match="compute_dtype float32 needs dtype float32"):
        config_from({**NEEDED, "dtype": "bfloat16", "compute_dtype": "float32"})
    with pytest.raises(BadRequest, match="'int8'"):
        config_from({**NEEDED, "dtype": "int8"})


class OnGPU:
    """Stands for a model on a GPU, of which there is none here: it notes what it is told."""

    def __init__(self, knows_flash: bool = True) -> None:
        self._supports_flash_attn = knows_flash
        self.told: list[str] = []

    def parameters(self):
        return iter([SimpleNamespace(device=torch.device("cuda"))])

    def set_attn_implementation(self, name: str) -> None:
        self.told.append(name)


@pytest.mark.parametrize(
    ("packages", "model", "wanted", "computes_in", "told"),
    [
        ((True, True), OnGPU(), None, "bfloat16", ["flash_attention_3"]),
        ((True, False), OnGPU(), None, "bfloat16", ["flash_attention_2"]),
        ((False, False), OnGPU(), None, "bfloat16", []),
        ((True, True), OnGPU(), None, "float32", []),
        ((True, True), OnGPU(knows_flash=False), None, "bfloat16", []),
        ((True, True), OnGPU(), "sdpa", "bfloat16", ["sdpa"]),
    ],
)
def test_on_a_gpu_flash_attention_is_taken_where_it_can_be(
    monkeypatch, packages, model, wanted, computes_in, told
):
    monkeypatch.setattr(setup, "is_flash_attn_2_available", lambda: packages[0])
    monkeypatch.setattr(setup, "is_flash_attn_3_available", lambda: packages[1])
    setup.use_attention(model, wanted, computes_in)
    assert model.told == told


def test_on_a_cpu_flash_attention_is_passed_over_and_other_kernels_are_taken():
    model = tiny_model()
    setup.use_attention(model, None, "float32")
    setup.use_attention(model, "flash_attention_2", "bfloat16")
    assert model.config._attn_implementation == "sdpa"
    setup.use_attention(model, "eager", "float32")
    assert model.config._attn_implementation == "eager"
    with pytest.raises(BadRequest, match=r"attention 'sdap' is not available: .*Remove"):
        setup.use_attention(model, "sdap", "float32")


def generated(engine, prompts=((5, 6, 7), (9, 10, 11, 12))):
    async def play():
        asked = (engine.generate(p, Sampling(8, seed=s)) for s, p in enumerate(prompts))
        return await asyncio.gather(*asked)

    return [(g.token_ids, g.logprobs) for g in asyncio.run(play())]


def test_the_engine_samples_by_dense_kernels_and_gives_the_updates_own_back():
    """The update's are varlen, which rows with holes would break."""
    calls = []

    def varlen_of_this_test(*arguments, **named):
        calls.append(named)
        return sdpa_attention_forward(*arguments, **named)

    AttentionInterface.register("varlen_of_this_test", varlen_of_this_test)
    AttentionMaskInterface.register("varlen_of_this_test", sdpa_mask)
    model = tiny_model()
    expected = generated(HFEngine(tiny_model(), 0))
    model.set_attn_implementation("varlen_of_this_test")
    assert generated(HFEngine(model, 0)) == expected
    assert not calls and model.config._attn_implementation == "varlen_of_this_test"
    model(torch.tensor([[5, 6, 7]]))
    assert calls, "the update has them"


@pytest.mark.parametrize("copies", [False, True])
def test_the_engine_computes_in_what_the_trainer_does(copies):
    """A copy, too, which has lost what the trainer put around its own model."""
    model, seen = tiny_model(), []
    engine = HFEngine(model, 0, dtype="bfloat16")
    if copies:
        engine.keep_own_weights()
    asyncio.run(engine.update_weights(model, 0))
    layer = engine.model.model.layers[0].mlp.down_proj
    layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    ids = [token_ids for token_ids, _ in generated(engine)]
    assert set(seen) == {torch.bfloat16} and not engine.is_exact
    assert (engine.model is not model) == copies and layer.weight.dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.tensor([[5, 6, 7, *ids[0]]])).logits[0, 2:-1].float()  # (n, V)
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[0])[:, None]).squeeze(1)
    found = torch.tensor(generated(engine)[0][1])  # (n,)
    assert torch.allclose(found, expected, atol=2e-2)


def test_a_policy_of_half_precision_is_loaded_and_sampled_as_such(tmp_path):
    model, _ = load_policy(save_tiny_policy(tmp_path), "bfloat16")
    engine = HFEngine(model, 0)
    assert {w.dtype for w in model.parameters()} == {torch.bfloat16} and not engine.is_exact
    assert len(generated(engine)[0][0]) == 8
    assert HFEngine(tiny_model(), 0).is_exact
