"""RLTrainer: one RL step is episodes -> rows of tokens -> advantages -> updates."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import Algorithm, make_algorithm, make_loss
from agentgym_train.algorithms.gae import ActorCritic
from agentgym_train.config.checks import check_arguments, object_of, type_of
from agentgym_train.config.episodes import trained_outcomes
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trust import resume_command
from agentgym_train.models.adapters import (
    adapters_for,
    check_reference,
    lora_config,
)
from agentgym_train.models.distributed import gathered
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.buffer import GroupBatch, RolloutBuffer
from agentgym_train.rollout.contrast import SAMPLERS
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.gates import GATES, AdmissionGate
from agentgym_train.rollout.groups import Group
from agentgym_train.rollout.horizon import Horizon, make_horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.samplers import TaskSampler
from agentgym_train.rollout.worlds import StepWorld, Worlds
from agentgym_train.training.advantages import ImportanceSampling, StepAdvantages
from agentgym_train.training.agreement import FULL, HALF, Agreement, warn_of_difference
from agentgym_train.training.batch import OverlongPenalty, Rows
from agentgym_train.training.checkpoints import checkpoint_folder
from agentgym_train.training.critic import Critic
from agentgym_train.training.finite import not_finite
from agentgym_train.training.loss import RLLoss, token_weights
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.step_metrics import Step, StepShare, check_lost, mean
from agentgym_train.training.token_writer import TokenWriter
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer, shared_values
from agentgym_train.training.trl_rollout import trajectory_reward
from agentgym_train.training.update import Reference

logger = logging.getLogger(__name__)

_SAMPLER: Final = "sampler.json"
"""The state of the sampler in a checkpoint."""


class RLTrainer(UpdatingTrainer, GRPOTrainer):
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
        reference: Reference | None = None,
    ) -> None:
        """`algorithm` and `horizon` override those of the config.

        `reference` is that of the same run, if it is resumed with a model that it has trained. Of
        several environments each has a copy of `horizon`, which follows its own success.
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
        self.loss_settings = (
            make_loss(config.algorithm, self.algorithm) if algorithm is None else algorithm.loss
        )
        self.to_compare = True
        """Whether engine and trainer are compared in the next step."""
        self.trained_trajectories: list[Trajectory] = []
        """The episodes of the last step."""
        self._trained_outcomes = trained_outcomes(config.train_outcomes)
        self._starts: list[int] = []
        self.draws = 0
        """Groups that were drawn so far, by all processes."""
        needs_reference = bool(config.beta) or self.algorithm.needs_reference
        if reference is None and needs_reference:
            reference = Reference(policy.model, config.lora, config.temperature)
        self.reference = reference
        super().__init__(
            model=policy.model,
            processing_class=policy.tokenizer,
            args=grpo_config(config, store),
            train_dataset=UNUSED.select_columns(["prompt"]),
            reward_funcs=[trajectory_reward],
            peft_config=adapters_for(policy.model, policy.tokenizer, config.lora),
        )
        self.start_updates(
            RLLoss(self.loss_settings, config.beta, config.entropy_bonus),
            max_tokens=config.max_tokens_per_microbatch,
            temperature=config.temperature,
        )
        if self.reference is not None:
            self.reference.prepare(self)
        self.step_state = StepState(self)
        self.add_callback(self.step_state)  # before those that move results of an earlier end
        self._add_parts(config)

    def _add_parts(self, config: RLConfig) -> None:
        """Create what fills a batch, and the computation of advantages."""
        policy = self.policy
        gate: AdmissionGate = object_of("admission", config.admission, GATES, AdmissionGate)
        self.sampler: TaskSampler = object_of(
            "sampler", config.sampler, SAMPLERS, TaskSampler, "next"
        )
        self._sources = [world.source() for world in self.step_worlds]
        self.sampler.begin(self._sources, config.seed)
        self._sampler_state()  # one that cannot be stored is rejected before anything is played
        self.overlong = OverlongPenalty(config.max_tokens, config.overlong_tokens)
        groups = config.prompts_per_step // PartialState().num_processes
        self.rollouts = RolloutBuffer(
            self.step_worlds,
            gate,
            wanted=groups,
            further=gate.max_replaced(groups),
            group_size=config.num_generations,
            max_age=config.max_policy_age,
            specs=self._specs,
            returns=self._returns,
        )
        if config.max_policy_age:
            self.worlds.run_between_calls()
            self.worlds.run(_use_device(self.accelerator.device))
            policy.engine.keep_own_weights()
        critic = None
        if isinstance(self.algorithm, ActorCritic):
            model = self.accelerator.unwrap_model(self.model)
            critic = Critic(self, model, self.algorithm, self.update.microbatches)
        self.step_advantages = StepAdvantages(
            self.update,
            self.algorithm,
            group_size=config.num_generations,
            trained=self._trained_outcomes,
            pad_id=int(policy.tokenizer.pad_token_id),
            correction=ImportanceSampling(**config.correction),
            engine_is_exact=policy.engine.is_exact and not config.max_policy_age,
            minibatches=config.minibatches_per_rollout,
            epochs=config.epochs_per_rollout,
            overlong=self.overlong,
            env_of=self._env_of if len(self.env_ids) > 1 else None,
            critic=critic,
        )
        self.token_writer = TokenWriter(
            self.store, config.keep_tokens, config.num_generations, policy.tokenizer
        )

    def updates_of(self, step: int) -> list[TokenRows]:
        """Play the step's episodes; returns the rows of each update of this process."""
        rows = self.play(step)
        batch = rows.to_train(self.accelerator.device)
        if self.reference is not None:
            batch = replace(batch, reference=self.reference.logprobs(self.update, batch))
        if self.to_compare:
            self._compare(rows, batch, step)
        if self.config.updates_per_rollout > 1:
            # The policy that sampled, as the trainer computes it, from before the first update.
            batch = replace(batch, old=self.update.logprobs(batch))
        found = self.step_advantages
        batch = replace(batch, advantages=found.advantages(batch, self.trained_trajectories, rows))
        self.token_writer.keep("train", self.trained_trajectories, found.per_token, self._starts)
        self.add_metrics(found.metrics)
        updates = [
            self._update_of(batch, rows, number)
            for number in range(self.config.minibatches_per_rollout)
        ]
        # While the critic warms up, the first is computed for its metrics.
        return updates[:1] if self._is_frozen(step) else updates * self.config.epochs_per_rollout

    def _update_of(self, batch: TokenRows, rows: Rows, number: int) -> TokenRows:
        """The rows of a mini-batch, with their weights."""
        counts = self.step_advantages.counts[number]
        weights = token_weights(
            self.loss_settings,
            rows.episode_tokens(),
            episodes=counts.episodes,
            tokens=counts.tokens,
            most=self.config.max_tokens,
        ).to(batch.ids.device)  # (R,)
        weighted = replace(batch, weights=weights[:, None] * batch.trained, tokens=counts.tokens)
        return weighted.take(rows.of_minibatch(number))

    def _is_frozen(self, step: int) -> bool:
        """Whether the policy is not updated in a step."""
        return step < getattr(self.algorithm, "critic_warmup", 0)

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any) -> torch.Tensor:
        """Play and train; during the critic's warmup the policy is not updated."""
        loss = super().training_step(model, inputs, *arguments)
        if self._is_frozen(self.state.global_step):
            # An optimizer skips parameters without a gradient: no weight decay, no momentum.
            self.model.zero_grad(set_to_none=True)
        return loss

    def _compare(self, rows: Rows, batch: TokenRows, step: int) -> None:
        """Warn if the trainer gives the tokens of the first step other log-probabilities.

        Scores the shortest row that this policy sampled. A collective.
        """
        self.to_compare = False
        own = [
            number
            for number, row in enumerate(rows.tokens)
            if {step} <= set(row.versions) <= {-1, step}
        ]
        lengths = batch.lengths.tolist()
        chosen = min(own or range(len(lengths)), key=lengths.__getitem__)
        # A router may draw noise, which must not change what is drawn later.
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            found = self.update.logprobs(batch.take([chosen]))[0]  # (W,)
        if own and self.accelerator.is_main_process:
            row = rows.tokens[chosen]
            exact = self.policy.engine.is_exact and not (self.args.bf16 or self.args.fp16)
            theirs = found[len(row.prompt_ids) :].tolist()
            gaps = [
                trainer - engine
                for trainer, engine, trained in zip(
                    theirs, row.logprobs, row.loss_mask, strict=True
                )
                if trained
            ]
            agreement = Agreement.from_gaps(gaps, FULL if exact else HALF)
            warn_of_difference(agreement, self.config.model)

    def check_weights(self) -> None:
        """Raise `NotFinite` if the weights of policy or critic cannot be used. A collective."""
        super().check_weights()
        if self.step_advantages.critic is not None:
            self.step_advantages.critic.check_weights()

    def close(self) -> None:
        """Cancel the episodes that run if training ended early."""
        self.worlds.run(self.rollouts.close())

    def play(self, step: int) -> Rows:
        """Run the step's episodes and build their rows."""
        began = time.monotonic()
        self.worlds.run(self.policy.engine.update_weights(self.gathered_model(), step))
        needed = gathered(self.worlds.run(self.rollouts.begin(step, self.args.max_steps)))
        horizons = [world.horizon(step) for world in self.step_worlds]
        batch = self.worlds.run(self.rollouts.take(self._drawn(needed), horizons))
        if not self.config.max_policy_age:
            self.worlds.run(self.policy.engine.sleep())
        first = len(batch.trained) * self.accelerator.process_index
        for number, group in enumerate(batch.trained, first):
            group.episodes = [
                msgspec.structs.replace(t, step=step, group=number) for t in group.episodes
            ]
        self.trained_trajectories = [t for group in batch.trained for t in group.episodes]
        self._record(batch, time.monotonic() - began)
        return Rows.from_trajectories(
            self.trained_trajectories,
            int(self.policy.tokenizer.pad_token_id),
            self._trained_outcomes,
            self.config.minibatches_per_rollout,
        )

    def _drawn(self, needed: Sequence[int]) -> list[Group]:
        """This process's draws; `needed` are those of each. All processes draw alike."""
        own: list[Group] = []
        for rank, count in enumerate(needed):
            for _ in range(count):
                self.sampler.chance = Random(draw_seed("draw", self.config.seed, self.draws))
                env, task = self._checked(self.sampler.next())
                if rank == self.accelerator.process_index:
                    own.append(Group(env, task, self.draws))
                self.draws += 1
        return own

    def _checked(self, draw: Any) -> tuple[int, str]:
        """A draw of a sampler, which may be the user's."""
        match draw:
            case (int(env), str(task)) if env in range(len(self._sources)):
                if task in self._sources[env].tasks:
                    return env, task
        raise ConfigError(
            f"the sampler {type_of(self.config.sampler)} draws {draw!r:.200}; next() returns the "
            "number of an environment and one of its tasks"
        )

    def _sampler_state(self) -> bytes:
        state = {"draws": self.draws, "sampler": self.sampler.state()}
        try:
            return msgspec.json.encode(state)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the state of the sampler {type_of(self.config.sampler)} cannot be stored as "
                f"JSON: {error}"
            ) from error

    def _specs(self, group: Group) -> list[EpisodeSpec]:
        """The episodes of a group."""
        world, seed = self.step_worlds[group.env], self.config.seed
        return [
            EpisodeSpec(
                task=group.task,
                seed=draw_seed("train", seed, group.number, group.task),
                sample=sample,
                group=group.number,
                split=world.settings.split,
                category=self._sources[group.env].tasks[group.task],
                env=group.env,
            )
            for sample in range(self.config.num_generations)
        ]

    def _returns(self, episodes: Sequence[Trajectory]) -> list[float]:
        """The returns of the episodes that are trained on, as algorithms see them."""
        return [
            self.overlong.shaped_return(t) for t in episodes if t.outcome in self._trained_outcomes
        ]

    def _env_of(self, trajectory: Trajectory) -> int:
        """The number of an episode's environment."""
        return self.env_ids.index(trajectory.env)

    def _record(self, batch: GroupBatch, seconds: float) -> None:
        """Store the step's episodes and metrics; raise `TooManyLost` if too many were lost.

        The metrics cover the episodes of all processes, so that all processes decide alike.
        """
        step = self.state.global_step
        share = StepShare.from_batch(batch, step, seconds, self.overlong)
        whole = Step(gathered(share), self.config.num_generations)
        figures = whole.metrics(self.env_ids)
        if self.config.overlong_tokens:
            figures["overlong_penalty"] = mean([p for each in whole.shares for p in each.penalties])
        self.add_metrics(figures)
        for group in (*whole.trained, *whole.rejected, *whole.dropped):
            self.sampler.observe(group)
        everyone = [t for group in whole.trained for t in group.episodes]
        if self.accelerator.is_main_process:
            self._starts = self.store.append_trajectories("train", everyone)
        if whole.not_finite:
            raise not_finite(
                self,
                f"the log-probability of {whole.not_finite} of {whole.sampled} tokens that were "
                f"sampled for step {step + 1} is not finite",
            )
        replaced = [t for group in whole.rejected for t in group.episodes]
        check_lost(
            [*everyone, *replaced], step, self.config.limits.max_lost_rate, self._resume_command
        )
        several = len(self.step_worlds) > 1
        for world in self.step_worlds:
            world.horizon.observe(step, figures[f"success/{world.env}" if several else "success"])

    def save_rollouts(self, folder: Path) -> None:
        """Write what fills the next batches to a checkpoint's folder. A collective."""
        folder.mkdir(parents=True, exist_ok=True)
        own = (self.accelerator.process_index, self.accelerator.num_processes)
        self.worlds.run(self.rollouts.save(folder, *own))
        if self.accelerator.is_main_process:
            (folder / _SAMPLER).write_bytes(self._sampler_state())
        gathered(None)

    def load_rollouts(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        if not (folder / _SAMPLER).is_file():
            logger.warning("%s is of an earlier version: the tasks are drawn anew", folder)
            return
        state = msgspec.json.decode((folder / _SAMPLER).read_bytes())
        self.draws = state["draws"]
        self.sampler.load(state["sampler"])
        self.rollouts.load(folder, self.accelerator.process_index, self.accelerator.num_processes)

    def _resume_command(self) -> str:
        return resume_command(self.store.path, self.config.as_dict())


class StepState(TrainerCallback):
    """Saves and loads what an RL step needs beyond the policy: critic, tasks and episodes."""

    def __init__(self, trainer: RLTrainer) -> None:
        self.checkpoint: str | None = None
        """What the run resumes from, if anything."""
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Load from the checkpoint."""
        trainer = self._trainer
        if self.checkpoint is None:
            return
        folder = Path(self.checkpoint)
        if trainer.step_advantages.critic is not None:
            trainer.step_advantages.critic.load(folder)
        trainer.load_rollouts(folder)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save to the new checkpoint. A collective."""
        trainer, folder = self._trainer, checkpoint_folder(args, state)
        if trainer.step_advantages.critic is not None:
            trainer.step_advantages.critic.save(folder)
        trainer.save_rollouts(folder)


async def _use_device(device: torch.device) -> None:
    """Let collectives in the event loop's thread use this process's device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def grpo_config(config: RLConfig, store: RunStore) -> GRPOConfig:
    """TRL's config for a run; `config.trainer_args` take precedence."""
    config.check_processes(PartialState().num_processes)
    values: dict[str, Any] = {
        **shared_values(config, config.episodes_per_step, config.steps, store.checkpoints),
        "lr_scheduler_type": "constant_with_warmup",
        "num_generations": config.num_generations,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        # Above 0 TRL would load a reference model; see `Reference`.
        "beta": 0.0,
        # Engines sample without dropout; with it the trainer would score another policy.
        "disable_dropout": True,
        "trust_remote_code": False,
    }
    return GRPOConfig(**{**values, **config.trl_args})


def check_rl(config: RLConfig) -> None:
    """Raise `ConfigError` for arguments that the libraries do not take."""
    algorithm = make_algorithm(config.algorithm)
    make_loss(config.algorithm, algorithm)
    object_of("sampler", config.sampler, SAMPLERS, TaskSampler, "next")
    object_of("admission", config.admission, GATES, AdmissionGate)
    check_arguments("trainer_args", config.trl_args, GRPOConfig)
    lora_config(config.lora)
    if config.beta:
        check_reference(config.lora, f"beta {config.beta:g}")
    elif algorithm.needs_reference:
        check_reference(config.lora, f"algorithm {type_of(config.algorithm)}")
