"""Scores of a packed or flushed pass are those of each episode alone, and so are gradients."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from agentgym_train.training.packing import UnscorableModel, backbone_of, pack, score
from tests.train.ragged_rows import FAMILIES, TEMPERATURE, VOCABULARY, episodes, padded
from tests.train.small import tiny_model

ROWS = episodes(6)
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
SCALED = {
    "softcapped": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=2.0, sliding_window=8)
    ),
    "multiplied": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=3.0)),
    "divided": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=0.25)),
}


def one_by_one(model, rows):
    """(logprobs, entropies) of each row's trained tokens by the model's plain forward."""
    logprobs, entropies = [], []
    for prompt, completion, mask in rows:
        ids = torch.tensor([prompt + completion])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / TEMPERATURE  # (T, V)
        every = torch.log_softmax(logits, -1)
        trained = torch.tensor(mask).bool()
        logprobs.append(every.gather(1, torch.tensor(completion)[:, None]).squeeze(1)[trained])
        entropies.append(-(every.exp() * every).sum(-1)[trained])
    return torch.cat(logprobs), torch.cat(entropies)


def in_one_pass(model, rows, shared_rows):
    """(logprobs, entropies) of the trained tokens, row by row, and the shape they came in."""
    batch = padded(rows)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    trained = torch.cat([torch.zeros_like(batch["prompt_ids"]), batch["tool_mask"]], 1).bool()
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    layout = pack(ids, mask, trained, shared_rows=shared_rows)
    logprobs, entropies = score(model, backbone_of(model), layout)
    assert logprobs.shape == entropies.shape == ids.shape
    assert not logprobs[~layout.scored].any() and not entropies[~layout.scored].any()
    return logprobs[layout.scored], entropies[layout.scored]


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("shared_rows", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_every_episode_alone(family, shared_rows):
    alone, together = FAMILIES[family](), FAMILIES[family]()
    expected = one_by_one(alone, ROWS)
    found = in_one_pass(together, ROWS, shared_rows)
    weights = torch.linspace(-1, 1, len(expected[0]))
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-5)
    (expected[0] * weights).sum().backward()
    (found[0] * weights).sum().backward()
    for name, gradient in gradients(alone).items():
        atol = 1e-4 * float(gradient.abs().max()) + 1e-9
        assert torch.allclose(gradients(together)[name], gradient, atol=atol, rtol=0), name


@pytest.mark.parametrize("shared_rows", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("head", SCALED)
def test_what_a_model_does_to_its_logits_is_done_here_too(head, shared_rows):
    torch.manual_seed(0)
    model = SCALED[head]().eval()
    with torch.no_grad():
        expected = one_by_one(model, ROWS)
        found = in_one_pass(model, ROWS, shared_rows)
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=2e-5)


def test_a_pass_without_a_trained_token_has_a_gradient_of_zero():
    model = tiny_model()
    rows = [([5, 6], [7, 8], [0, 0]), ([5], [9], [0])]
    logprobs, _ = in_one_pass(model, rows, shared_rows=False)
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert all(not weight.grad.any() for weight in model.parameters())


def test_the_head_sees_the_trained_tokens_alone():
    model = tiny_model()
    seen = []
    model.register_forward_hook(lambda _, inputs, output: seen.append(output.log_probs.shape))
    in_one_pass(model, ROWS, shared_rows=False)
    assert seen == [(1, sum(sum(mask) for _, _, mask in ROWS))]


def test_a_model_that_adds_tokens_of_its_own_is_refused():
    model = tiny_model()

    def prepend(module, inputs, output):
        output.last_hidden_state = torch.nn.functional.pad(output.last_hidden_state, (0, 0, 1, 0))

    model.base_model.register_forward_hook(prepend)
    with pytest.raises(UnscorableModel, match="train without virtual prompt tokens"):
        in_one_pass(model, ROWS, shared_rows=False)
