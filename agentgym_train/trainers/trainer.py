"""RL: TRL's GRPOTrainer whose completions are whole episodes of an environment.

Two of TRL's seams are used: `_generate_and_score_completions`, before which the episodes are
played and whose advantages are replaced by ours of shape (R, T) for R rows of tokens, and
`rollout_func`, which hands the episodes over. Losses, optimizer, distribution, logging and
checkpoints are TRL's, untouched; how a step's episodes are computed is `update`'s.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from accelerate import PartialState
from datasets import Dataset
from rich.progress import Progress
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer

from agentgym_env.errors import AgentGymError, ConfigError, teaches
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm, make_algorithm
from agentgym_train.config.methods import RLConfig
from agentgym_train.config.values import check_keys, trained_outcomes
from agentgym_train.data.token_store import PIECES, StoredTokens, pack, write_pieces
from agentgym_train.engines.hf import HFEngine
from agentgym_train.models.distributed import WholeModel, gathered
from agentgym_train.models.loading import lora_config
from agentgym_train.rollout.horizon import Horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutBar, RolloutRunner
from agentgym_train.trainers.advantages import ImportanceSampling, StepAdvantages
from agentgym_train.trainers.batch import Rows, rollout_output
from agentgym_train.trainers.callbacks import (
    HorizonState,
    MakeTrainer,
    Method,
    Say,
    Shown,
    StepMetrics,
)
from agentgym_train.trainers.run_summary import lost_episodes, next_commands, plot, summary
from agentgym_train.trainers.sampler import AsyncRollouts, StepSampler
from agentgym_train.trainers.update import PackedUpdate, ragged_gather


class TooManyLost(AgentGymError, RuntimeError):
    """More of a step's episodes were lost than `max_lost_rate` allows."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """What is known of a step's tokens, which stay in the process that sampled them."""

    sampled: int
    """Tokens that were sampled, of the episodes that teach."""
    behind: int
    """Summed over those tokens: how many updates older than the step the weights were."""
    dropped: int
    """Episodes that were begun and dropped unfinished."""
    seconds: float
    """How long the step's episodes took, or were waited for."""

    @classmethod
    def of(
        cls, trajectories: Sequence[Trajectory], step: int, dropped: int, seconds: float
    ) -> StepTokens:
        """Those of one process."""
        rows = [row for t in trajectories if teaches(t.outcome) for row in t.rows]
        versions = [
            v for row in rows for v, m in zip(row.versions, row.loss_mask, strict=True) if m
        ]
        return cls(len(versions), sum(step - v for v in versions), dropped, seconds)

    @classmethod
    def of_all(cls, shares: Sequence[StepTokens]) -> StepTokens:
        """Those of all processes."""
        return cls(
            sum(share.sampled for share in shares),
            sum(share.behind for share in shares),
            sum(share.dropped for share in shares),
            max(share.seconds for share in shares),
        )


def step_metrics(
    trajectories: Sequence[Trajectory], horizon: int, tokens: StepTokens
) -> dict[str, float]:
    """What is kept of a step's episodes of every process; means are over those not lost."""
    kept = [t for t in trajectories if teaches(t.outcome)]
    figures = {
        "success": _mean([t.success for t in kept]),
        "horizon": horizon,
        "turns": _mean([len(t.turns) for t in kept]),
        "env_steps": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": tokens.sampled,
        "staleness": tokens.behind / max(1, tokens.sampled),
        "dropped": tokens.dropped,
        "rollout_seconds": tokens.seconds,
        "lost": len(trajectories) - len(kept),
        "retried": sum(t.attempts > 1 for t in trajectories),
    }
    for outcome, count in Counter(t.outcome for t in trajectories).items():
        figures[f"outcome/{outcome}"] = count / len(trajectories)
    return {name: float(value) for name, value in figures.items()}


def check_lost(trajectories: Sequence[Trajectory], step: int, max_lost_rate: float) -> None:
    """Raise `TooManyLost` when the share of a step's episodes that were lost is above the rate."""
    lost = [t for t in trajectories if not teaches(t.outcome)]
    share = len(lost) / len(trajectories)
    if share <= max_lost_rate:
        return
    kinds = Counter(t.outcome for t in lost)
    retried = [t for t in trajectories if t.attempts > 1]
    attempts = sum(t.attempts - 1 for t in retried)
    which = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    raise TooManyLost(
        f"{len(lost)} of {len(trajectories)} episodes were lost at step {step} ({which}): a share "
        f"of {share:.2f}, above max_lost_rate {max_lost_rate:g}. {len(retried)} were tried again, "
        f"{attempts} times in all; the {len(lost)} that stayed lost are left out of the loss and "
        f"of their groups' baselines. The first was lost to: {lost[0].error}. Put that right, then "
        "go on from the last checkpoint with `agentgym train --resume RUN`"
    )


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The episode as text alone, which is what a long run can afford to keep of every step."""
    return msgspec.structs.replace(trajectory, tokens=None, further_rows=[])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


KeepTokens = Literal["none", "sample", "all"]


class TokenWriter:
    """Writes the advantages of every episode, and the tokens of those that are chosen.

    `sample` chooses the first group of each step, so that its episodes can be compared; `all`
    chooses all; with `none` nothing is written.
    """

    def __init__(self, store: RunStore, keep: KeepTokens, group_size: int, tokenizer: Any) -> None:
        self._store = store
        self._keep = keep
        self._group_size = group_size
        self._is_main = PartialState().is_main_process
        folder = store.path / "tokens"
        if keep != "none" and self._is_main and not (folder / PIECES).is_file():
            # With the tokenizer's texts beside them nobody needs it to read the tokens.
            write_pieces(folder, pieces_of(tokenizer))

    def keep(
        self,
        name: str,
        trajectories: Sequence[Trajectory],
        advantages: Tensor,  # (B, V)
        starts: Sequence[int],
    ) -> None:
        """Keep a step's, whose episodes of all processes begin at `starts` in their file.

        A collective; `starts` are the main process's.
        """
        if self._keep == "none":
            return
        own = []
        for number, (trajectory, given) in enumerate(
            zip(trajectories, advantages.tolist(), strict=True)
        ):
            length = sum(len(row.completion_ids) for row in trajectory.rows)
            # A lost episode has no advantages; its row may be narrower than its tokens.
            values = (given + [0.0] * length)[:length]
            chosen = self._keep == "all" or (self._is_main and number < self._group_size)
            packed = pack(trajectory.rows, values) if chosen and trajectory.rows else b""
            own.append((_turn_means(trajectory, values), packed))
        shares = gathered(own)
        if self._is_main:
            everyone = [kept for share in shares for kept in share]
            self._store.append_tokens(
                name,
                (
                    StoredTokens(start, turns, packed)
                    for start, (turns, packed) in zip(starts, everyone, strict=True)
                ),
            )


def pieces_of(tokenizer: Any) -> list[str]:
    """The text that each id adds to a sentence; half a character is the replacement mark."""
    before = tokenizer.encode("a", add_special_tokens=False)
    held = tokenizer.decode(before)
    # After another token, since some tokenizers drop the space that begins a sentence.
    texts = tokenizer.batch_decode(
        [[*before, number] for number in range(len(tokenizer))],
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    return [str(text).removeprefix(held) for text in texts]


def _turn_means(trajectory: Trajectory, values: Sequence[float]) -> list[float]:
    means, offset = [], 0
    for row in trajectory.rows:
        begin = 0
        for end in row.turn_ends:
            span = [values[offset + i] for i in range(begin, end) if row.loss_mask[i]]
            means.append(float(f"{sum(span) / len(span):.6g}") if span else 0.0)
            begin = end
        offset += len(row.completion_ids)
    return means


class RLTrainer(PackedUpdate):
    """Trains a policy on the tasks of one split.

    A group is `num_generations` episodes of one task and environment seed, which depend only on
    the run's seed and the step: a resumed run plays the same episodes. Each process plays whole
    groups, and does not wait for others while it does (see `distributed`).
    """

    def __init__(
        self,
        policy: Policy,
        config: RLConfig,
        rollout_runner: RolloutRunner,
        store: RunStore,
        *,
        algorithm: Algorithm | None = None,
        horizon: Horizon | None = None,
    ) -> None:
        """`algorithm` and `horizon` replace those that the config names."""
        self.policy = policy
        self.config = config
        self.rollout_runner = rollout_runner
        self.store = store
        self.horizon = horizon or config.make_horizon()
        self.algorithm = algorithm or make_algorithm(config.algorithm, config.algorithm_args)
        self.max_tokens_per_microbatch = config.max_tokens_per_microbatch
        self._whole = WholeModel()
        self._trained_outcomes = trained_outcomes(config.train_outcomes)
        self._rows = Rows([], [], [], 0)
        self._trajectories: list[Trajectory] = []
        self._starts: list[int] = []
        tasks = rollout_runner.tasks.split(config.split)
        with warnings.catch_warnings():
            # TRL calls its rollout hook experimental; the pinned range of versions answers that.
            warnings.filterwarnings("ignore", message=".*'rollout_func'.*experimental")
            super().__init__(
                model=policy.model,
                processing_class=policy.tokenizer,
                args=grpo_config(config, self.algorithm, store),
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks), "task": list(tasks)}),
                reward_funcs=[trajectory_reward],
                rollout_func=self._hand_over,
                peft_config=lora_config(config.lora),
            )
        self._add_parts(config)

    def _add_parts(self, config: RLConfig) -> None:
        """What plays a step's episodes and what turns them into advantages."""
        policy = self.policy
        self.episodes = StepSampler(
            config,
            self.rollout_runner,
            policy.actors,
            instruction=policy.instruction,
            updates_per_rollout=self.num_iterations,
            rank=PartialState().process_index,
            processes=PartialState().num_processes,
        )
        self.async_rollouts = AsyncRollouts()
        if config.async_steps and isinstance(policy.engine, HFEngine):
            policy.engine.keep_own_weights()
        # The weight of the divergence in the loss; the algorithm's own is in its rewards.
        self.beta = config.beta
        self.step_advantages = StepAdvantages(
            self,
            self.algorithm,
            group_size=config.num_generations,
            trained=self._trained_outcomes,
            dummy_id=self._dummy_row,
            correction=ImportanceSampling(
                config.importance_sampling_correction, config.importance_sampling_cap
            ),
            engine_is_exact=policy.engine.is_exact and not config.samples_stale,
        )
        self.token_writer = TokenWriter(
            self.store, config.keep_tokens, config.num_generations, policy.tokenizer
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # TRL's sampler draws other tasks after a resumption, so its rows are only counted: a prompt
        # a row of tokens, of which an episode whose context was cut has several.
        self._play()
        inputs = [dict(inputs[i % len(inputs)]) for i in range(len(self._rows.tokens))]
        # TRL scores the reference where beta says that there is one.
        self.beta = self.args.beta
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.beta = self.config.beta
        output["advantages"] = self.step_advantages.advantages(  # (R, T)
            output, self._trajectories, self._rows
        )
        self.token_writer.keep(
            "train", self._trajectories, self.step_advantages.per_token, self._starts
        )
        for name, value in self.step_advantages.figures.items():
            self._metrics["train"][name].append(value)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        # Passes, and so their rows, differ from process to process.
        with ragged_gather(self.accelerator):
            return super()._compute_loss(model, inputs)

    def training_step(self, *arguments: Any, **options: Any) -> Tensor:
        """TRL's; while the critic warms up the policy has no gradient, and stays as it is."""
        loss: Tensor = super().training_step(*arguments, **options)
        warmup = getattr(self.algorithm, "critic_warmup", 0)
        if self.state.global_step < warmup:
            # An optimizer passes over what has no gradient: no decay, no momentum.
            self.model.zero_grad(set_to_none=True)
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Ours first: a checkpoint counts as whole when TRL's own files are there.
        folder = Path(self._get_output_dir(trial=trial))
        folder = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.step_advantages.critic is not None:
            self.step_advantages.critic.save(folder)
        if self.config.async_steps:
            self.async_rollouts.save(folder, self.accelerator.process_index)
            gathered(None)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.step_advantages.critic is not None:
            self.step_advantages.critic.load(Path(checkpoint))
        if checkpoint is not None and self.config.async_steps:
            self.async_rollouts.load(Path(checkpoint), self.accelerator.process_index)

    def close(self) -> None:
        """Give up the episodes that are played ahead, if training ended before it was through."""
        self.async_rollouts.close(self.rollout_runner.stop)

    @property
    def _dummy_row(self) -> int:
        return int(self.policy.tokenizer.pad_token_id)

    def _play(self) -> None:
        """Have the step's episodes played, and lay out their rows."""
        step = self.state.global_step
        began = time.monotonic()
        played = self.async_rollouts.take(step)
        self.rollout_runner.run(self.policy.engine.update_weights(self.gathered_model(), step))
        horizon = self.horizon(step)
        if played is None:
            played = self.episodes.play(step, horizon, version=step)
        if not self.config.async_steps:
            self.rollout_runner.run(self.policy.engine.sleep())
        self._trajectories = played
        rows = Rows.of(played, self._dummy_row, self._trained_outcomes)
        most = self._record(played, horizon, time.monotonic() - began, rows)
        self._rows = rows if most == rows.episodes else rows.filled(most, self._dummy_row)
        further = step + self.num_iterations
        if self.config.async_steps and further < self.args.max_steps:
            # From here to the next rollout nothing else may use the collector or the engine.
            longest = self.horizon(further)
            self.async_rollouts.begin(
                further, lambda: self.episodes.play(further, longest, version=step)
            )

    def _hand_over(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """TRL's rollout hook: what was played."""
        output = rollout_output(
            self._trajectories, self._dummy_row, self._trained_outcomes, self._rows
        )
        self.score_only(output["env_mask"])
        return output

    def gathered_model(self) -> Any:
        """The model as one process may call it alone. A collective."""
        return self._whole.of(self.accelerator.unwrap_model(self.model))

    def _record(
        self, trajectories: list[Trajectory], horizon: int, seconds: float, rows: Rows
    ) -> int:
        """Keep the step's episodes and figures; stop the run when too many were lost.

        The figures are of all processes' episodes, so that all of them decide alike. Gives the most
        rows that a process has, which all of them need.
        """
        light = [without_tokens(t) for t in trajectories]
        step = self.state.global_step
        own = StepTokens.of(trajectories, step, self.episodes.dropped, seconds)
        shares = gathered((light, own, len(rows.tokens)))
        everyone = [t for share, _, _ in shares for t in share]
        figures = step_metrics(everyone, horizon, StepTokens.of_all([s for _, s, _ in shares]))
        for name, value in figures.items():
            self._metrics["train"][name].append(value)
        if self.accelerator.is_main_process:
            self._starts = self.store.append_trajectories("train", everyone)
        check_lost(everyone, step, self.config.max_lost_rate)
        self.horizon.observe(step, figures["success"])
        return max(count for _, _, count in shares)


def trajectory_reward(
    completions: list[Any], trajectory_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: what the world paid over the episode; None for a lost one."""
    return trajectory_reward


def check_trl(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a value that TRL's config does not have."""
    check_keys(" in trainer_args", values, (f.name for f in fields(GRPOConfig)))


def grpo_config(config: RLConfig, algorithm: Algorithm, store: RunStore) -> GRPOConfig:
    """TRL's own config for a run; `config.trainer_args` has the last word."""
    on_gpu = torch.cuda.is_available()
    processes = PartialState().num_processes
    config.check_processes(processes)
    values: dict[str, Any] = {
        "output_dir": str(store.checkpoints),
        "max_steps": config.steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": config.warmup_steps,
        # The update cuts them into passes itself.
        "per_device_train_batch_size": config.episodes_per_step // processes,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        # Above 0 keeps a reference, which an algorithm may want for its rewards.
        "beta": config.beta or getattr(algorithm, "kl", 0.0),
        **asdict(algorithm.loss),
        "seed": config.seed,
        "use_cpu": not on_gpu,
        "bf16": config.computes_in(on_gpu=on_gpu) == "bfloat16",
        "gradient_checkpointing": on_gpu,
        # An engine samples without it: with it the trainer would score another policy.
        "disable_dropout": True,
        "logging_steps": 1,
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "disable_tqdm": True,
        # Every weight takes part in every forward pass; to look for others costs a pass.
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "dataloader_num_workers": 0,
        "trust_remote_code": False,
    }
    return GRPOConfig(**{**values, **config.trainer_args})


def _check(config: RLConfig) -> None:
    make_algorithm(config.algorithm, config.algorithm_args)
    check_trl(config.trainer_args)


def _prepare(
    policy: Policy, config: RLConfig, rollout_runner: RolloutRunner | None, say: Say
) -> MakeTrainer:
    if rollout_runner is None:
        raise ConfigError("RL plays an environment; name one with env")
    return partial(RLTrainer, policy, config, rollout_runner)


def _callbacks(trainer: Any, checkpoint: str | None, progress: Progress) -> list[TrainerCallback]:
    if trainer.is_world_process_zero():
        trainer.episodes.bar = RolloutBar(progress, trainer.rollout_runner.concurrency_limits)
    return [HorizonState(trainer.horizon, checkpoint, progress.console.print)]


def _text(row: StepMetrics) -> str:
    return (
        f"reward {row['reward']:.2f}  success {row['success']:.2f}  "
        f"horizon {row['horizon']:.0f}  turns {row['turns']:.1f}"
    )


METHOD = Method(
    check=_check,
    prepare=_prepare,
    callbacks=_callbacks,
    shown=Shown(
        named_by="success",
        # TRL's figures about the generation, which is not TRL's here.
        hidden=("completions/", "rewards/", "sampling/", "tools/", "num_tokens", "step_time"),
        text=_text,
    ),
    summary=summary,
    plot=lambda config, store: plot(store, f"{config.env}, {config.algorithm}, seed {config.seed}"),
    next_commands=next_commands,
    last_words=lost_episodes,
)
