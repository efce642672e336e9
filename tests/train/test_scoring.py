"""Scoring rows by length gives what scoring them all at once gives."""

from __future__ import annotations

import pytest
import torch

from agentgym_train.scoring import score_by_length
from tests.train.small import tiny_model


def rows(prompt_lengths, completion_lengths):
    """Left-padded prompts and right-padded completions: ids (B, P + T), mask, T."""
    width, most = max(prompt_lengths), max(completion_lengths)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 200, (len(prompt_lengths), width + most), generator=generator)
    mask = torch.zeros_like(ids)
    for row, (p, c) in enumerate(zip(prompt_lengths, completion_lengths, strict=True)):
        mask[row, width - p : width + c] = 1
    return ids, mask, most


def scorer(model, sizes):
    def score(ids, mask, keep):
        sizes.append(tuple(ids.shape))
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -keep - 1 : -1]  # (B, T, V)
        logprobs = torch.log_softmax(logits, -1)
        chosen = logprobs.gather(2, ids[:, -keep:, None]).squeeze(2)  # (B, T)
        return chosen, -(logprobs.exp() * logprobs).sum(-1), None

    return score


def test_chunks_give_the_same_scores_with_less_padding():
    model, sizes = tiny_model(), []
    ids, mask, width = rows([5, 30, 6, 29], [4, 50, 5, 60])
    whole = scorer(model, [])(ids, mask, width)
    parts = score_by_length(scorer(model, sizes), ids, mask, width)
    real = mask[:, -width:].bool()
    for found, expected in zip(parts[:2], whole[:2], strict=True):
        assert found.shape == expected.shape == (4, width)
        assert torch.allclose(found[real], expected[real], atol=1e-5)
        assert not found[:, 60:].any() and not found[0, 5:].any()
    assert sizes == [(2, 11), (2, 90)]


def test_gradients_flow_through_the_chunks_to_their_own_rows():
    model = tiny_model()
    ids, mask, width = rows([5, 30], [4, 50])
    logprobs, _, _ = score_by_length(scorer(model, []), ids, mask, width)
    logprobs.sum().backward()
    in_parts = model.model.norm.weight.grad.clone()
    model.zero_grad()
    whole, _, _ = scorer(model, [])(ids, mask, width)
    (whole * mask[:, -width:]).sum().backward()
    assert torch.allclose(in_parts, model.model.norm.weight.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("completion", [[1, 1], [0, 3]])
def test_a_row_without_a_completion_does_no_harm(completion):
    ids, mask, width = rows([4, 4], completion)
    logprobs, _, _ = score_by_length(scorer(tiny_model(), []), ids, mask, width)
    assert logprobs.shape == (2, width)
    assert torch.isfinite(logprobs).all()
