"""What `benchmarks/prefix_reuse.py` counts, next to sums by hand."""

from __future__ import annotations

import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.train.small import tiny_model


def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "prefix_reuse.py"
    spec = importlib.util.spec_from_file_location("prefix_reuse", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


measured = benchmark()
ONE = measured.Plan(1, 3, prompt=100, sampled=8, observed=20, vocabulary=300)
"""Prompts of 100, 128 and 156 tokens; seven of a turn's eight go through the model in it."""
AGAIN = 100 + 128 + 156 + 3 * 7
KEPT = 100 + (1 + 20) + (1 + 20) + 3 * 7


def test_on_transformers_a_kept_conversation_costs_each_of_its_tokens_once():
    again = measured.on_transformers(tiny_model(), ONE, keeps=False)
    kept = measured.on_transformers(tiny_model(), ONE, keeps=True)
    assert (again.computed, kept.computed) == (AGAIN, KEPT)
    assert kept.sampled == again.sampled and [len(ids) for ids in kept.sampled] == [24]


@pytest.mark.parametrize("keeps", [False, True])
def test_conversations_side_by_side_are_counted_together(keeps):
    many = measured.Plan(3, 3, prompt=100, sampled=8, observed=20, vocabulary=300)
    held = measured.on_transformers(tiny_model(), many, keeps=keeps)
    least = 3 * (KEPT if keeps else AGAIN)
    assert least <= held.computed <= 1.2 * least, "rows of unlike length are padded"
    assert len({tuple(ids) for ids in held.sampled}) == 3


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here; nothing is left out")
def test_without_vllm_it_is_left_out_and_it_is_said_how_to_get_it(capsys):
    held = measured.measure(tiny_model(), ONE)
    assert list(held) == ["transformers | encoded again", "transformers | kept"]
    assert "make setup-vllm" in capsys.readouterr().out
