"""RLTrainer: TRL's GRPOTrainer with whole episodes of an environment as completions.

It uses two extension points of TRL. `rollout_func` returns the sampled episodes.
`_generate_and_score_completions` runs the episodes first and replaces TRL's advantages by per-token
advantages of shape (R, T) for R rows of tokens. Loss, optimizer, distribution, logging and
checkpoints are TRL's. `update` computes the forward and backward passes.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
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
from agentgym_train.algorithms import Algorithm, make_algorithm
from agentgym_train.config.checks import check_arguments, type_of
from agentgym_train.config.episodes import trained_outcomes
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trainer_args import check_needs
from agentgym_train.config.trust import resume_command
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.adapters import (
    adapters_for,
    check_reference,
    finish_adapters,
    lora_config,
)
from agentgym_train.models.distributed import GatheredModel, gathered
from agentgym_train.rollout.horizon import Horizon, make_horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.training.advantages import StepAdvantages
from agentgym_train.training.agreement import FULL, HALF, Agreement, warn_of_difference
from agentgym_train.training.async_rollouts import AsyncRollouts
from agentgym_train.training.batch import Rows, rollout_output
from agentgym_train.training.finite import FiniteSteps, not_finite
from agentgym_train.training.importance_sampling import ImportanceSampling
from agentgym_train.training.microbatches import check_router_loss
from agentgym_train.training.sampler import StepEpisodes, StepSampler, StepWorld
from agentgym_train.training.step_metrics import (
    StepShare,
    StepTokens,
    check_lost,
    env_metrics,
    mean,
    step_metrics,
    without_tokens,
)
from agentgym_train.training.token_writer import TokenWriter
from agentgym_train.training.trl_values import shared_values
from agentgym_train.training.update import PackedUpdate, ragged_gather


class RLTrainer(FiniteSteps, PackedUpdate):
    """Trains a policy with RL on the tasks of one split.

    A group is `num_generations` episodes of one task and environment seed. Task and seed depend
    only on the run's seed and the step, so a resumed run samples the same episodes. Each process
    runs whole groups and does not wait for other processes during a rollout (see `distributed`).
    """

    def __init__(
        self,
        policy: Policy,
        config: RLConfig,
        worlds: Worlds,
        store: RunStore,
        *,
        algorithm: Algorithm | None = None,
        horizon: Horizon | None = None,
    ) -> None:
        """`algorithm` and `horizon` override those of the config.

        Of several environments each has a copy of `horizon`, which follows its own success.
        """
        self.policy = policy
        self.config = config
        self.worlds = worlds
        self.store = store
        self.step_worlds = [
            StepWorld(
                world,
                runner,
                policy.in_environment(runner.card, world.instruction),
                make_horizon(world.horizon) if horizon is None else copy.deepcopy(horizon),
            )
            for world, runner in zip(config.worlds, worlds, strict=True)
        ]
        self.env_ids = [world.env for world in self.step_worlds]
        self.algorithm = algorithm or make_algorithm(config.algorithm)
        self.max_tokens_per_microbatch = config.max_tokens_per_microbatch
        self.epochs_per_rollout = config.epochs_per_rollout
        self._gathered_model = GatheredModel()
        self._trained_outcomes = trained_outcomes(config.train_outcomes)
        self._rows = Rows([], [], [], 0, [])
        self._trajectories: list[Trajectory] = []
        self._starts: list[int] = []
        self.to_compare = True
        """Whether engine and trainer are compared in the next step."""
        tasks = [task for world in self.step_worlds for task in world.tasks]
        with warnings.catch_warnings():
            # TRL marks rollout_func as experimental; our version range of TRL is pinned.
            warnings.filterwarnings("ignore", message=".*'rollout_func'.*experimental")
            super().__init__(
                model=policy.model,
                processing_class=policy.tokenizer,
                args=grpo_config(config, self.algorithm, store),
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks), "task": tasks}),
                reward_funcs=[trajectory_reward],
                rollout_func=self._hand_over,
                peft_config=adapters_for(policy.model, policy.tokenizer, config.lora),
            )
        finish_adapters(self)
        check_router_loss(self)
        self._add_parts(config)

    def _add_parts(self, config: RLConfig) -> None:
        """Create the sampler of episodes and the computation of advantages."""
        policy = self.policy
        self.episodes = StepSampler(
            config,
            self.step_worlds,
            rank=PartialState().process_index,
            processes=PartialState().num_processes,
        )
        self.async_rollouts = AsyncRollouts()
        if config.async_steps and isinstance(policy.engine, HFEngine):
            policy.engine.keep_own_weights()
        # The KL coefficient of the loss; the algorithm may have another one for its rewards.
        self.beta = config.beta
        self.step_advantages = StepAdvantages(
            self,
            self.algorithm,
            group_size=config.num_generations,
            trained=self._trained_outcomes,
            dummy_id=self._dummy_row,
            correction=ImportanceSampling(*config.correction),
            engine_is_exact=policy.engine.is_exact and not config.samples_stale,
            minibatches=config.minibatches_per_rollout,
            epochs=config.epochs_per_rollout,
            overlong=self.episodes.overlong,
            env_of=self._env_of if len(self.env_ids) > 1 else None,
        )
        self.token_writer = TokenWriter(
            self.store, config.keep_tokens, config.num_generations, policy.tokenizer
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # TRL's sampler draws other tasks after a resume, so only the number of its rows is used:
        # one prompt per row of tokens. An episode with context resets has several rows.
        self._play()
        inputs = [dict(inputs[i % len(inputs)]) for i in range(len(self._rows.tokens))]
        # TRL scores the reference model if its own beta is above 0.
        self.beta = self.args.beta
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.beta = self.config.beta
        if self.to_compare:
            self._compare()
        if self.config.updates_per_rollout > 1:
            # The policy that sampled, as the trainer computes it, from before the first update.
            output["old_per_token_logps"] = self.logprobs(output)  # (R, T)
        output["advantages"] = self.step_advantages.advantages(  # (R, T)
            output, self._trajectories, self._rows
        )
        device = output["advantages"].device
        output["minibatch"] = torch.tensor(self._rows.minibatch, device=device)  # (R,)
        output["episode_tokens"] = self._rows.episode_tokens().to(device)  # (R,)
        self.counts = self.step_advantages.counts
        self.token_writer.keep(
            "train", self._trajectories, self.step_advantages.per_token, self._starts
        )
        for name, value in self.step_advantages.metrics.items():
            self._metrics["train"][name].append(value)
        return output

    def _compare(self) -> None:
        """Warn if the trainer gives the tokens of the first step other log-probabilities.

        Scores the shortest row that this policy sampled. A collective.
        """
        self.to_compare, step = False, self.state.global_step
        rows = self._rows.tokens
        own = [row for row in rows if {step} <= set(row.versions) <= {-1, step}]
        row = min(own or rows, key=lambda row: len(row.prompt_ids) + len(row.completion_ids))
        ids, width = row.prompt_ids + row.completion_ids, len(row.completion_ids)
        found = self.scores_of(ids, width, row.loss_mask)
        if own and self.accelerator.is_main_process:
            exact = self.policy.engine.is_exact and not (self.args.bf16 or self.args.fp16)
            gaps = [
                theirs - ours
                for theirs, ours, trained in zip(found, row.logprobs, row.loss_mask, strict=True)
                if trained
            ]
            agreement = Agreement.of(gaps, FULL if exact else HALF)
            warn_of_difference(agreement, self.config.model)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        # The micro-batches differ between processes, and so does their number of rows.
        with ragged_gather(self.accelerator):
            return super()._compute_loss(model, inputs)

    def training_step(self, *arguments: Any, **options: Any) -> Tensor:
        """TRL's training step; during the critic's warmup the policy is not updated."""
        self.entropy_bonus = self.config.entropy_bonus
        self.is_frozen = self.state.global_step < getattr(self.algorithm, "critic_warmup", 0)
        loss: Tensor = super().training_step(*arguments, **options)
        if self.is_frozen:
            # An optimizer skips parameters without a gradient: no weight decay, no momentum.
            self.model.zero_grad(set_to_none=True)
        return loss

    def check_weights(self) -> None:
        """Raise `NotFinite` if the weights of policy or critic cannot be used. A collective."""
        super().check_weights()
        if self.step_advantages.critic is not None:
            self.step_advantages.critic.check_weights()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        # The checkpoint counts as complete once the horizon's state is written.
        folder = Path(self._get_output_dir(trial=trial))
        folder = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.step_advantages.critic is not None:
            self.step_advantages.critic.save(folder)
        if self.episodes.contrast is not None and self.accelerator.is_main_process:
            self.episodes.contrast.save(folder)
        if self.config.async_steps:
            self.async_rollouts.save(folder, self.accelerator.process_index)
            gathered(None)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.step_advantages.critic is not None:
            self.step_advantages.critic.load(Path(checkpoint))
        if checkpoint is not None and self.episodes.contrast is not None:
            self.episodes.contrast.load(Path(checkpoint))
        if checkpoint is not None and self.config.async_steps:
            self.async_rollouts.load(Path(checkpoint), self.accelerator.process_index)

    def close(self) -> None:
        """Cancel asynchronous rollouts if training ended early."""
        self.async_rollouts.close(self.worlds.stop)

    @property
    def _dummy_row(self) -> int:
        return int(self.policy.tokenizer.pad_token_id)

    def _play(self) -> None:
        """Run the step's episodes and build their rows."""
        step = self.state.global_step
        began = time.monotonic()
        played = self.async_rollouts.take(step)
        self.worlds.run(self.policy.engine.update_weights(self.gathered_model(), step))
        if played is None:
            played = self.episodes.play(step, self._horizons(step), version=step)
        if not self.config.async_steps:
            self.worlds.run(self.policy.engine.sleep())
        self._trajectories = played.trajectories
        minibatches = self.config.minibatches_per_rollout
        rows = Rows.of(self._trajectories, self._dummy_row, self._trained_outcomes, minibatches)
        sizes = self._record(played, time.monotonic() - began, rows.sizes(minibatches))
        self._rows = rows if sum(sizes) == rows.episodes else rows.filled(sizes, self._dummy_row)
        further = step + 1
        if self.config.async_steps and further < self.args.max_steps:
            # Until the next rollout nothing else may use the rollout runner or the engine.
            longest = self._horizons(further)
            self.async_rollouts.begin(
                further, lambda: self.episodes.play(further, longest, version=step)
            )

    def _horizons(self, step: int) -> list[int]:
        """The horizon in each environment."""
        return [world.horizon(step) for world in self.step_worlds]

    def _env_of(self, trajectory: Trajectory) -> int:
        """The number of an episode's environment."""
        return self.env_ids.index(trajectory.env)

    def _hand_over(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: return the episodes of this step."""
        output = rollout_output(
            self._trajectories, self._dummy_row, self._trained_outcomes, self._rows
        )
        self.score_only(output["env_mask"])
        return output

    def gathered_model(self) -> Any:
        """The unsharded model, which one process can call alone. A collective."""
        return self._gathered_model.of(self.accelerator.unwrap_model(self.model))

    def _record(self, played: StepEpisodes, seconds: float, sizes: list[int]) -> list[int]:
        """Store the step's episodes and metrics; raise `TooManyLost` if too many were lost.

        The metrics cover the episodes of all processes, so that all processes decide alike.
        `sizes` are the rows of this process in each mini-batch. Returns the maxima over the
        processes: all need the same number.
        """
        light = [without_tokens(t) for t in played.trajectories]
        discarded = [without_tokens(t) for t in played.discarded]
        step = self.state.global_step
        everything = [*played.trajectories, *played.discarded]
        own = StepTokens.of(everything, step, self.episodes.dropped, seconds)
        # Judged here, since a penalty on long episodes depends on their tokens.
        shares: list[StepShare] = gathered(
            StepShare(
                light, discarded, own, sizes,
                self._judged(played.trajectories),
                self._judged(played.discarded),
                [self.episodes.overlong.of(t) for t in played.trajectories if t.tokens],
            )
        )  # fmt: skip
        everyone = [t for share in shares for t in share.trained]
        replaced = [t for share in shares for t in share.discarded]
        tokens = StepTokens.of_all([share.tokens for share in shares])
        figures = step_metrics(everyone, tokens, replaced)
        groups = [group for share in shares for group in share.trained_groups]
        figures["informative_groups"] = mean([informs for _, _, informs in groups])
        of_envs = [env_metrics(everyone, replaced, env) for env in self.env_ids]
        if len(self.env_ids) > 1:
            for number, (env, found) in enumerate(zip(self.env_ids, of_envs, strict=True)):
                figures |= {f"{name}/{env}": value for name, value in found.items()}
                informed = [informs for of, _, informs in groups if of == number]
                figures[f"informative_groups/{env}"] = mean(informed)
        if self.config.overlong_tokens:
            figures["overlong_penalty"] = mean([p for share in shares for p in share.penalties])
        if self.episodes.contrast is not None:
            others = [group for share in shares for group in share.discarded_groups]
            for number, task, informs in [*groups, *others]:
                self.episodes.contrast.observe(number, task, informs)
        for name, value in figures.items():
            self._metrics["train"][name].append(value)
        if self.accelerator.is_main_process:
            self._starts = self.store.append_trajectories("train", everyone)
        if tokens.not_finite:
            raise not_finite(
                self,
                f"the log-probability of {tokens.not_finite} of {tokens.sampled} tokens that were "
                f"sampled for step {step + 1} is not finite",
            )
        check_lost(
            [*everyone, *replaced], step, self.config.limits.max_lost_rate, self._resume_command
        )
        for world, found in zip(self.step_worlds, of_envs, strict=True):
            world.horizon.observe(step, found["success"])
        return [max(found) for found in zip(*(share.sizes for share in shares), strict=True)]

    def _resume_command(self) -> str:
        return resume_command(self.store.path, self.config.as_dict())

    def _judged(self, trajectories: Sequence[Trajectory]) -> list[tuple[int, str, bool]]:
        """(environment, task, whether it is informative) of each of this process's groups."""
        return [
            (self._env_of(group[0]), group[0].task, self.episodes.is_informative(group))
            for group in self.episodes.groups(trajectories)
        ]


def trajectory_reward(
    completions: list[Any], trajectory_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: the sum of an episode's rewards; None for a lost episode."""
    return trajectory_reward


def grpo_config(config: RLConfig, algorithm: Algorithm, store: RunStore) -> GRPOConfig:
    """TRL's config for a run; `config.trainer_args` take precedence."""
    config.check_processes(PartialState().num_processes)
    values: dict[str, Any] = {
        # `update` splits the batch into micro-batches.
        **shared_values(config, config.episodes_per_step, config.steps, store.checkpoints),
        "lr_scheduler_type": "constant_with_warmup",
        "num_generations": config.num_generations,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        # Above 0 loads a reference model, which an algorithm may need for its rewards.
        "beta": config.beta or float(algorithm.needs_reference),
        **asdict(algorithm.loss),
        # Engines sample without dropout; with it the trainer would score another policy.
        "disable_dropout": True,
        "trust_remote_code": False,
    }
    return GRPOConfig(**{**values, **config.trl_args})


def check_rl(config: RLConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    algorithm = make_algorithm(config.algorithm)
    check_needs(config.trainer_args, {"loss_type": algorithm.loss.loss_type})
    check_arguments("trainer_args", config.trl_args, GRPOConfig)
    lora_config(config.lora)
    if config.beta:
        check_reference(config.lora, f"beta {config.beta:g}")
    elif algorithm.needs_reference:
        check_reference(config.lora, f"algorithm {type_of(config.algorithm)}")
