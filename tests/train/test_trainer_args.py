"""`trainer_args`: what has an effect is taken, everything else is rejected by every door."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml
from transformers import TrainingArguments

from agentgym_env.errors import ConfigError
from agentgym_train.algorithms import LossSettings, make_algorithm, make_loss
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.read import read_method_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trainer_args import OURS, allowed_in, own_key
from agentgym_train.training.rl import check_rl
from agentgym_train.training.sft import AgentSFTTrainer
from tests.train.small import textcraft_tokenizer, tiny_model

NEEDED = {
    "rl": (RLConfig, {"model": "m", "output_dir": "o", "env": "agentgym/TextCraft-v0"}),
    "sft": (SFTConfig, {"model": "m", "output_dir": "o", "data": ["d"]}),
    "dpo": (DPOConfig, {"model": "m", "output_dir": "o", "data": ["d"]}),
    "evolve": (AgentEvolConfig, {"model": "m", "output_dir": "o", "env": "agentgym/TextCraft-v0"}),
}
METHODS = tuple(NEEDED)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_taken_is_an_argument_of_transformers_and_not_one_of_our_keys(method):
    names = {field.name for field in fields(TrainingArguments)}
    assert allowed_in(method) <= names
    keys = {field.name for field in fields(NEEDED[method][0])}
    assert not [name for name in allowed_in(method) if own_key(name, keys)]


def test_what_is_to_be_written_instead_of_an_argument_of_trl_is_a_key_of_a_method():
    keys = set().union(*({field.name for field in fields(kind)} for kind, _ in NEEDED.values()))
    assert {text.partition(":")[0] for texts in OURS.values() for text in texts} <= keys


REFUSED = [
    ("rl", {"top_p": 0.9}, "unknown key top_p in trainer_args; valid keys: adam_beta1"),
    ("rl", {"reward_weights": [2.0]}, "unknown key reward_weights in trainer_args"),
    ("rl", {"logging_steps": 10}, "metrics are written at every step"),
    ("rl", {"neftune_noise_alpha": 5.0}, "unknown key neftune_noise_alpha"),
    ("rl", {"bf16": True}, "set by compute_dtype; write compute_dtype: bfloat16 instead"),
    ("rl", {"fp16": True}, "set by compute_dtype; write compute_dtype: bfloat16 instead"),
    ("rl", {"delta": 2.0}, "write algorithm: {type: NAME, loss: {delta: VALUE}} instead"),
    ("rl", {"deepspeed": "zero3.json"}, "name a config file of accelerate with --accelerate"),
    ("rl", {"top_p": 0.9, "warmup_steps": 5}, "unknown key top_p in trainer_args; valid keys"),
    ("rl", {"weight_deccay": 0.1}, "in trainer_args; did you mean weight_decay?"),
    ("sft", {"eval_strategy": "steps"}, "see eval"),
    ("sft", {"hub_token": "x"}, "would be stored in the run folder"),
    ("sft", {"save_strategy": "best"}, "must be one of steps, no, got 'best'"),
    ("rl", {"loss_type": "dft"}, "write algorithm: {type: NAME, loss: {mean: VALUE}} instead"),
    ("sft", {"per_device_train_batch_size": 2}, "write rows_per_step: VALUE instead"),
    ("dpo", {"max_steps": 2}, "trainer_args.max_steps is set by steps; write steps: VALUE instead"),
    ("dpo", {"neftune_noise_alpha": 5.0}, "unknown key neftune_noise_alpha"),
    ("dpo", {"label_smoothing": 0.1}, "unknown key label_smoothing in trainer_args"),
    ("evolve", {"lr_scheduler_type": "reduce_lr_on_plateau"}, "must be one of linear, cosine"),
]


@pytest.mark.parametrize(("method", "given", "said"), REFUSED)
def test_an_argument_without_effect_or_with_harm_is_rejected_by_every_door(
    method, given, said, tmp_path
):
    kind, needed = NEEDED[method]
    with pytest.raises(ConfigError, match=re.escape(said)):
        kind(**needed, trainer_args=given)
    with pytest.raises(ConfigError, match=re.escape(said)):
        replace(kind(**needed), trainer_args=given)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"method": method, **needed, "trainer_args": given}))
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_method_config(file)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ({"epsilom": 0.1}, "unknown key epsilom in algorithm.loss of type grpo"),
        ({"epsilon": 2}, "algorithm.loss.epsilon is at most 1"),
        ({"kind": "ppo"}, "algorithm.loss.kind must be one of clip, cispo, sapo"),
        (0.3, "algorithm.loss is a mapping"),
        ({"kind": "cispo"}, "loss.kind cispo needs epsilon_high"),
        (
            {"kind": "cispo", "epsilon_high": 5, "delta": 2},
            "loss.delta has no effect with loss.kin",
        ),
        (
            {"kind": "sapo", "epsilon_high": 5},
            "loss.epsilon_high has no effect with loss.kind sapo",
        ),
    ],
)
def test_settings_of_the_loss_are_checked_before_a_step(loss, said):
    config = RLConfig(**NEEDED["rl"][1], algorithm={"type": "grpo", "loss": loss})
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_rl(config)


def test_a_config_changes_single_settings_of_an_algorithms_loss():
    setting = {"type": "gspo", "loss": {"epsilon_high": 0.1, "delta": 2}}
    found = make_loss(setting, make_algorithm(setting))
    assert found == LossSettings(
        ratio="sequence", mean="sequence", epsilon=3e-4, epsilon_high=0.1, delta=2
    )


def weights_after(trainer_args) -> torch.Tensor:
    """After two steps of plain gradient descent by SFT on two rows."""
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "save_strategy": "no"}
    kind, needed = NEEDED["sft"]
    config = kind(**needed, rows_per_step=2, steps=2, learning_rate=0.05,
                  trainer_args={**plain, **trainer_args})  # fmt: skip
    torch.manual_seed(0)
    model, folder = tiny_model(), Path(needed["output_dir"])
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}] * 2
    AgentSFTTrainer(model, textcraft_tokenizer(), rows, config, folder).train()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_noise_in_the_embeddings_changes_the_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise = {"neftune_noise_alpha": 5.0}
    assert not torch.equal(weights_after({}), weights_after(noise))
