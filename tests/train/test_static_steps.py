"""`cuda_graphs`: decode steps of one shape sample the same turns; on a CPU without the graphs."""

import asyncio
import logging
import random
from itertools import chain

import pytest
import torch

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import engine_settings
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf import graph as hf_graph
from agentgym_train.engines.hf.engine import HFEngine
from tests.train.small import tiny_model


async def conversation(engine, number: int) -> list:
    """Turns of unequal length, which join a running batch at other times than the others."""
    draw = random.Random(number)
    ids = [draw.randrange(3, 200) for _ in range(draw.randint(2, 40))]
    turns = []
    for turn in range(4):
        await asyncio.sleep(draw.choice((0, 0.01, 0.05)))
        sampling = Sampling(draw.randint(2, 30), seed=100 * number + turn)
        found = await engine.generate(ids, sampling, conversation=number)
        turns.append((found.token_ids, found.logprobs))
        ids = [*ids, *found.token_ids, *(draw.randrange(3, 200) for _ in range(draw.randint(1, 9)))]
    return turns


def played(model, **settings) -> list:
    async def play():
        engine = HFEngine(model, 0, settle_ties=True, **settings)
        try:
            return await asyncio.gather(*(conversation(engine, number) for number in range(9)))
        finally:
            await engine.close()

    return asyncio.run(play())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_steps_of_one_shape_sample_the_same_turns(attention, monkeypatch):
    model = tiny_model()
    model.set_attn_implementation(attention)
    decode, taken = hf_graph.StaticSteps.decode, []

    def counted(*arguments):
        taken.append(decode(*arguments))
        return taken[-1]

    monkeypatch.setattr(hf_graph.StaticSteps, "decode", counted)
    plain, static = played(model), played(model, cuda_graphs=True)
    assert len(taken) > 100 and all(logits is not None for logits in taken)
    for own, other in zip(chain(*plain), chain(*static), strict=True):
        assert own[0] == other[0]
        torch.testing.assert_close(torch.tensor(own[1]), torch.tensor(other[1]))


def test_where_a_step_fails_the_engine_samples_without(monkeypatch, caplog):
    model = tiny_model()
    plain = played(model)

    def failing(*arguments):
        raise hf_graph.GraphFailed("operation not permitted when stream is capturing")

    monkeypatch.setattr(hf_graph.StaticStep, "__call__", failing)
    with caplog.at_level(logging.WARNING):
        found = played(model, cuda_graphs=True)
    assert [[ids for ids, _ in turns] for turns in found] == [
        [ids for ids, _ in turns] for turns in plain
    ]
    said = [line for line in caplog.messages if "without CUDA graphs: operation not" in line]
    assert len(said) == 1  # it is not tried again with the next batch


def test_the_setting_is_a_truth_value():
    assert engine_settings({"type": "hf", "cuda_graphs": True}).cuda_graphs
    with pytest.raises(ConfigError, match="cuda_graphs"):
        engine_settings({"type": "hf", "cuda_graphs": "sometimes"})
