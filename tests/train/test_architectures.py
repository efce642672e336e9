"""Models of many kinds: sampled and scored as they compute by themselves."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym_train.engines.hf.engine import HFEngine
from tests.train.ragged_rows import episodes
from tests.train.test_hf_engine import PROMPTS, full_forward_logprobs, sampling, together
from tests.train.test_scoring import in_one_pass, one_by_one

SIZE = {
    "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": None,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OLD_SIZE = {"vocab_size": 400, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
EXPERTS = {"num_experts_per_tok": 2, "num_experts": 4}
LOCAL_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
EYE = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 16,
}  # fmt: skip
LATENT = {
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16,
    "q_lora_rank": 16, "first_k_dense_replace": 2, "num_key_value_heads": 4,
}  # fmt: skip
NEO = {"vocab_size": 400, "hidden_size": 64, "num_layers": 2, "num_heads": 4}

SAMPLED = {
    "apertus": {}, "arcee": {}, "cohere": {}, "ernie4_5": {}, "gemma": {}, "glm": {}, "glm4": {},
    "gpt2": OLD_SIZE, "gpt_neox": {}, "granite": {}, "helium": {}, "hunyuan_v1_dense": {},
    "llama": {}, "mistral": {}, "mixtral": LOCAL_EXPERTS, "nemotron": {}, "olmo2": {},
    "olmoe": EXPERTS, "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64}, "phi": {}, "phi3": {},
    "qwen2": {}, "qwen3": {}, "qwen3_moe": {**EXPERTS, "moe_intermediate_size": 32},
    "seed_oss": {}, "smollm3": {}, "stablelm": {}, "starcoder2": {},
    # These know no sdpa.
    "gptj": {**OLD_SIZE, "rotary_dim": 8},
    "gpt_neo": {**NEO, "attention_types": [[["global"], 2]]},
    "gpt_oss": {**LOCAL_EXPERTS, "sliding_window": 9, "layer_types": ["full_attention"] * 2},
}  # fmt: skip
PLAIN = {
    "bloom": OLD_SIZE,
    "deepseek_v3": LATENT,
    "gemma2": {"sliding_window": 4},
    "gemma3": {"text_config": {**SIZE, "sliding_window": 4}, "vision_config": EYE},
    "gpt_neo_window": {**NEO, "attention_types": [[["global", "local"], 1]]},
    "llama4_text": {},
    "mistral_window": {"sliding_window": 4},
    "mpt": {"vocab_size": 400, "d_model": 64, "n_heads": 4, "n_layers": 2},
    "qwen2_window": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3_next": {**EXPERTS, "num_hidden_layers": 4},
}


CONTINUED = PLAIN.keys() - {"bloom", "deepseek_v3", "mpt", "qwen3_next"}
"""Models whose cache a later turn continues."""


def config_of(name: str, changes: dict[str, object]):
    whole = changes.keys() & {"n_embd", "d_model", "num_layers", "text_config"}
    values = {**({} if whole else SIZE), **changes}
    return AutoConfig.for_model(name.removesuffix("_window"), **values)


def model_of(name: str):
    torch.manual_seed(0)
    changes = {**SAMPLED, **PLAIN}[name]
    model = AutoModelForCausalLM.from_config(config_of(name, {**changes, "pad_token_id": 0}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(3)  # or all heads look at all tokens alike
            else:
                weight.add_(torch.randn_like(weight), alpha=0.1)  # biases are 0 at first
    return model.eval()


USUAL = {
    "gemma2", "gpt2", "gpt_neox", "gpt_oss", "llama", "mistral_window", "mixtral", "qwen3",
    "qwen3_moe", "qwen3_next",
}  # fmt: skip
"""Models of the default tests; the others are slow for their number."""


def of_each(names):
    return [n if n in USUAL else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", of_each([*SAMPLED, *PLAIN]))
def test_two_turns_have_the_logprobs_of_a_full_forward(name):
    model = model_of(name)
    engine, names = HFEngine(model, 0), list(range(len(PROMPTS)))
    first = together(engine, PROMPTS, [sampling(n) for n in names], names)
    further = [
        prompt + turn.token_ids + [7] * (number + 1)
        for number, (prompt, turn) in enumerate(zip(PROMPTS, first, strict=True))
    ]
    second = together(engine, further, [sampling(n + 9) for n in names], names)
    assert len(engine._caches) == (len(PROMPTS) if name in SAMPLED or name in CONTINUED else 0)
    for prompt, turn in zip([*PROMPTS, *further], [*first, *second], strict=True):
        expected = full_forward_logprobs(model, prompt, turn)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", of_each(SAMPLED))
def test_an_update_scores_a_batch_as_the_model_does_each_episode(name):
    model, rows = model_of(name), episodes(6)
    with torch.no_grad():
        expected = one_by_one(model, rows)
        found = in_one_pass(model, rows, shared_rows=False)
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-4)


def test_a_window_wider_than_all_positions_is_none():
    config = config_of("mistral", {"sliding_window": 256})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert HFEngine(model, 0).model is model


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "bloom", "mistral_window"])
def test_a_model_without_a_batch_computes_the_logits_of_the_last_position_alone(name):
    model, shapes = model_of(name), []
    model.register_forward_hook(lambda _, __, output: shapes.append(output.logits.shape[:2]))
    together(HFEngine(model, 0), [list(range(5, 60))], [sampling(max_tokens=3)])
    assert len(shapes) == 3 and set(shapes) == {(1, 1)}


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen3_next"])
def test_experts_whose_config_asks_for_a_router_loss_are_sampled(name):
    model = model_of(name)
    model.config.output_router_logits = True
    found = together(HFEngine(model, 0), PROMPTS, [sampling(n) for n in range(len(PROMPTS))])
    for prompt, turn in zip(PROMPTS, found, strict=True):
        expected = full_forward_logprobs(model, prompt, turn)
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    assert model.config.output_router_logits
