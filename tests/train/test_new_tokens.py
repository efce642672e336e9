"""Tokens that a model was given with a chat template are learned, with LoRA too."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from agentgym_env.errors import ConfigError
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train.config.engines import ServerSettings
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.engines.vllm.transports import sends_adapters
from agentgym_train.models.adapters import adapters_for, new_tokens
from agentgym_train.models.loading import load_policy
from agentgym_train.models.setup import TURN_BEGINS, TURN_ENDS, speak_chatml
from agentgym_train.models.weights import adapters_of, checkpoint_weights
from agentgym_train.training.sft import AgentSFTTrainer
from tests.train.demonstrating import demonstration
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.test_architectures import OLD_SIZE, SIZE
from tests.train.test_hf_engine import full_forward_logprobs, sampling, together
from tests.train.test_imitation import settings

# PEFT corrects the setting itself for the layers of GPT-2.
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
KINDS = {
    "llama, untied": ("llama", {**SIZE, "tie_word_embeddings": False}),
    "qwen3, tied": ("qwen3", {**SIZE, "tie_word_embeddings": True}),
    "gpt2, tied": ("gpt2", {**OLD_SIZE, "n_positions": 1024}),
}


@cache
def words() -> str:
    """A byte-level tokenizer without control tokens, as JSON."""
    texts = [TextCraft().reset(seed=0, options={"task": task})[0] for task in ("stick", "chest")]
    made = ByteLevelBPETokenizer()
    made.train_from_iterator([*texts, "user assistant"], vocab_size=390, special_tokens=["<pad>"])
    return str(made.to_str())


def given_chatml(kind: str, **changes: Any) -> tuple[Any, Any]:
    """(model, tokenizer) as `agentgym models NAME --save FOLDER --chat-template chatml`."""
    name, values = KINDS[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**values, **changes}))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=ByteLevelBPETokenizer()._tokenizer.from_str(words()), pad_token="<pad>"
    )
    model.resize_token_embeddings(len(tokenizer))
    speak_chatml(model, tokenizer)
    return model.eval(), tokenizer


def rows(tokenizer: Any) -> list[Any]:
    made = EpisodeTokenizer(tokenizer)
    return [training_row(t) for task in ("stick", "chest") for t in made.rows(demonstration(task))]


def trained(folder, model, tokenizer, steps: int = 6, **changes: Any) -> Any:
    """A trainer with LoRA adapters after some steps, or resumed from a checkpoint."""
    config = settings(
        folder, steps=steps, lora={"r": 4}, learning_rate=0.02,
        trainer_args={"warmup_steps": 0, "lr_scheduler_type": "constant"}, save_every=3,
    )  # fmt: skip
    trainer = AgentSFTTrainer(model, tokenizer, rows(tokenizer), config, folder)
    trainer.train(**changes)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_adapters_learns_where_a_turn_ends(tmp_path, kind):
    model, tokenizer = given_chatml(kind)
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    model, tokenizer = load_policy(str(tmp_path / "start"))
    begins, ends = tokenizer.convert_tokens_to_ids([TURN_BEGINS, TURN_ENDS])
    assert new_tokens(model, tokenizer) == sorted([begins, ends])
    row = rows(tokenizer)[0]
    at = next(i for i, n in enumerate(row["labels"]) if n == ends)
    prompt = torch.tensor([row["input_ids"][:at]])

    def lead(some: Any) -> float:
        """How much likelier the turn ends here than that another begins."""
        with torch.no_grad():
            logits = some(prompt).logits[0, -1]
        return float(logits[ends] - logits[begins])

    before = lead(model)
    trainer = trained(tmp_path / "run", model, tokenizer, steps=30)
    policy = trainer.accelerator.unwrap_model(trainer.model).eval()
    assert lead(policy) > before + 1
    trainer.save_model(str(tmp_path / "model"))
    again, _ = load_policy(str(tmp_path / "model"))
    assert lead(again) == pytest.approx(lead(policy), abs=1e-4), "the saved is the trained one"
    assert new_tokens(again, tokenizer) == [], "it has learned them"
    others = [n for n in range(20) if n not in (begins, ends)]
    for part in ("get_input_embeddings", "get_output_embeddings"):
        old, new = (getattr(some, part)().weight for some in (load_policy(
            str(tmp_path / "start"))[0], again))  # fmt: skip
        assert torch.equal(old[others], new[others])
        assert (new[begins] - new[ends]).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_engines_sample_with_the_trained_tokens_and_leave_the_model_as_it_is(tmp_path, kind):
    model, tokenizer = given_chatml(kind)
    trainer = trained(tmp_path, model, tokenizer, steps=2)
    policy = trainer.accelerator.unwrap_model(trainer.model).eval()
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    prompts = [row["input_ids"][:60] for row in rows(tokenizer)]
    engine = HFEngine(policy, 0)
    for prompt, found in zip(prompts, together(engine, prompts, [sampling(8)] * 2), strict=True):
        expected = full_forward_logprobs(policy, prompt, found)
        assert found.logprobs == pytest.approx(expected, abs=1e-4)
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, before[name]), name
    trainer.train()  # the weights are not those of inference mode
    policy.eval()
    whole = AutoModelForCausalLM.from_config(model.config).eval()
    whole.load_state_dict(checkpoint_weights(policy), strict=False)
    whole.tie_weights()
    ids = torch.tensor([prompts[0]])
    with torch.no_grad():
        assert torch.allclose(whole(ids).logits, policy(ids).logits, atol=1e-4), "for vLLM"
    with pytest.raises(ConfigError, match=r"engine\.adapter_updates to false"):
        adapters_of(policy)
    with pytest.raises(ConfigError, match=r"engine\.adapter_updates to false"):
        sends_adapters(ServerSettings(adapter_updates=True), policy)
    assert not sends_adapters(ServerSettings(), policy)


def test_a_resumed_training_of_tokens_becomes_what_the_unbroken_one_did(tmp_path):
    unbroken = trained(tmp_path / "run", *given_chatml("llama, untied"))
    resumed = trained(
        tmp_path / "again", *given_chatml("llama, untied"),
        resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"),
    )  # fmt: skip
    assert resumed.state.global_step == 6
    for (name, one), other in zip(
        unbroken.model.named_parameters(), resumed.model.parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name


def test_the_reference_does_not_have_the_trained_tokens(tmp_path):
    model, tokenizer = given_chatml("qwen3, tied")
    ids = torch.tensor([rows(tokenizer)[0]["input_ids"]])
    with torch.no_grad():
        start = model(ids).logits
    trainer = trained(tmp_path, model, tokenizer, steps=2)
    policy = trainer.accelerator.unwrap_model(trainer.model).eval()
    with torch.no_grad(), policy.disable_adapter():
        assert torch.equal(policy(ids).logits, start)


def test_tokens_that_a_model_has_learned_are_not_trained_apart():
    model, tokenizer = tiny_model(), textcraft_tokenizer()
    assert new_tokens(model, tokenizer) == []
    assert adapters_for(model, tokenizer, {"r": 2}).trainable_token_indices is None


def test_zeros_and_shared_embeddings_are_those_of_new_tokens():
    model, tokenizer = tiny_model(), textcraft_tokenizer()
    begins, ends = tokenizer.convert_tokens_to_ids([TURN_BEGINS, TURN_ENDS])
    weight = model.get_input_embeddings().weight.data
    weight[begins] = weight[ends]
    assert new_tokens(model, tokenizer) == sorted([begins, ends])
    weight[begins] = 0
    assert new_tokens(model, tokenizer) == [begins]


def test_embeddings_that_are_trained_whole_are_left_to_that():
    model, tokenizer = given_chatml("llama, untied")
    config = adapters_for(model, tokenizer, {"modules_to_save": ["embed_tokens", "lm_head"]})
    assert config.trainable_token_indices is None


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_on_one_side_of_the_new_tokens_are_refused(kind):
    model, tokenizer = given_chatml(kind)
    inputs = "wte" if "gpt2" in kind else "embed_tokens"
    is_tied = model.lm_head.weight is model.get_input_embeddings().weight
    wrong = [{"modules_to_save": ["lm_head"]}]
    if not is_tied:
        wrong += [{"modules_to_save": [inputs]}, {"target_modules": ["q_proj", inputs]}]
    for fields in wrong:
        with pytest.raises(ConfigError, match=r"has not learned .* modules_to_save: "):
            adapters_for(model, tokenizer, fields)


def test_what_peft_can_not_train_or_save_is_refused():
    model, tokenizer = given_chatml("qwen3, tied")
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(len(tokenizer)))
    with pytest.raises(ConfigError, match="LM head with a bias; train all weights once"):
        adapters_for(model, tokenizer, {"r": 2})
    with pytest.raises(ConfigError, match="whose weights are the LM head's too"):
        adapters_for(
            tiny_model(), textcraft_tokenizer(), {"target_modules": ["q_proj", "embed_tokens"]}
        )
