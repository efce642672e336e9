"""`trainer_args`: what has an effect is taken, everything else is rejected by every door."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import trl
import yaml

from agentgym_env.errors import ConfigError
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.read import read_method_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trainer_args import ALLOWED, REJECTED, SET_BY
from agentgym_train.training.dpo import AgentDPOTrainer, check_dpo
from agentgym_train.training.rl import check_rl
from agentgym_train.training.sft import AgentSFTTrainer, check_sft
from agentgym_train.training.update import Counts, PackedUpdate
from tests.train.ragged_rows import episodes, make_trainer, step_inputs
from tests.train.small import textcraft_tokenizer, tiny_model

NEEDED = {
    "rl": (RLConfig, {"model": "m", "output_dir": "o", "env": "agentgym/TextCraft-v0"}),
    "sft": (SFTConfig, {"model": "m", "output_dir": "o", "data": ["d"]}),
    "dpo": (DPOConfig, {"model": "m", "output_dir": "o", "data": ["d"]}),
    "evolve": (AgentEvolConfig, {"model": "m", "output_dir": "o", "env": "agentgym/TextCraft-v0"}),
}
TRL = {"rl": trl.GRPOConfig, "sft": trl.SFTConfig, "dpo": trl.DPOConfig, "evolve": trl.SFTConfig}


@pytest.mark.parametrize("method", TRL)
def test_every_argument_of_trl_is_taken_or_rejected(method):
    names = {field.name for field in fields(TRL[method])}
    others = {*SET_BY[method], *REJECTED[method]}
    assert names <= ALLOWED[method] | others
    assert ALLOWED[method] <= names and not ALLOWED[method] & others
    own = {key.partition(":")[0] for key in SET_BY[method].values()}
    assert own <= {field.name for field in fields(NEEDED[method][0])}


REFUSED = [
    ("rl", {"top_p": 0.9}, "trainer_args.top_p has no effect: episodes are sampled by the engine"),
    ("rl", {"top_k": 5}, "trainer_args.top_k has no effect"),
    ("rl", {"repetition_penalty": 1.1}, "trainer_args.repetition_penalty has no effect"),
    ("rl", {"generation_kwargs": {"top_p": 0.9}}, "trainer_args.generation_kwargs has no effect"),
    ("rl", {"reward_weights": [2.0]}, "trainer_args.reward_weights has no effect: rewards are the"),
    ("rl", {"logging_steps": 10}, "metrics are written at every step"),
    ("rl", {"label_smoothing_factor": 0.1}, "RL has no labels"),
    ("rl", {"neftune_noise_alpha": 5.0}, "engine and trainer would compute different policies"),
    ("rl", {"disable_dropout": False}, "engine and trainer would compute different policies"),
    ("rl", {"logging_strategy": "no"}, "metrics are written at every step"),
    ("rl", {"bf16": True}, "set by compute_dtype; write compute_dtype: bfloat16 instead"),
    ("rl", {"log_completions": True}, "`agentgym view` shows the episodes"),
    ("rl", {"deepspeed": "zero3.json"}, "name a config file of accelerate with --accelerate"),
    ("rl", {"epsilom": 0.1}, "unknown key epsilom in trainer_args; did you mean epsilon?"),
    (
        "rl",
        {"quite_another": 1},
        "unknown key quite_another in trainer_args; valid keys: adam_beta1",
    ),
    ("sft", {"eval_strategy": "steps"}, "see eval"),
    ("sft", {"hub_token": "x"}, "a run folder contains no secrets"),
    ("sft", {"save_strategy": "best"}, "must be one of steps, no, got 'best'"),
    (
        "sft",
        {"loss_type": "dft", "label_smoothing_factor": 0.1},
        "no effect with the loss_type dft",
    ),
    ("dpo", {"neftune_noise_alpha": 5.0}, "a reference without the noise"),
    ("dpo", {"label_smoothing": 0.1}, "no effect with the loss_type sigmoid; it belongs to robust"),
    ("dpo", {"sync_ref_model": True}, "checkpoints contain no reference"),
    ("dpo", {"precompute_ref_log_probs": True}, "with lora it needs no copy"),
    ("evolve", {"train_sampling_strategy": "random"}, "in the order and the micro-batches"),
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
    ("algorithm", "given"),
    [
        ("grpo", {"sapo_temperature_pos": 2.0}),
        ("cispo", {"epsilon": 0.1}),
        ("rloo", {"vespo_k_neg": 1.0}),
    ],
)
def test_an_argument_of_another_loss_than_the_algorithms_is_rejected(algorithm, given):
    config = RLConfig(**NEEDED["rl"][1], algorithm=algorithm, trainer_args=given)
    with pytest.raises(ConfigError, match="has no effect with the loss_type"):
        check_rl(config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("method", "check"), [("sft", check_sft), ("dpo", check_dpo)])
def test_offloading_without_a_gpu_is_rejected(method, check):
    kind, needed = NEEDED[method]
    with pytest.raises(ConfigError, match="activation_offloading moves activations from a GPU"):
        check(kind(**needed, trainer_args={"activation_offloading": True}))


def weights_after(method, trainer_args) -> torch.Tensor:
    """After two steps of plain gradient descent on two made rows or pairs."""
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "save_strategy": "no"}
    kind, needed = NEEDED[method]
    size = {"sft": "rows_per_step", "dpo": "pairs_per_step"}[method]
    config = kind(**needed, **{size: 2}, steps=2, learning_rate=0.05,
                  trainer_args={**plain, **trainer_args})  # fmt: skip
    torch.manual_seed(0)
    model, folder = tiny_model(), Path(needed["output_dir"])
    rows: list[dict[str, list[int]]]
    if method == "sft":
        rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}] * 2
        trainer = AgentSFTTrainer(model, textcraft_tokenizer(), rows, config, folder)
    else:
        row = {"prompt_ids": [5], "chosen_ids": [6, 7, 8], "chosen_mask": [1, 0, 1],
               "rejected_ids": [9, 10, 11, 12, 13], "rejected_mask": [1, 1, 0, 1, 1]}  # fmt: skip
        trainer = AgentDPOTrainer(model, textcraft_tokenizer(), [row] * 2, config, folder)
    trainer.train()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize(
    ("method", "without", "given"),
    [
        pytest.param(
            "sft", {}, {"label_smoothing_factor": 0.2},
            marks=pytest.mark.filterwarnings("ignore:`label_smoothing_factor` is deprecated"),
        ),
        ("sft", {}, {"neftune_noise_alpha": 5.0}),
        ("dpo", {}, {"ld_alpha": 0.5}),
        ("dpo", {}, {"use_weighting": True}),
        ("dpo", {"loss_type": ["robust"]}, {"label_smoothing": 0.2}),
        ("dpo", {"loss_type": ["discopop"]}, {"discopop_tau": 0.5}),
    ],
)  # fmt: skip
def test_what_is_taken_in_imitation_changes_the_weights(
    method, without, given, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert not torch.equal(weights_after(method, without), weights_after(method, without | given))


@pytest.mark.parametrize(
    ("without", "given"),
    [
        ({}, {"off_policy_mask_threshold": 0.01}),
        ({}, {"top_entropy_quantile": 0.3}),
        ({"beta": 0.1}, {"use_bias_correction_kl": False}),
        ({"loss_type": "sapo"}, {"sapo_temperature_neg": 0.5}),
        ({"loss_type": "vespo"}, {"vespo_lambda_neg": 1.0}),
    ],
)
def test_what_is_taken_in_rl_changes_the_gradient(without, given, tmp_path):
    inputs = step_inputs(episodes(8))
    inputs["sampling_per_token_logps"] = inputs["old_per_token_logps"] + 0.3
    found = []
    for settings in (without, without | given):
        trainer = make_trainer(PackedUpdate, tmp_path, **settings)
        trainer.counts = [Counts(8, int(inputs["num_items_in_batch"]))]
        trainer.compute_loss(trainer.model, inputs).backward()
        found.append(torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()]))
    assert not torch.equal(*found)
