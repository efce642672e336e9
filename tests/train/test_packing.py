"""Passes hold every row once, within the budget; layouts hold every token once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentgym_train.models.positions import pass_cost_of
from agentgym_train.training.microbatches import plan
from agentgym_train.training.rows import Layout, TokenRows, shares_rows
from tests.train.small import tiny_model

LENGTHS = st.lists(st.integers(1, 900), min_size=1, max_size=40)


def tokens(rows, lengths, shared_rows):
    chosen = [lengths[row] for row in rows]
    return sum(chosen) if shared_rows else len(chosen) * max(chosen)


@given(lengths=LENGTHS, budget=st.integers(1, 2000), shared_rows=st.booleans())
def test_every_row_is_in_one_pass_and_a_pass_is_within_the_budget_or_a_single_row(
    lengths, budget, shared_rows
):
    passes = plan(lengths, budget, shared_rows=shared_rows)
    assert sorted(row for rows in passes for row in rows) == list(range(len(lengths)))
    for rows in passes:
        assert len(rows) == 1 or tokens(rows, lengths, shared_rows) <= budget
    sums = [sum(lengths[row] for row in rows) for rows in passes]
    assert sums == sorted(sums, reverse=True)


def test_rows_are_padded_together_while_the_padding_costs_less_than_another_pass():
    # 256 tokens a pass: 10 and 90 together waste 80; 600 and 1000 together would waste 400.
    assert plan([10, 1000, 90, 600], 10_000, shared_rows=False) == [[1], [3], [0, 2]]
    assert plan([10, 1000, 90, 950], 10_000, shared_rows=False) == [[3, 1], [0, 2]]


def test_on_a_gpu_a_pass_of_a_small_model_costs_as_much_as_thousands_of_tokens():
    def model(parameters: int, layers: int) -> SimpleNamespace:
        weight = torch.empty(parameters, device="meta")
        config = SimpleNamespace(num_hidden_layers=layers)
        config.get_text_config = lambda: config
        return SimpleNamespace(parameters=lambda: [weight], config=config)

    small, large = pass_cost_of(model(135_000_000, 30)), pass_cost_of(model(7_600_000_000, 28))
    assert (small, large) == (19111, 316)
    lengths = [10, 1000, 90, 600]
    assert plan(lengths, 10_000, shared_rows=False, pass_cost=small) == [[0, 2, 3, 1]]
    assert plan(lengths, 10_000, shared_rows=False, pass_cost=large) == [[1], [3], [0, 2]]


def test_rows_that_share_a_row_are_put_where_they_fit_first():
    assert plan([60, 30, 50, 40], 100, shared_rows=True) == [[0, 3], [2, 1]]


@given(lengths=LENGTHS, budget=st.integers(1, 2000), shared_rows=st.booleans())
def test_rows_that_belong_together_stay_together(lengths, budget, shared_rows):
    lengths = lengths + lengths[::-1]
    passes = plan(lengths, budget, shared_rows=shared_rows, unit=2)
    assert sorted(row for rows in passes for row in rows) == list(range(len(lengths)))
    for rows in passes:
        assert all(b == a + 1 and a % 2 == 0 for a, b in zip(rows[::2], rows[1::2], strict=True))
        assert len(rows) == 2 or tokens(rows, lengths, shared_rows) <= budget


@pytest.fixture
def rows() -> TokenRows:
    """Prompt 7 8 and completion 1 2; prompt 9 and completion 3 4 5."""
    masks = [[0, 0, 1, 1], [0, 1, 0, 1]]
    return TokenRows.from_lists([[7, 8, 1, 2], [9, 3, 4, 5]], masks, torch.device("cpu"))


def test_padding_is_never_scored_and_is_left_out_of_a_part():
    rows = TokenRows.from_lists(
        [[7, 8], [9, 3, 4, 5], [6, 1]], [[0, 1], [1] * 4, [0, 1]], torch.device("cpu")
    )
    assert rows.ids.tolist() == [[7, 8, 0, 0], [9, 3, 4, 5], [6, 1, 0, 0]]
    assert rows.trained.int().tolist() == [[0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 0, 0]]
    part = rows.take([2, 0])
    assert part.ids.tolist() == [[6, 1], [7, 8]] and part.lengths.tolist() == [2, 2]
    layout = Layout.from_rows(rows, shared_rows=False)
    assert layout.predictors.tolist() == [0, 4, 5, 6, 8]


def test_padded_rows_are_scored_where_the_token_before_stands(rows):
    layout = Layout.from_rows(rows, shared_rows=False)
    assert layout.input_ids.tolist() == [[7, 8, 1, 2], [9, 3, 4, 5]]
    assert layout.position_ids is None
    assert layout.predictors.tolist() == [1, 2, 4, 6]
    assert layout.labels.tolist() == [1, 2, 3, 5]
    assert layout.scored.int().tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]
    assert layout.spread(torch.ones(4)).int().tolist() == layout.scored.int().tolist()


def test_a_shared_row_holds_the_episodes_one_after_the_other_each_from_position_zero():
    rows = TokenRows.from_lists(
        [[7, 8, 1], [9, 3, 4, 5]], [[0, 1, 1], [0, 1, 0, 1]], torch.device("cpu")
    )
    layout = Layout.from_rows(rows, shared_rows=True)
    assert layout.input_ids.tolist() == [[7, 8, 1, 9, 3, 4, 5]]
    assert layout.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert layout.predictors.tolist() == [0, 1, 3, 5]
    assert layout.labels.tolist() == [8, 1, 3, 5]


@pytest.mark.parametrize(
    ("attention", "layers", "stateful", "shares"),
    [
        ("flash_attention_2", None, False, True),
        ("kernels-community/flash-attn2", ["full_attention", "sliding_attention"], False, True),
        ("flash_attention_2", ["full_attention", "linear_attention"], False, False),
        ("flash_attention_2", None, True, False),
        ("sdpa", None, False, False),
        (None, None, False, False),
    ],
)
def test_episodes_share_a_row_only_where_nothing_carries_one_into_the_next(
    attention, layers, stateful, shares
):
    config = SimpleNamespace(_attn_implementation=attention, layer_types=layers)
    assert shares_rows(config, stateful) is shares


def test_varlen_attention_gets_the_boundaries_of_packed_episodes():
    lengths = [5, 2, 9]
    rows = TokenRows.from_lists(
        [list(range(3, 3 + n)) for n in lengths], [[1] * n for n in lengths], torch.device("cpu")
    )
    layout = Layout.from_rows(rows, shared_rows=True)
    model, seen = tiny_model(), []

    def probe(module, query, key, value, mask, **further):
        seen.append({name: further[name] for name in BOUNDARIES})
        return sdpa_attention_forward(module, query, key, value, mask, **further)

    AttentionInterface.register("probe_flash", probe)
    model.config._attn_implementation = "probe_flash"
    model(**layout.arguments())
    bounds = [0, 5, 7, 16]
    for one in seen:
        assert one["cu_seq_lens_q"].tolist() == one["cu_seq_lens_k"].tolist() == bounds
        assert one["cu_seq_lens_q"].dtype == torch.int32
        assert one["max_length_q"] == one["max_length_k"] == 9
    assert len(seen) == model.config.num_hidden_layers
    assert Layout.from_rows(rows, shared_rows=False).arguments().keys() == {"input_ids"}


BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
