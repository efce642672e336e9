"""With adapters the reference is the policy that training starts from, or the run is refused."""

from __future__ import annotations

import pytest
import torch

from agentgym_env.errors import ConfigError
from agentgym_train.config.learn import DPOConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.models.adapters import lora_config
from agentgym_train.models.loading import load_policy
from agentgym_train.training.dpo import check_dpo
from agentgym_train.training.rl import check_rl
from agentgym_train.training.sft import AgentSFTTrainer
from tests.train.small import save_tiny_policy, tiny_model
from tests.train.test_imitation import rows_of, settings
from tests.train.test_trainer import first_task, guesses, train_one_step

ELSEWHERE = [
    {"init_lora_weights": "pissa"},
    {"init_lora_weights": "olora"},
    {"init_lora_weights": "OLoRA"},
    {"init_lora_weights": False},
    {"kasa_config": {}},
    {"bias": "all"},
    {"bias": "lora_only"},
]
AT_THE_MODEL = [True, "gaussian", "Gaussian", "orthogonal", "mica"]
UNUSABLE = {
    "pissa_niter_4": "cannot be repeated exactly",
    "loftq": "cannot be repeated exactly",
    "corda": "computed from data",
    "eva": "computed from data",
    "lora_ga": "computed from data",
}


def rl(**changes) -> RLConfig:
    return RLConfig(model="m", env="textcraft", output_dir="o", **changes)


@pytest.mark.parametrize("lora", ELSEWHERE, ids=str)
def test_a_reference_that_is_another_policy_is_refused(lora):
    with pytest.raises(ConfigError, match=r"beta 0\.1 compares with; leave it out of lora"):
        check_rl(rl(lora=lora, beta=0.1))
    with pytest.raises(ConfigError, match="algorithm reinforce_pp compares with"):
        check_rl(rl(lora=lora, algorithm={"type": "reinforce_pp", "beta": 0.1}))
    with pytest.raises(ConfigError, match="DPO compares with"):
        check_dpo(DPOConfig(model="m", data=["d"], output_dir="o", lora=lora))
    check_rl(rl(lora=lora))


@pytest.mark.parametrize("start", AT_THE_MODEL)
@pytest.mark.usefixtures("guess_server")
def test_the_kl_divergence_from_the_reference_is_0_at_the_first_step(tmp_path, start):
    wrong = next(n for n in "123456" if n not in (first_task(), "2"))
    trainer, _ = train_one_step(
        tmp_path,
        guesses([wrong, first_task()]),
        beta=0.1,
        lora={"r": 4, "init_lora_weights": start},
    )
    (row,) = [row for row in trainer.state.log_history if "kl" in row]
    assert row["kl"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("start", UNUSABLE)
def test_adapters_that_would_be_saved_as_others_are_refused_in_every_method(start):
    for check in (check_rl, lambda config: lora_config(config.lora)):
        with pytest.raises(ConfigError, match=UNUSABLE[start]):
            check(rl(lora={"init_lora_weights": start}))


@pytest.mark.parametrize("name", ["lora_bias", "alora_invocation_tokens"])
def test_adapters_that_no_command_can_load_are_refused(name):
    with pytest.raises(ConfigError, match=f"lora.{name} makes adapters that cannot be merged"):
        lora_config({name: [1, 2] if name != "lora_bias" else True})


@pytest.mark.parametrize("start", [*AT_THE_MODEL, "pissa", "olora", False])
def test_the_saved_model_is_the_trained_one(tmp_path, start):
    model, tokenizer = load_policy(save_tiny_policy(tmp_path / "policy"))
    config = settings(
        tmp_path, steps=2, lora={"r": 4, "init_lora_weights": start}, learning_rate=0.02,
        trainer_args={"warmup_steps": 0, "save_strategy": "no"},
    )  # fmt: skip
    trainer = AgentSFTTrainer(model, tokenizer, rows_of("stick", "ladder"), config, tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    policy = trainer.accelerator.unwrap_model(trainer.model).eval()
    again, _ = load_policy(str(tmp_path / "model"))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        found, expected = again.eval()(ids).logits, policy(ids).logits
        moved = expected - tiny_model()(ids).logits
    assert torch.allclose(found, expected, atol=1e-4) and moved.abs().max() > 0.01
