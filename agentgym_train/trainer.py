"""AgentTrainer: TRL's GRPOTrainer whose completions are whole episodes of an environment.

Two of TRL's seams are used: `_generate_and_score_completions`, before which the episodes are
played and whose advantages are replaced by ours of shape (R, T) for R rows of tokens, and
`rollout_func`, which hands the episodes over. Losses, optimizer, distribution, logging and
checkpoints are TRL's, untouched; how a step's episodes are computed is `update`'s.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer

from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.ahead import Ahead
from agentgym_train.algorithms import Algorithm, make_algorithm
from agentgym_train.batch import rollout_output
from agentgym_train.collector import Collector
from agentgym_train.config import TrainConfig
from agentgym_train.correction import Correction
from agentgym_train.credit import Credit
from agentgym_train.engines.hf import HFEngine
from agentgym_train.lora import lora_config
from agentgym_train.outcomes import trained_outcomes
from agentgym_train.overrides import refuse_unknown
from agentgym_train.policy import Policy
from agentgym_train.ragged_gather import ragged_gather
from agentgym_train.ranks import gathered
from agentgym_train.rows import Rows
from agentgym_train.step_episodes import StepEpisodes
from agentgym_train.step_figures import StepTokens, check_lost, step_figures, without_tokens
from agentgym_train.token_keeper import TokenKeeper
from agentgym_train.update import PackedUpdate
from agentgym_train.whole_model import WholeModel


class AgentTrainer(PackedUpdate):
    """Trains a policy on the tasks of one split.

    A group is `group_size` episodes of one task and one world seed, which depend on the run's seed
    and the step alone: a resumed run plays what the unbroken one would have played. Of several
    processes each plays whole groups, and waits for no other while it does (see `ranks`).
    """

    def __init__(
        self, policy: Policy, config: TrainConfig, collector: Collector, store: RunStore
    ) -> None:
        self.policy = policy
        self.config = config
        self.collector = collector
        self.store = store
        self.horizon = config.make_horizon()
        self.algorithm = make_algorithm(config.algorithm, config.algorithm_args)
        self.tokens_per_forward = config.tokens_per_forward
        self._whole = WholeModel()
        self._trained_outcomes = trained_outcomes(config.train_outcomes)
        self._rows = Rows([], [], [], 0)
        self._trajectories: list[Trajectory] = []
        self._starts: list[int] = []
        tasks = collector.tasks.split(config.split)
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
        self.episodes = StepEpisodes(
            config,
            collector,
            lambda: policy.players(config.temperature),
            instruction=policy.instruction,
            updates_per_rollout=self.num_iterations,
            rank=PartialState().process_index,
            processes=PartialState().num_processes,
        )
        self.ahead = Ahead()
        if config.steps_ahead and isinstance(policy.engine, HFEngine):
            policy.engine.keep_own_weights()
        # The weight of the divergence in the loss; the algorithm's own is in its rewards.
        self.beta = config.kl
        self.credit = Credit(
            self,
            self.algorithm,
            group_size=config.group_size,
            trained=self._trained_outcomes,
            filler_id=self._filler,
            correction=Correction(config.engine_correction, config.engine_correction_max),
            engine_is_exact=policy.engine.is_exact and not config.samples_stale,
        )
        self.keeper = TokenKeeper(store, config.keep_tokens, config.group_size, policy.tokenizer)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # TRL's sampler draws other tasks after a resumption, so its rows are only counted: a prompt
        # a row of tokens, of which an episode whose context was cut has several.
        self._play()
        inputs = [dict(inputs[i % len(inputs)]) for i in range(len(self._rows.tokens))]
        # TRL scores the reference where beta says that there is one.
        self.beta = self.args.beta
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.beta = self.config.kl
        output["advantages"] = self.credit.advantages(  # (R, T)
            output, self._trajectories, self._rows
        )
        self.keeper.keep("train", self._trajectories, self.credit.per_token, self._starts)
        for name, value in self.credit.figures.items():
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
        if self.credit.critic is not None:
            self.credit.critic.save(folder)
        if self.config.steps_ahead:
            self.ahead.save(folder, self.accelerator.process_index)
            gathered(None)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.credit.critic is not None:
            self.credit.critic.load(Path(checkpoint))
        if checkpoint is not None and self.config.steps_ahead:
            self.ahead.load(Path(checkpoint), self.accelerator.process_index)

    def close(self) -> None:
        """Give up the episodes that are played ahead, if training ended before it was through."""
        self.ahead.close(self.collector.stop)

    @property
    def _filler(self) -> int:
        return int(self.policy.tokenizer.pad_token_id)

    def _play(self) -> None:
        """Have the step's episodes played, and lay out their rows."""
        step = self.state.global_step
        began = time.monotonic()
        played = self.ahead.take(step)
        self.collector.run(self.policy.engine.update_weights(self.whole_model(), step))
        horizon = self.horizon(step)
        if played is None:
            played = self.episodes.play(step, horizon, version=step)
        if not self.config.steps_ahead:
            self.collector.run(self.policy.engine.sleep())
        self._trajectories = played
        rows = Rows.of(played, self._filler, self._trained_outcomes)
        most = self._record(played, horizon, time.monotonic() - began, rows)
        self._rows = rows if most == rows.episodes else rows.filled(most, self._filler)
        further = step + self.num_iterations
        if self.config.steps_ahead and further < self.args.max_steps:
            # From here to the next rollout nothing else may use the collector or the engine.
            longest = self.horizon(further)
            self.ahead.begin(further, lambda: self.episodes.play(further, longest, version=step))

    def _hand_over(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """TRL's rollout hook: what was played."""
        output = rollout_output(
            self._trajectories, self._filler, self._trained_outcomes, self._rows
        )
        self.score_only(output["env_mask"])
        return output

    def whole_model(self) -> Any:
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
        figures = step_figures(everyone, horizon, StepTokens.of_all([s for _, s, _ in shares]))
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
    """Raise `BadRequest` for a value that TRL's config does not have."""
    refuse_unknown(" under trl", values, (f.name for f in fields(GRPOConfig)))


def grpo_config(config: TrainConfig, algorithm: Algorithm, store: RunStore) -> GRPOConfig:
    """TRL's own config for a run; `config.trl` has the last word."""
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
        "num_generations": config.group_size,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        # Above 0 keeps a reference, which an algorithm may want for its rewards.
        "beta": config.kl or getattr(algorithm, "kl", 0.0),
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
    return GRPOConfig(**{**values, **config.trl})
