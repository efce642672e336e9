"""Near ties: what else is in a batch changes no turn, whatever it does to the last bits."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf import batch as hf_batch
from agentgym_train.engines.hf import choice as hf_choice
from agentgym_train.engines.hf import kv_batch
from agentgym_train.engines.hf.choice import NEAR, choose
from agentgym_train.engines.hf.engine import HFEngine
from tests.train.small import textcraft_tokenizer, tiny_model

EPISODES, TURNS, TOKENS = 24, 3, 8


def draws_of(count: int) -> list[int]:
    draws = random.Random(0)
    return [draws.getrandbits(63) for _ in range(count)]


def test_tokens_are_drawn_with_their_probabilities():
    expected = torch.tensor([0.5, 0.3, 0.15, 0.049, 0.00099, 0.00001])
    count = 200_000
    logits = torch.log(expected).expand(count, -1)
    tokens = choose(logits, [1.0] * count, draws_of(count)).tokens
    found = torch.bincount(tokens, minlength=6)
    deviation = (found - count * expected) / (count * expected * (1 - expected)).sqrt()
    assert deviation.abs().max() < 4, deviation


def test_draws_of_different_tokens_and_rows_are_independent():
    count = 20_000
    logits = torch.zeros(count, 64)
    tokens = choose(logits, [1.0] * count, draws_of(count)).tokens
    pairs = torch.bincount(tokens[:-1] // 8 * 8 + tokens[1:] // 8, minlength=64)
    mean = (count - 1) / 64
    # The sum of 64 squared deviations is about 63, with a standard deviation of 11.
    assert 63 - 5 * 11 < ((pairs - mean) ** 2 / mean).sum() < 63 + 5 * 11


def test_a_row_does_not_depend_on_the_others():
    logits = torch.randn(9, 5000, generator=torch.Generator().manual_seed(0)) * 3
    draws, temperatures = draws_of(9), [1.0, 0.0, 0.7] * 3
    together = choose(logits, temperatures, draws)
    for row in range(9):
        alone = choose(logits[row : row + 1], temperatures[row:][:1], draws[row:][:1])
        assert alone.tokens[0] == together.tokens[row]
        assert alone.logprobs[0] == together.logprobs[row]
    assert torch.equal(together.tokens[1::3], logits[1::3].argmax(-1))


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 8.0])
def test_few_choices_are_near(spread):
    rows = 400
    logits = torch.randn(rows, 4000, generator=torch.Generator().manual_seed(1)) * spread
    assert choose(logits, [1.0] * rows, draws_of(rows)).is_near.float().mean() < 0.01


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.7, 1.0, 2.0])
def test_only_near_choices_can_change(temperature, monkeypatch):
    monkeypatch.setattr(hf_choice, "NEAR", 0.1)
    rows, noise = 400, torch.Generator().manual_seed(1)
    logits = torch.randn(rows, 4000, generator=noise)
    draws, temperatures = draws_of(rows), [temperature] * rows
    before = choose(logits, temperatures, draws)
    rounding = (torch.rand(logits.shape, generator=noise) - 0.5) * 0.099
    changed = choose(logits + rounding, temperatures, draws).tokens != before.tokens
    assert changed.sum() >= 3 and not changed[~before.is_near].any()
    assert before.is_near.float().mean() < (0.15 if temperature in (1.0, 2.0) else 1)


def test_every_part_of_a_draw_changes_the_noise():
    rows = [0, *(1 << bit for bit in range(63))]
    noise = hf_choice._uniform(rows, 4000, torch.device("cpu"))
    assert len({tuple(row.tolist()) for row in noise}) == 64
    # Values as small as the rarest tokens need, as often as they should be.
    many = hf_choice._uniform(draws_of(2000), 8192, torch.device("cpu"))
    assert 30 < (many < 2.0**-18).sum() < 100  # 62.5 expected
    assert 0 < (many < 2.0**-22).sum() < 14  # 3.9 expected


def test_tokens_that_pad_a_vocabulary_change_no_other():
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(logits, (0, 24), value=-torch.inf)
    draws = draws_of(50)
    small, large = (choose(x, [1.0] * 50, draws).tokens for x in (logits, padded))
    assert torch.equal(small, large)


def test_a_choice_tells_how_near_another_one_was():
    likeliest = choose(torch.tensor([[2.0, 1.0, 1.0], [2.0, 2.0 - NEAR / 2, 0.0]]), [0, 0], [0, 0])
    assert likeliest.tokens.tolist() == [0, 0]
    assert likeliest.is_near.tolist() == [False, True]
    # Of two equal tokens, the noise decides; at its boundary the other one is near.
    draws = draws_of(20_000)
    gap = choose(torch.zeros(len(draws), 2), [1.0] * len(draws), draws)
    # The density of the difference of two Gumbel variables is 1/4 at 0.
    assert gap.is_near.sum() < 10 and gap.tokens.float().mean() == pytest.approx(0.5, abs=0.02)


def test_logprobs_are_those_of_the_temperature():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    found = choose(logits.repeat(50, 1), [2.0] * 50, draws_of(50))
    expected = torch.log_softmax(logits[0] / 2, -1)[found.tokens]
    assert torch.allclose(found.logprobs, expected, atol=1e-6)


def draw_with_ones_for(token: int, size: int) -> int:
    """One whose random bits for this token are all ones, but for the last six."""
    first, second = hf_choice._random_bits(size, torch.device("cpu"))
    for place in range(1000):
        bits = int(first[token]) ^ int(second[place + token])
        if bits >> 6 & 3 == 3:
            return place << 20 | (~bits >> 8 & (1 << 23) - 1) << 40
    raise AssertionError("there is no such place")


@pytest.mark.parametrize("draw", [0, 2**63 - 1, (2**20 - 1) << 20, draw_with_ones_for(17, 300)])
def test_extreme_draws_choose_a_possible_token(draw):
    logits = torch.full((1, 300), -torch.inf)
    logits[0, 17] = 0.0
    found = choose(logits, [1.0], [draw])
    assert found.tokens.tolist() == [17] and found.logprobs.tolist() == [0.0]
    assert not found.is_near.any()


def model_of_near_twins():
    """Each token has a twin, from which only rounding can tell it apart."""
    model = tiny_model()
    with torch.no_grad():
        weight = model.lm_head.weight
        weight[1::2] = weight[::2][: len(weight[1::2])] * (1 + 1e-7)
    return model


def play(
    engine: HFEngine, temperature: float, at_once: int, episodes: int = EPISODES
) -> list[list[int]]:
    """Episodes of several turns, so many at once, that come and go in an order of their own."""

    async def one(number: int, slots: asyncio.Semaphore) -> list[int]:
        draws = random.Random(number)
        ids = [draws.randrange(3, 300) for _ in range(draws.randrange(5, 60))]
        for _ in range(TURNS):
            how = Sampling(TOKENS, temperature, (), draws.getrandbits(63))
            async with slots:
                generation = await engine.generate(ids, how, number)
            ids = [*ids, *generation.token_ids, 7, 8]
        return ids

    async def every() -> list[list[int]]:
        slots = asyncio.Semaphore(at_once)
        return await asyncio.gather(*(one(number, slots) for number in range(episodes)))

    return asyncio.run(every())


@pytest.mark.slow
def test_the_batch_changes_no_greedy_turn():
    model, pad = model_of_near_twins(), textcraft_tokenizer().pad_token_id
    settled = [
        play(HFEngine(model, pad, settle_ties=True), 0.0, at_once) for at_once in (1, 5, EPISODES)
    ]
    assert settled[0] == settled[1] == settled[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_the_batch_changes_no_turn(temperature, monkeypatch):
    """With coarser rounding than float32 has, which would otherwise change about one in 10,000."""
    noise = torch.Generator().manual_seed(0)
    forward = kv_batch.KVBatch._forward

    def rounded(batch, ids):
        logits = forward(batch, ids)
        return logits + (torch.rand(logits.shape, generator=noise) - 0.5) * 0.09

    monkeypatch.setattr(hf_choice, "NEAR", 0.1)
    monkeypatch.setattr(kv_batch.KVBatch, "_forward", rounded)
    model, pad = tiny_model(), textcraft_tokenizer().pad_token_id

    def turns(settles):
        return [
            play(HFEngine(model, pad, settle_ties=settles), temperature, at_once, 8)
            for at_once in (1, 8)
        ]

    alone, together = turns(settles=True)
    assert alone == together
    alone, together = turns(settles=False)
    assert alone != together


@pytest.mark.parametrize(("dtype", "settles"), [("float32", True), ("bfloat16", False)])
def test_no_pass_is_spent_on_ties_that_16_bits_cannot_decide(dtype, settles, monkeypatch):
    passes = []
    alone = hf_batch.TurnBatch._alone
    monkeypatch.setattr(
        hf_batch.TurnBatch, "_alone", lambda *args: passes.append(args) or alone(*args)
    )
    pad = textcraft_tokenizer().pad_token_id
    play(HFEngine(model_of_near_twins(), pad, dtype=dtype, settle_ties=True), 0.0, 8, 8)
    assert bool(passes) == settles
