"""Scores of a packed or flushed pass are those of each episode alone, and so are gradients."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
)

from agentgym_train.training import head
from agentgym_train.training.head import UnscorableModel, add_scoring, check_scoring
from agentgym_train.training.rows import Layout, TokenRows
from tests.train.ragged_rows import FAMILIES, TEMPERATURE, VOCABULARY, episodes
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


def in_one_pass(model, rows, shared_rows=False):
    """(logprobs, entropies) of the trained tokens, row by row."""
    add_scoring(model, TEMPERATURE)
    batch = TokenRows.from_lists(
        [prompt + completion for prompt, completion, _ in rows],
        [[0] * len(prompt) + mask for prompt, _, mask in rows],
        torch.device("cpu"),
    )
    layout = Layout.from_rows(batch, shared_rows=shared_rows)
    found = model(**layout.arguments(), scored_at=layout.predictors, scored_ids=layout.labels)
    for values in found:
        spread = layout.spread(values)
        assert spread.shape == batch.ids.shape and not spread[~layout.scored].any()
    return found[:2]


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
    logprobs, _ = in_one_pass(model, rows)
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert all(not weight.grad.any() for weight in model.parameters())


def test_the_head_sees_the_trained_tokens_alone(monkeypatch):
    seen, scored = [], head.scores_by_head
    monkeypatch.setattr(
        head, "scores_by_head", lambda *given: (seen.append(given[1].shape), scored(*given))[1]
    )
    in_one_pass(tiny_model(), ROWS)
    assert seen == [(sum(sum(mask) for _, _, mask in ROWS), 32)]


@pytest.mark.parametrize("tile", [1, 700, 5000])
@pytest.mark.parametrize("kind", ["plain", "softcapped"])
def test_tiles_of_the_vocabulary_change_nothing(kind, tile, monkeypatch):
    """Log-probabilities, entropies and both gradients, with a bias and with logits of -inf."""

    def scored(size):
        monkeypatch.setitem(head.TILE, "cpu", size)
        torch.manual_seed(0)
        linear = torch.nn.Linear(16, 90)
        with torch.no_grad():
            linear.bias[:7] = -torch.inf
        hidden = torch.randn(11, 16, requires_grad=True)
        logits = head.Logits(0.7, 5.0 if kind == "softcapped" else None, TEMPERATURE)
        labels = torch.arange(20, 31)
        found = head.scores_by_head(linear, hidden, labels, logits)
        weights = torch.linspace(-1, 1, 11)
        ((found[0] + 0.3 * found[1]) * weights).sum().backward()
        plain = logits(linear(hidden)).log_softmax(-1)
        expected = plain.gather(1, labels[:, None])[:, 0], -(plain.exp() * plain).sum(-1)
        assert torch.equal(found[2], plain.argmax(1) == labels)
        gradients = [hidden.grad, linear.weight.grad, linear.bias.grad]
        reference = torch.autograd.grad(
            ((expected[0] + 0.3 * expected[1]) * weights).sum(),
            [hidden, linear.weight, linear.bias],
        )
        for one, other in zip([*found[:2], *gradients], [*expected, *reference], strict=True):
            assert torch.allclose(one, other, atol=1e-5)
        return gradients

    for one, whole in zip(scored(tile), scored(2**24), strict=True):
        assert torch.allclose(one, whole, atol=1e-6)


def test_a_head_with_adapters_is_scored_as_the_model_computes_it():
    config = LoraConfig(r=4, target_modules=["lm_head", "q_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    alone, together = (get_peft_model(FAMILIES["llama, untied"](), config) for _ in range(2))
    together.load_state_dict(alone.state_dict())
    expected, found = one_by_one(alone, ROWS), in_one_pass(together, ROWS)
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, atol=1e-5)
    for scores in (expected, found):
        (scores[0] + 0.1 * scores[1]).sum().backward()
    for name, gradient in gradients(alone).items():
        if gradient is not None:
            assert torch.allclose(gradients(together)[name], gradient, atol=1e-4), name


def test_a_copy_of_a_model_with_scores_uses_its_own_weights():
    model = tiny_model()
    before, _ = in_one_pass(model, ROWS)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    assert torch.equal(in_one_pass(copied, ROWS)[0], before)
    assert not torch.allclose(in_one_pass(model, ROWS)[0], before)


def test_a_model_that_adds_tokens_of_its_own_is_refused():
    model = tiny_model()

    def prepend(module, inputs, output):
        output.last_hidden_state = torch.nn.functional.pad(output.last_hidden_state, (0, 0, 1, 0))

    model.base_model.register_forward_hook(prepend)
    with pytest.raises(UnscorableModel, match="train without virtual prompt tokens"):
        in_one_pass(model, ROWS)


@pytest.mark.parametrize("head_of", [*SCALED, "plain"])
def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused(head_of):
    torch.manual_seed(0)
    model = (SCALED.get(head_of) or tiny_model)().eval()
    add_scoring(model, TEMPERATURE)
    check_scoring(model, TEMPERATURE, nullcontext)

    class Odd(type(model)):
        def forward(self, *args, **options):
            output = super().forward(*args, **options)
            output.logits = output.logits * 30 + torch.arange(output.logits.shape[-1])
            return output

    model.__class__ = Odd
    with pytest.raises(UnscorableModel, match="in a way that is not known here"):
        check_scoring(model, TEMPERATURE, nullcontext)
