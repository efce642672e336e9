"""What the transformers engine samples with attends to the right tokens, and copies no keys."""

from __future__ import annotations

import asyncio
import importlib
import math
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from agentgym_train.engines.hf.contexts import GROUPED, dense_attention, grouped_attention
from agentgym_train.engines.hf.engine import HFEngine
from tests.train.small import textcraft_tokenizer
from tests.train.test_hf_engine import PROMPTS, full_forward_logprobs, sampling, together


def grouped_model(attention: str = "sdpa") -> LlamaForCausalLM:
    """Eight query heads, two heads of keys and values."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(textcraft_tokenizer()), hidden_size=64, intermediate_size=96,
            num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, head_dim=8,
        )
    )  # fmt: skip
    model.set_attn_implementation(attention)
    return model.eval()


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("heads", [2, 8])
def test_attention_is_the_weighted_mean_of_the_values_that_are_seen(queries, heads):
    draw = torch.Generator().manual_seed(queries)
    query = torch.randn(3, heads, queries, 8, generator=draw)
    key, value = torch.randn(2, 3, 2, 11, 8, generator=draw)
    visible = torch.rand(3, 1, queries, 11, generator=draw) > 0.4
    visible[..., 0] = True
    module = torch.nn.Module()
    module.num_key_value_groups = heads // 2
    found, _ = grouped_attention(module, query, key, value, visible, scaling=0.3)
    for row in range(3):
        for head in range(heads):
            keys, values = (x[row, head // (heads // 2)].double() for x in (key, value))
            scores = 0.3 * query[row, head].double() @ keys.T
            weights = scores.masked_fill(~visible[row, 0], -math.inf).softmax(-1)
            assert torch.allclose(found[row, :, head].double(), weights @ values, atol=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_turns_have_the_logprobs_of_a_full_forward(attention):
    engine = HFEngine(grouped_model(attention), textcraft_tokenizer().pad_token_id)
    turns = together(engine, PROMPTS, [sampling(seed) for seed in range(len(PROMPTS))])
    plain = grouped_model()
    for prompt, turn in zip(PROMPTS, turns, strict=True):
        assert turn.logprobs == pytest.approx(full_forward_logprobs(plain, prompt, turn), abs=2e-5)
    assert engine.model.config._attn_implementation == attention, "the update has its own again"


def test_no_head_of_keys_is_copied_for_the_queries_that_share_it(monkeypatch):
    copied = []

    def repeat_kv(states, count):
        copied.append(states.shape)
        return states.repeat_interleave(count, 1)

    monkeypatch.setattr("transformers.integrations.sdpa_attention.repeat_kv", repeat_kv)
    model = grouped_model()
    visible = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    model(torch.tensor([[5, 6, 7]]), attention_mask=visible)
    assert copied, "transformers' own attention copies them"
    copied.clear()
    together(HFEngine(model, 0), PROMPTS, [sampling(seed) for seed in range(len(PROMPTS))])
    assert not copied


def test_the_benchmark_samples_as_much_by_either_road(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    sampling = importlib.import_module("sampling")
    seen = []
    for road, attend in sampling.ROADS.items():

        def count(*words, road=road, attend=attend, **named):
            seen.append(road)
            return attend(*words, **named)

        monkeypatch.setitem(sampling.ROADS, road, count)
    rates = asyncio.run(sampling.rates(grouped_model(), 2, 9, 4))
    assert len(rates) == 2 and min(rates) > 0
    assert seen.count("ours") == seen.count("transformers' sdpa") > 0
    AttentionInterface.register(GROUPED, grouped_attention)


def test_a_model_that_knows_no_sdpa_is_sampled_eagerly(monkeypatch):
    model = grouped_model()
    monkeypatch.setattr(LlamaForCausalLM, "_supports_sdpa", False)
    with dense_attention(model):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "sdpa"
