"""Behaviour cloning on TRL's SFTTrainer, with the loss masks that RL uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.chat import Chat
from agentgym_train.engines.protocol import Generation
from agentgym_train.episode import EpisodeTokens

IGNORED = -100
"""The label of a token without loss, by transformers' convention."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """How a policy is fitted to demonstrations."""

    learning_rate: float = 2e-3
    rows_per_step: int = 16
    epochs: float = 1.0
    warmup_steps: int = 50
    seed: int = 0
    bf16: bool = False
    in_order: bool = False
    """Take the rows as they come (a curriculum) instead of shuffling them."""


def _every_turn(_: Turn) -> bool:
    return True


def demonstration_tokens(
    trajectory: Trajectory, chat: Chat, imitates: Callable[[Turn], bool] = _every_turn
) -> EpisodeTokens:
    """The ids and mask that the episode would have if a policy had sampled its responses.

    Turns that `imitates` turns down are context: they stay in place, without loss.
    """
    tokens = EpisodeTokens(chat.start(trajectory.observation))
    for number, turn in enumerate(trajectory.turns, 1):
        ids = chat.response_ids(turn.response)
        tokens.add_response(Generation(ids, [0.0] * len(ids), "stop", version=-1))
        if not imitates(turn):
            tokens.loss_mask[-len(ids) :] = [0] * len(ids)
        if number < len(trajectory.turns):
            tokens.add_observation(chat.delta(ids, turn.observation))
    return tokens


def training_row(
    trajectory: Trajectory, chat: Chat, imitates: Callable[[Turn], bool] = _every_turn
) -> dict[str, list[int]]:
    """`input_ids` (T,) and `labels` (T,): the id on the policy's tokens, -100 elsewhere."""
    tokens = demonstration_tokens(trajectory, chat, imitates)
    labels = [
        token if sampled else IGNORED
        for token, sampled in zip(tokens.completion_ids, tokens.loss_mask, strict=True)
    ]
    return {"input_ids": tokens.ids, "labels": [IGNORED] * len(tokens.prompt_ids) + labels}


def imitate(
    model: Any, tokenizer: Any, rows: Iterable[dict[str, list[int]]], settings: Imitation, out: Path
) -> dict[str, float]:
    """Fit `model` to the rows in place and save it to `out`; the trainer's closing metrics."""
    dataset = Dataset.from_list(list(rows))
    if len(dataset) == 0:
        raise BadRequest("there is no demonstration to learn from; collect some first")
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=dataset,
        args=SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=settings.rows_per_step,
            num_train_epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=settings.warmup_steps,
            adam_beta2=0.98,
            weight_decay=0.01,
            max_grad_norm=1.0,
            seed=settings.seed,
            bf16=settings.bf16,
            use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False,
            train_sampling_strategy="sequential" if settings.in_order else "random",
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            logging_steps=25,
            save_strategy="no",
            report_to="none",
        ),
    )
    metrics: dict[str, float] = trainer.train().metrics
    trainer.save_model(str(out))
    return metrics
