"""A model that engine and trainer compute differently is reported in the first step of RL."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import hosting
from agentgym_env.run_store import RunStore
from agentgym_train.config.rl import RLConfig
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.worlds import open_worlds
from agentgym_train.training.agreement import FULL, HALF, Agreement
from agentgym_train.training.rl import RLTrainer
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.test_architectures import LOCAL_EXPERTS, SIZE

SAID = "engine and trainer compute different log-probabilities"


def train(folder, model, kind=RLTrainer, **changes) -> RLTrainer:
    """Two steps with the model's own engine."""
    values = {
        "model": "NAME", "env": hosting.GUESS, "output_dir": str(folder / "run"), "horizon": [2],
        "prompts_per_step": 1, "num_generations": 2, "steps": 2, "instruction": "",
        "turn_max_tokens": 8, "max_tokens": 512, "trainer_args": {"save_strategy": "no"},
    }  # fmt: skip
    config = RLConfig(**{**values, **changes})
    tokenizer = textcraft_tokenizer()
    policy = Policy(
        config, model, tokenizer, Chat(tokenizer), HFEngine(model, tokenizer.pad_token_id), ""
    )
    with open_worlds(config) as worlds:
        trainer = kind(policy, config, worlds, RunStore.create(folder / "run", {}))
        trainer.train()
        worlds.run(policy.close())
    return trainer


def model_of(name: str, **values):
    torch.manual_seed(0)
    size = {**SIZE, "vocab_size": len(textcraft_tokenizer()), "max_position_embeddings": 2048}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**size, **values})).eval()


DIFFERENT = {
    "phimoe": LOCAL_EXPERTS,
    "phimoe, jitter": {**LOCAL_EXPERTS, "input_jitter_noise": 0.3, "router_jitter_noise": 0.3},
    "mixtral, jitter": {**LOCAL_EXPERTS, "router_jitter_noise": 0.9},
}
"""Routers that draw noise in training mode, or whose choices depend on the mode."""


@pytest.mark.usefixtures("guess_server")
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_model_that_engine_and_trainer_compute_differently_is_reported_once(
    tmp_path, caplog, name
):
    model = model_of(name.partition(",")[0], **DIFFERENT[name])
    with caplog.at_level(logging.WARNING):
        train(tmp_path, model, turn_max_tokens=64)  # enough for a router to decide otherwise
    assert caplog.text.count(SAID) == 1
    (said,) = (row.getMessage() for row in caplog.records if SAID in row.getMessage())
    assert "% are above 0.0001" in said and "`agentgym audit NAME`" in said


@pytest.mark.usefixtures("guess_server")
def test_noise_of_the_comparison_changes_nothing_that_is_drawn_later(tmp_path):
    weights = []
    for compares in (True, False):
        model = model_of("mixtral", **DIFFERENT["mixtral, jitter"])
        init = RLTrainer._add_parts

        class Trainer(RLTrainer):
            def _add_parts(self, config, compares=compares, init=init):
                init(self, config)
                self.to_compare = compares

        trainer = train(tmp_path / str(compares), model, kind=Trainer)
        weights.append({n: w.detach() for n, w in trainer.model.named_parameters()})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.usefixtures("guess_server")
def test_a_usual_model_is_not_reported(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trainer = train(tmp_path, tiny_model())
    assert SAID not in caplog.text and not trainer.to_compare


@pytest.mark.usefixtures("guess_server")
@pytest.mark.parametrize("name", ["mixtral", "granitemoe"])
def test_a_model_of_experts_with_a_router_loss_trains_with_its_own_engine(name, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        model = model_of(name, **LOCAL_EXPERTS, output_router_logits=True)
        before = {n: w.detach().clone() for n, w in model.named_parameters()}
        train(tmp_path, model, entropy_bonus=0.1)
    assert SAID not in caplog.text
    assert any(not torch.equal(w, before[n]) for n, w in model.named_parameters())
    assert model.config.output_router_logits, "the engine only leaves it out while it samples"


def test_the_tolerance_is_the_audits():
    assert Agreement.from_gaps([9e-5] * 1000, FULL).holds
    assert Agreement.from_gaps([9e-5] * 999 + [9e-4], FULL).holds, (
        "one in a thousand may differ by ten"
    )
    assert not Agreement.from_gaps([9e-5] * 999 + [2e-3], FULL).holds
    assert (
        not Agreement.from_gaps([2e-4] * 10, FULL).holds
        and Agreement.from_gaps([2e-4] * 10, HALF).holds
    )
    assert not Agreement.from_gaps([float("nan")], HALF).holds
