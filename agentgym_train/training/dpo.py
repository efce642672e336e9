"""DPO over pairs of episodes, with the loss masks of RL.

The log-ratio of an episode is the sum over the policy's tokens in all turns; observations are
context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trl import DPOConfig as TrlDPOConfig
from trl import DPOTrainer

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import BrokenLine
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.config.learn import DPOConfig
from agentgym_train.data.datasets import check_turn_lengths, read_demonstrations
from agentgym_train.data.formats import describe_broken
from agentgym_train.data.pairs import Pair, make_pairs
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.models.adapters import adapters_for, check_reference
from agentgym_train.training.loss import PairLoss
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.sft import check_trl_arguments, own_share
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer, row_order, shared_values
from agentgym_train.training.update import Reference


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
        check_turn_lengths(((e, episode_tokenizer.rows(e)) for e in chosen), config.turn_max_tokens)
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


class AgentDPOTrainer(UpdatingTrainer, DPOTrainer):
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
        self.rows = rows
        self.order = row_order(len(rows), steps * config.pairs_per_step, config.seed)
        self.pairs_per_step = config.pairs_per_step
        self.reference = Reference(model, config.lora)
        super().__init__(
            model=model,
            # TRL prepares it; without it TRL would load another.
            ref_model=self.reference.model,
            processing_class=tokenizer,
            train_dataset=UNUSED.select_columns(["prompt", "chosen", "rejected"]),
            args=dpo_config(config, steps, checkpoints),
            peft_config=adapters_for(model, tokenizer, config.lora),
        )
        self.start_updates(
            PairLoss(config.beta, config.pairs_per_step),
            max_tokens=config.max_tokens_per_microbatch,
        )
        self.reference.prepare(self, self.ref_model)

    def updates_of(self, step: int) -> list[TokenRows]:
        """The step's pairs of this process, as rows: chosen, rejected, chosen, ..."""
        pairs = [self.rows[n] for n in own_share(self, self.order, self.pairs_per_step, step)]
        sides = [(row, side) for row in pairs for side in ("chosen", "rejected")]
        batch = TokenRows.from_lists(
            [[*row["prompt_ids"], *row[f"{side}_ids"]] for row, side in sides],
            [[*[0] * len(row["prompt_ids"]), *row[f"{side}_mask"]] for row, side in sides],
            self.accelerator.device,
            unit=2,
        )
        return [replace(batch, reference=self.reference.logprobs(self.update, batch))]


def dpo_config(config: DPOConfig, steps: int, checkpoints: Path) -> TrlDPOConfig:
    """TRL's config of a run; `config.trainer_args` override it."""
    values = {
        **shared_values(config, config.pairs_per_step, steps, checkpoints),
        "beta": config.beta,
        "max_length": None,
        "trust_remote_code": False,
    }
    return TrlDPOConfig(**{**values, **config.trl_args})


def check_dpo(config: DPOConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    check_trl_arguments(config, TrlDPOConfig)
    check_reference(config.lora, "DPO")
