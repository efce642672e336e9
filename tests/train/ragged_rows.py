"""Ragged episodes as tensors, tiny models of several families, and trainers to compare on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentgym_train.algorithms import LossSettings
from agentgym_train.training.loss import RLLoss, token_weights
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer
from agentgym_train.training.trl_rollout import trajectory_reward
from tests.train.small import textcraft_tokenizer, tiny_model

VOCABULARY = 200
DEFAULT = LossSettings()
TEMPERATURE = 0.7
MOST = 64
"""TRL's `max_completion_length`."""


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


class Bare(UpdatingTrainer, GRPOTrainer):
    """Our update alone, on rows that a test gives."""

    given: Sequence[TokenRows] = ()

    def updates_of(self, step: int) -> Sequence[TokenRows]:
        """The rows of each update."""
        return self.given


def trl_config(folder: Any, **settings: Any) -> GRPOConfig:
    """Plain gradient descent on a CPU."""
    values = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "num_generations": 4,
        "max_completion_length": MOST, "temperature": TEMPERATURE, "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "report_to": "none", "optim": "sgd", "max_steps": 1,
        "learning_rate": 0.5, "max_grad_norm": 1e9, "save_strategy": "no", "disable_tqdm": True,
        "logging_steps": 1,
    }  # fmt: skip
    return GRPOConfig(**{**values, **settings})


def make_theirs(folder: Any, model: Any = None, **settings: Any) -> Any:
    """TRL's own trainer, ready to be asked for a loss."""
    beta = settings.pop("beta", 0.0)
    trainer = GRPOTrainer(
        model=tiny_model() if model is None else model,
        processing_class=textcraft_tokenizer(),
        args=trl_config(folder, **settings),
        train_dataset=Dataset.from_dict({"prompt": ["0", "1"]}),
        reward_funcs=[trajectory_reward],
    )
    # A reference model is loaded from the hub; here its log-probabilities are given.
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def make_ours(
    folder: Any,
    loss: LossSettings = DEFAULT,
    model: Any = None,
    *,
    max_tokens: int = 0,
    shared_rows: bool | None = None,
    beta: float = 0.0,
    entropy_bonus: float = 0.0,
    **settings: Any,
) -> Bare:
    """A trainer with our update."""
    trainer = Bare(
        model=tiny_model() if model is None else model,
        processing_class=textcraft_tokenizer(),
        args=trl_config(folder, **settings),
        train_dataset=UNUSED.select_columns(["prompt"]),
        reward_funcs=[trajectory_reward],
    )
    trainer.start_updates(
        RLLoss(loss, beta, entropy_bonus),
        max_tokens=max_tokens,
        temperature=TEMPERATURE,
        shared_rows=shared_rows,
    )
    trainer.model.train()
    return trainer


def rows_to_train(
    inputs: dict[str, torch.Tensor],
    loss: LossSettings = DEFAULT,
    *,
    episodes: int = 0,
    tokens: int = 0,
    sizes: torch.Tensor | None = None,
) -> TokenRows:
    """TRL's batch as the rows of one update; by default it is the whole update."""
    prompts, completions = inputs["prompt_mask"].bool(), inputs["completion_mask"].bool()
    trained = (inputs["completion_mask"] * inputs["tool_mask"]).bool()  # (B, T)
    starts, ends = prompts.sum(1), completions.sum(1)
    ids, masks = [], []
    for row in range(len(prompts)):
        prompt, completion = prompts[row], completions[row]
        ids.append([*inputs["prompt_ids"][row][prompt], *inputs["completion_ids"][row][completion]])
        masks.append([*[0] * int(prompt.sum()), *trained[row][completion].int().tolist()])
    rows = TokenRows.from_lists(ids, masks, torch.device("cpu"))
    weights = token_weights(
        loss,
        trained.sum(1) if sizes is None else sizes,
        episodes=episodes or len(ids),
        tokens=tokens or int(trained.sum()),
        most=MOST,
    )

    def placed(name: str) -> torch.Tensor:
        values = torch.zeros(rows.ids.shape, dtype=inputs[name].dtype)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            values[row, start : start + end] = inputs[name][row, :end]
        return values

    return replace(
        rows,
        weights=weights[:, None] * rows.trained,
        advantages=placed("advantages"),
        old=placed("old_per_token_logps"),
        reference=placed("ref_per_token_logps"),
        tokens=tokens or int(trained.sum()),
    )


def of_theirs(
    trainer: Any, inputs: dict[str, torch.Tensor]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of a step by TRL's trainer."""
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    trainer.accelerator.backward(loss)
    return loss.item(), gradients_of(trainer.model)


def of_ours(trainer: Bare, *updates: TokenRows) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of a step by our update."""
    trainer.model.zero_grad()
    loss, _ = trainer.update.run(trainer.model, updates)
    return loss.item(), gradients_of(trainer.model)


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """Copies of the gradients."""
    named = model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def assert_same_gradients(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    """Equal but for `rtol` of the largest entry of each weight, and float32's noise."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(found[name], gradient, atol=rtol * scale + 2e-7, rtol=0), name
