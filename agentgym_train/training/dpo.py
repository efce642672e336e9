"""DPO: TRL's DPOTrainer over pairs of episodes, with the loss masks of RL.

The log-ratio of an episode is the sum over the policy's tokens in all turns; observations are
context. TRL would train on everything after the prompt, so the rows are ids with masks, and the
collator is ours. Losses, reference model and metrics are TRL's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import DPOConfig as TrlDPOConfig
from trl import DPOTrainer

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.config.learn import DPOConfig
from agentgym_train.data.datasets import check_turns, describe_broken, read_demonstrations
from agentgym_train.data.pairs import Pair, make_pairs
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.models.adapters import adapters_for, check_reference, finish_adapters
from agentgym_train.models.distributed import GatheredModel
from agentgym_train.training.finite import FiniteSteps
from agentgym_train.training.microbatches import (
    check_router_loss,
    loss_in_microbatches,
    make_microbatches,
    rows_of,
)
from agentgym_train.training.sft import check_libraries
from agentgym_train.training.task_order import row_order
from agentgym_train.training.trl_values import shared_values


@dataclass(frozen=True, slots=True)
class DPODataset:
    """The pairs of DPO, and where they come from."""

    rows: list[dict[str, list[int]]]
    """`prompt_ids` (P,), then `chosen_ids` and `chosen_mask` (C,), and the same of `rejected`."""
    episodes: Sequence[Trajectory]
    """Those that pairs were looked for in."""
    broken: list[BrokenLine]
    too_long: int
    """Pairs with an episode above `max_tokens`; they are left out, never truncated."""
    max_tokens: int

    @classmethod
    def read(cls, config: DPOConfig, tokenizer: Any) -> DPODataset:
        """Read and tokenize the data of a config."""
        filtered, reading = read_demonstrations(config.data, pairs=True)
        episode_tokenizer = EpisodeTokenizer(tokenizer, config, instructions=config.instructions)
        pairs = make_pairs(filtered.selected, config.pair_rules)
        rows = [pair_row(pair, episode_tokenizer) for pair in pairs]
        chosen = {id(pair.chosen): pair.chosen for pair in pairs}.values()
        check_turns(((e, episode_tokenizer.rows(e)) for e in chosen), config.turn_max_tokens)
        fitting = [row for row in rows if _longest(row) <= config.max_tokens]
        dataset = cls(
            rows=fitting,
            episodes=filtered.selected,
            broken=reading.broken,
            too_long=len(rows) - len(fitting),
            max_tokens=config.max_tokens,
        )
        check_pairs(fitting, " ".join(dataset.sentences()))
        return dataset

    def sentences(self) -> list[str]:
        """What is shown about the data."""
        shown = [f"Learning from {len(self.rows)} pairs of {len(self.episodes)} episodes."]
        if self.too_long:
            shown.append(
                f"{self.too_long} pairs are longer than max_tokens {self.max_tokens} and are left "
                "out."
            )
        return [*shown, *describe_broken(self.broken)]


def check_pairs(rows: Sequence[Any], details: str = "") -> None:
    """Raise `ConfigError` if there is nothing to learn from."""
    if not rows:
        raise ConfigError(
            "there is no pair to learn from: no two episodes of the same task and seed differ in "
            "quality. Name data in which tasks were played several times, or set shorter or "
            f"reward_gap. {details}".strip()
        )


def pair_row(pair: Pair, episode_tokenizer: EpisodeTokenizer) -> dict[str, list[int]]:
    """Both episodes of a pair, after their common prompt."""
    chosen = _row_of(pair.chosen, episode_tokenizer)
    rejected = _row_of(pair.rejected, episode_tokenizer)
    if chosen.prompt_ids != rejected.prompt_ids:
        raise ConfigError(
            f"two episodes of task {pair.chosen.task!r} are a pair and have different prompts"
        )
    return {
        "prompt_ids": chosen.prompt_ids,
        "chosen_ids": chosen.completion_ids,
        "chosen_mask": chosen.loss_mask,
        "rejected_ids": rejected.completion_ids,
        "rejected_mask": rejected.loss_mask,
    }


def _row_of(episode: Trajectory, episode_tokenizer: EpisodeTokenizer) -> Tokens:
    row, *further = episode_tokenizer.rows(episode)
    if further:
        raise ConfigError(
            "DPO compares whole episodes, and this agent divides their context into several rows; "
            "use an agent that keeps the whole context, such as plain"
        )
    return row


def _longest(row: dict[str, list[int]]) -> int:
    return len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"]))


Row = Mapping[str, Any]
"""See `DPODataset`."""

_COUPLE_PAIRS = frozenset({"aot", "aot_unpaired", "sft"})
"""TRL's losses in which a pair's loss depends on the other pairs of the batch."""


class AgentDPOTrainer(FiniteSteps, DPOTrainer):
    """Trains a policy by DPO. The pairs of a step depend on the seed and the step alone."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rows: Sequence[Row],
        config: DPOConfig,
        checkpoints: Path,
    ) -> None:
        check_pairs(rows)
        steps = config.steps_of(len(rows))
        order = row_order(len(rows), steps * config.pairs_per_step, config.seed)
        args = dpo_config(config, steps, checkpoints)
        self._max_tokens = config.max_tokens_per_microbatch
        super().__init__(
            model=model,
            # With adapters, the reference is the model without them.
            ref_model=copy.deepcopy(model) if config.lora is None else None,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([dict(row) for row in rows]).select(order),
            args=args,
            data_collator=PairCollator(tokenizer.pad_token_id),
            peft_config=adapters_for(model, tokenizer, config.lora),
        )
        finish_adapters(self)
        check_router_loss(self)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        # The rows are token ids already.
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # The dataset is in the order of the steps already.
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    def _compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Any:
        """TRL's loss of all pairs; all micro-batches but the last have run their backward pass."""
        if return_outputs or self.aux_loss_enabled or _COUPLE_PAIRS & set(self.loss_types):
            return super()._compute_loss(model, inputs, return_outputs)
        lengths = inputs["attention_mask"].sum(1)  # (2 P,)
        longest = torch.stack(lengths.chunk(2)).amax(0)  # (P,)
        count = len(longest)
        microbatches = make_microbatches(
            self.accelerator,
            self.model,
            (2 * longest).tolist(),
            self._max_tokens,
            shared_rows=False,
        )
        trl_loss = super()._compute_loss

        def loss_of(pairs: list[int]) -> Tensor:
            rows = [*pairs, *(pair + count for pair in pairs)]
            part = _narrowed(rows_of(inputs, rows), int(longest[pairs].max()))
            return trl_loss(model, part, False) * (len(pairs) / count)

        metrics, weights = self._metrics["train"], [len(pairs) for pairs in microbatches]
        return loss_in_microbatches(
            self.accelerator, model, microbatches, loss_of, metrics, weights
        )

    def gathered_model(self) -> Any:
        """The model in a form that one process can call alone. A collective."""
        return GatheredModel().of(self.accelerator.unwrap_model(self.model))

    def close(self) -> None:
        """Nothing to release."""


class PairCollator:
    """Pads pairs as TRL does: the chosen rows, then the rejected ones; the mask is the policy's."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, examples: Sequence[Row]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `completion_mask`, (2 P, W) each."""
        ids: list[Tensor] = []
        masks: list[Tensor] = []
        for side in ("chosen", "rejected"):
            for row in examples:
                prompt = row["prompt_ids"]
                ids.append(torch.tensor([*prompt, *row[f"{side}_ids"]]))
                masks.append(torch.tensor([*[0] * len(prompt), *row[f"{side}_mask"]]))
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self._pad_id),
            "attention_mask": pad_sequence([torch.ones_like(i) for i in ids], batch_first=True),
            "completion_mask": pad_sequence(masks, batch_first=True),
        }


def dpo_config(config: DPOConfig, steps: int, checkpoints: Path) -> TrlDPOConfig:
    """TRL's config of a run; `config.trainer_args` override it."""
    values = {
        **shared_values(config, config.pairs_per_step, steps, checkpoints),
        "beta": config.beta,
        # The columns of the rows are ours.
        "remove_unused_columns": False,
        "max_length": None,
        "trust_remote_code": False,
    }
    return TrlDPOConfig(**{**values, **config.trl_args})


def _narrowed(inputs: dict[str, Any], width: int) -> dict[str, Any]:
    """The first columns of every tensor with columns, without the padding of longer rows."""
    return {
        name: value[:, :width] if isinstance(value, Tensor) and value.dim() > 1 else value
        for name, value in inputs.items()
    }


def check_dpo(config: DPOConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    check_libraries(config, TrlDPOConfig)
    check_reference(config.lora, "DPO")
