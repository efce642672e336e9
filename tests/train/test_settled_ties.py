"""Near ties: what else is in a batch changes no turn, whatever it does to the last bits."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agentgym_train.engines import hf_batch
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf import HFEngine
from agentgym_train.engines.hf_batch import NEAR, choose
from tests.train.small import textcraft_tokenizer, tiny_model

EPISODES, TURNS, TOKENS = 24, 3, 8


def test_a_choice_tells_how_near_another_one_was():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).repeat(6, 1)
    draws = [0.2, 0.4999, 0.5001, 0.7499, 0.76, 0.99999]
    sampled = choose(logits, [1.0] * 6, draws)
    assert sampled.tokens.tolist() == [0, 0, 1, 1, 2, 2]
    assert sampled.is_near.tolist() == [False, True, True, True, False, False]
    likeliest = choose(torch.tensor([[2.0, 1.0, 1.0], [2.0, 2.0 - NEAR / 2, 0.0]]), [0, 0], [0, 0])
    assert likeliest.tokens.tolist() == [0, 0]
    assert likeliest.is_near.tolist() == [False, True]
    assert choose(logits, [2.0] * 6, draws).logprobs[0] == pytest.approx(-0.8814, abs=1e-4)


def model_of_near_twins():
    """Each token has a twin, from which only rounding can tell it apart."""
    model = tiny_model()
    with torch.no_grad():
        weight = model.lm_head.weight
        weight[1::2] = weight[::2][: len(weight[1::2])] * (1 + 1e-7)
    return model


def play(engine: HFEngine, temperature: float, at_once: int) -> list[list[int]]:
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
        return await asyncio.gather(*(one(number, slots) for number in range(EPISODES)))

    return asyncio.run(every())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_batch_changes_no_turn(temperature):
    model, pad = model_of_near_twins(), textcraft_tokenizer().pad_token_id
    settled = [
        play(HFEngine(model, pad, settle_ties=True), temperature, at_once)
        for at_once in (1, 5, EPISODES)
    ]
    assert settled[0] == settled[1] == settled[2]


def test_it_would_change_turns_of_such_a_model_otherwise():
    model, pad = model_of_near_twins(), textcraft_tokenizer().pad_token_id
    found = [play(HFEngine(model, pad), 0.0, at_once) for at_once in (1, 5, EPISODES)]
    assert not found[0] == found[1] == found[2]


@pytest.mark.parametrize(("dtype", "settles"), [("float32", True), ("bfloat16", False)])
def test_no_pass_is_spent_on_ties_that_16_bits_cannot_decide(dtype, settles, monkeypatch):
    passes = []
    alone = hf_batch.TurnBatch._alone
    monkeypatch.setattr(
        hf_batch.TurnBatch, "_alone", lambda *args: passes.append(args) or alone(*args)
    )
    pad = textcraft_tokenizer().pad_token_id
    play(HFEngine(model_of_near_twins(), pad, dtype=dtype, settle_ties=True), 1.0, EPISODES)
    assert bool(passes) == settles


def test_few_choices_of_a_model_that_is_sure_of_something_are_settled_alone(monkeypatch):
    near: list[float] = []

    def watched(logits, temperatures, draws):
        choice = choose(logits, temperatures, draws)
        near.extend(choice.is_near.float().tolist())
        return choice

    monkeypatch.setattr(hf_batch, "choose", watched)
    play(HFEngine(tiny_model(), textcraft_tokenizer().pad_token_id), 0.1, EPISODES)
    assert len(near) >= EPISODES * TURNS * TOKENS
    assert sum(near) / len(near) < 0.05
