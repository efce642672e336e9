"""Small policies and loading: lossless text, copying from the start, clear refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_env.errors import BadRequest
from agentgym_train.models.loading import load_policy
from examples.small_models import small_policy
from tests.train.small import save_tiny_policy, textcraft_tokenizer, tiny_model


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_the_small_tokenizer_loses_no_text(text):
    tokenizer = textcraft_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_a_saved_policy_comes_back_with_its_own_tokenizer(tmp_path):
    model, tokenizer = load_policy(save_tiny_policy(tmp_path))
    text = "craft 4 oak planks using 1 oak logs"
    assert tokenizer.encode(text) == textcraft_tokenizer().encode(text)
    ids = torch.tensor([tokenizer.encode(text)])
    assert torch.equal(model(ids).logits, tiny_model()(ids).logits)


def test_weights_depend_on_the_seed_alone():
    first, second, other = tiny_model(0), tiny_model(0), tiny_model(1)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
    assert not torch.equal(first.get_input_embeddings().weight, other.get_input_embeddings().weight)


@torch.no_grad()
def test_an_untrained_policy_copies_what_followed_a_token_before():
    model = small_policy(textcraft_tokenizer(), layers=2, hidden=128, heads=4).eval()
    generator = torch.Generator().manual_seed(0)
    # Forty different ids, then the same again: from the second pass on the next one is known.
    once = torch.randperm(300, generator=generator)[:40] + 20
    logits = model(torch.cat([once, once])[None]).logits[0, 40:-1]  # (39, V)
    rank = (logits > logits.gather(1, once[1:, None])).sum(1).float()  # (39,)
    assert (rank == 0).float().mean() > 0.5, "a random model would know none"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all"])
def test_a_folder_without_a_model_is_refused(name):
    with pytest.raises(BadRequest, match=r"there is no config\.json"):
        load_policy(name)
