"""`max_tokens` is checked against the positions that a model has, wherever a policy is used."""

from __future__ import annotations

import logging

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from agentgym_env.errors import ConfigError
from agentgym_train.audit.subject import AuditedModel
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.policy import AuditSettings, PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.models.positions import positions_of, within
from agentgym_train.rollout.policy import make_policy
from agentgym_train.runs.agent_trainer import AgentTrainer
from tests.train.command import Command, finish
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.test_architectures import OLD_SIZE, SIZE
from tests.train.test_evolve import write as write_evolve
from tests.train.test_imitation_run import write
from tests.train.test_run import write_config


def rope(kind: str, **values) -> dict[str, object]:
    return {**SIZE, "rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **values}}


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("kind", "values", "positions"),
    [
        ("gpt2", OLD_SIZE, 256),
        ("llama", SIZE, 256),
        ("gemma3_text", SIZE, 256),
        ("llama", rope("linear", factor=4.0), 1024),
        ("qwen2", rope("yarn", factor=4.0, original_max_position_embeddings=256), 1024),
        ("qwen2", rope("yarn", factor=2.0, original_max_position_embeddings=128), 256),
        ("llama", rope("llama3", factor=8.0, original_max_position_embeddings=32,
                       low_freq_factor=1.0, high_freq_factor=4.0), 256),
        ("phi3", rope("longrope", factor=4.0, original_max_position_embeddings=64, **FACTORS), 256),
        ("bloom", {}, None),
        ("mpt", {}, None),
        ("falcon", {"alibi": True}, None),
        ("mamba", {}, None),
        ("rwkv", {}, None),
    ],
)  # fmt: skip
def test_the_positions_of_a_model_are_known(kind, values, positions):
    assert positions_of(AutoConfig.for_model(kind, **values)) == positions


def test_a_default_is_lowered_with_a_message_and_a_set_number_is_refused(caplog):
    with caplog.at_level(logging.WARNING):
        assert within(RLConfig(), 2048).max_tokens == 2048
    assert "the model has 2048 positions: max_tokens is 2048 instead of 8192" in caplog.text
    assert within(RLConfig(max_tokens=2048), 2048).max_tokens == 2048
    assert within(RLConfig(max_tokens=9000), None).max_tokens == 9000
    with pytest.raises(ConfigError, match="max_tokens is 2049, but the model has 2048 positions"):
        within(PolicyConfig(max_tokens=2049), 2048)


def save_gpt2(folder) -> str:
    """A model with learned positions, which end in an IndexError."""
    tokenizer = textcraft_tokenizer()
    config = AutoConfig.for_model("gpt2", **{**OLD_SIZE, "vocab_size": len(tokenizer)})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_policy_for_evaluation_collection_or_the_gateway_has_what_its_model_has(tmp_path):
    model = save_gpt2(tmp_path)
    assert make_policy(PolicyConfig(model=model)).config.max_tokens == 256
    with pytest.raises(ConfigError, match="to at most 256"):
        make_policy(PolicyConfig(model=model, max_tokens=900))


@pytest.mark.parametrize("method", ["rl", "sft", "dpo", "evolve"])
def test_a_run_beyond_the_positions_is_refused_before_its_folder_is_made(tmp_path, method):
    if method == "rl":
        config = write_config(tmp_path, max_tokens=9000)
    elif method == "evolve":
        config = write_evolve(tmp_path, "run", max_tokens=9000)
    else:
        config = write(tmp_path, method, max_tokens=9000)
    status, output = finish(Command("train", config))
    assert status == 2, output
    assert "max_tokens is 9000, but the model has 8192 positions" in output
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_with_the_default_trains_within_the_positions(tmp_path):
    values = {"model": save_gpt2(tmp_path / "policy"), "output_dir": str(tmp_path / "run")}
    with AgentTrainer(args=RLConfig(env="textcraft", **values)) as trainer:
        assert trainer.args.max_tokens == trainer.policy.config.max_tokens == 256


def test_a_command_that_samples_refuses_it_too(tmp_path):
    words = ["--env", "textcraft", "--policy", save_gpt2(tmp_path / "model"), "--max-tokens", 900]
    for command in ("eval", "collect"):
        out = ["--out", tmp_path / "out"] if command == "collect" else []
        status, output = finish(Command(command, *words, *out))
        assert status == 2 and "but the model has 256 positions" in output, output


def test_an_audit_has_the_positions_of_its_model_and_refuses_more():
    def subject(model, **changes):
        return AuditedModel("tiny", model, textcraft_tokenizer(), AuditSettings(**changes))

    assert subject(tiny_model()).settings.max_tokens == 4096
    with pytest.raises(ConfigError, match="max_tokens is 9000, but the model has 8192 positions"):
        subject(tiny_model(), max_tokens=9000)
    gpt2 = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **OLD_SIZE))
    assert subject(gpt2).settings.max_tokens == 256


def test_a_config_of_sft_leaves_out_what_is_longer_than_the_positions():
    assert within(SFTConfig(model="m", data=["d"], output_dir="o"), 512).max_tokens == 512
