"""Ragged episodes as tensors, tiny models of several families, and trainers to compare on them."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from tests.train.small import textcraft_tokenizer, tiny_model

VOCABULARY = 200
TEMPERATURE = 0.7


def llama(seed: int = 0, **changes: Any) -> Any:
    """Rotary positions, the head's weights its own."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
        tie_word_embeddings=False, **changes,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2(seed: int = 0) -> Any:
    """Learned absolute positions, the head tied to the embeddings."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=256, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


FAMILIES = {"qwen3, tied": tiny_model, "llama, untied": llama, "gpt2, absolute": gpt2}


def episodes(count: int, seed: int = 0, max_turns: int = 6) -> list[tuple[list[int], ...]]:
    """(prompt ids, completion ids, loss mask) of episodes whose lengths differ much."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        prompt = [draw.randrange(3, VOCABULARY) for _ in range(draw.randint(2, 12))]
        mask: list[int] = []
        for _ in range(draw.randint(1, max_turns)):
            mask += [1] * draw.randint(1, 4) + [0] * draw.randint(0, 6)
        made.append((prompt, [draw.randrange(3, VOCABULARY) for _ in mask], mask))
    return made


def padded(rows: list[tuple[list[int], ...]]) -> dict[str, torch.Tensor]:
    """The batch as TRL holds it: prompts padded on the left, completions on the right."""
    prompt_width = max(len(prompt) for prompt, _, _ in rows)
    width = max(len(completion) for _, completion, _ in rows)

    def left(values: list[int]) -> list[int]:
        return [0] * (prompt_width - len(values)) + values

    def right(values: list[int]) -> list[int]:
        return values + [0] * (width - len(values))

    return {
        "prompt_ids": torch.tensor([left(prompt) for prompt, _, _ in rows]),
        "prompt_mask": torch.tensor([left([1] * len(prompt)) for prompt, _, _ in rows]),
        "completion_ids": torch.tensor([right(completion) for _, completion, _ in rows]),
        "completion_mask": torch.tensor([right([1] * len(c)) for _, c, _ in rows]),
        "tool_mask": torch.tensor([right(mask) for _, _, mask in rows]),
    }


def step_inputs(rows: list[tuple[list[int], ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    """What TRL's loss is given for a step: the batch, advantages, and earlier log-probs."""
    batch = padded(rows)
    random_numbers = torch.Generator().manual_seed(seed)
    mask = batch["completion_mask"] * batch["tool_mask"]
    shape = mask.shape
    return {
        **batch,
        "advantages": torch.randn(shape, generator=random_numbers) * mask,
        "old_per_token_logps": -5 + 0.3 * torch.randn(shape, generator=random_numbers),
        "ref_per_token_logps": -5 + 0.3 * torch.randn(shape, generator=random_numbers),
        "num_items_in_batch": mask.sum(),
    }


def make_trainer(kind: type[GRPOTrainer], folder: Any, model: Any = None, **settings: Any) -> Any:
    """A trainer of `kind` whose settings are TRL's, ready to be asked for a loss."""
    values = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "num_generations": 4,
        "max_completion_length": 64, "temperature": TEMPERATURE, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "optim": "sgd", "max_steps": 1,
        "learning_rate": 0.5, "max_grad_norm": 1e9, "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    extra = {"rollout_func": settings.pop("rollout_func")} if "rollout_func" in settings else {}
    beta = settings.pop("beta", 0.0)
    trainer = kind(
        model=tiny_model() if model is None else model,
        processing_class=textcraft_tokenizer(),
        args=GRPOConfig(**{**values, **settings}),
        train_dataset=Dataset.from_dict({"prompt": ["0", "1"]}),
        reward_funcs=[given_reward],
        **extra,
    )
    # A reference model is loaded from the hub; here its log-probabilities are given.
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def given_reward(completions: Any, given: list[float] | None = None, **_: Any) -> Any:
    """The reward that the rollout gave."""
    return given


def loss_and_gradients(
    trainer: Any, inputs: dict[str, torch.Tensor]
) -> tuple[float, dict[str, torch.Tensor]]:
    """A step's loss and gradient, computed as the trainer's own step does."""
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    trainer.accelerator.backward(loss)
    gradients = {
        name: weight.grad.clone()
        for name, weight in trainer.model.named_parameters()
        if weight.grad is not None
    }
    return loss.item(), gradients


def assert_same_gradients(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    """Equal but for `rtol` of the largest entry of each weight, and float32's noise."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(found[name], gradient, atol=rtol * scale + 2e-7, rtol=0), name
