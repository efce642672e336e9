"""AgentTrainer: TRL's GRPOTrainer whose completions are whole episodes of an environment.

Two of TRL's seams are used: `rollout_func`, which plays the episodes, and
`_generate_and_score_completions`, whose advantages are replaced by ours of shape (B, T).
Losses, optimizer, distribution, logging and checkpoints are TRL's, untouched; how a step's
episodes are computed is `update`'s.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_env.failures import teaches
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.algorithms import make_algorithm
from agentgym_train.batch import rollout_output, token_batch
from agentgym_train.collector import Collector
from agentgym_train.config import TrainConfig
from agentgym_train.players import draw_seed
from agentgym_train.policy import Policy
from agentgym_train.rollout import EpisodeStart
from agentgym_train.update import PackedUpdate


class TooManyLost(AgentGymError, RuntimeError):
    """More of a step's episodes were lost than `max_lost_rate` allows."""


class AgentTrainer(PackedUpdate):
    """Trains a policy on the tasks of one split.

    A group is `group_size` episodes of one task and one world seed, which depend on the run's seed
    and the step alone: a resumed run plays what the unbroken one would have played.
    """

    def __init__(
        self, policy: Policy, config: TrainConfig, collector: Collector, store: RunStore
    ) -> None:
        self.policy = policy
        self.config = config
        self.collector = collector
        self.store = store
        self.horizon = config.horizon_schedule()
        self.algorithm = make_algorithm(config.algorithm, config.algorithm_args)
        self.tokens_per_forward = config.tokens_per_forward
        self._rows: Sequence[dict[str, Any]] = ()
        self._trajectories: list[Trajectory] = []
        tasks = collector.tasks.split(config.split)
        with warnings.catch_warnings():
            # TRL calls its rollout hook experimental; the pinned range of versions answers that.
            warnings.filterwarnings("ignore", message=".*'rollout_func'.*experimental")
            super().__init__(
                model=policy.model,
                processing_class=policy.tokenizer,
                args=grpo_config(config, self.algorithm.loss_type, store),
                train_dataset=Dataset.from_dict({"prompt": [""] * len(tasks), "task": list(tasks)}),
                reward_funcs=[trajectory_reward],
                rollout_func=self._play,
            )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # TRL hands its rollout hook the prompts alone; the rows hold the tasks.
        self._rows = inputs
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        width = output["completion_ids"].shape[1]
        batch = token_batch(self._trajectories, self.config.group_size, width, self._filler)
        advantages: Tensor = self.algorithm.advantages(batch)  # (B, T)
        output["advantages"] = advantages.to(output["completion_ids"].device)
        return output

    @property
    def _filler(self) -> int:
        return int(self.policy.tokenizer.pad_token_id)

    def _play(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """TRL's rollout hook: one episode a row."""
        step = self.state.global_step
        began = time.monotonic()
        model = self.accelerator.unwrap_model(self.model)
        self.collector.run(self.policy.engine.update_weights(model, step))
        horizon = self.horizon(step)
        self._trajectories = self.collector.collect(
            self.policy.players(self.config.temperature),
            self._starts(step),
            horizon,
            step=step,
            instruction=self.policy.instruction,
        )
        self._record(self._trajectories, horizon, time.monotonic() - began)
        output = rollout_output(self._trajectories, self._filler)
        self.score_only(output["env_mask"])
        return output

    def _starts(self, step: int) -> list[EpisodeStart]:
        first = self.accelerator.process_index * len(self._rows)
        return [
            EpisodeStart(
                task=row["task"],
                seed=draw_seed("train", self.config.seed, step, row["task"]),
                sample=number,
                group=number // self.config.group_size,
                split=self.config.split,
                category=self.collector.tasks.category(row["task"]),
            )
            for number, row in enumerate(self._rows, first)
        ]

    def _record(self, trajectories: list[Trajectory], horizon: int, seconds: float) -> None:
        """Keep the episodes and their figures; stop the run when too many were lost."""
        kept = [t for t in trajectories if teaches(t.outcome)]
        lost = len(trajectories) - len(kept)
        share = lost / len(trajectories)
        figures = {
            "success": _mean([t.success for t in kept]),
            "horizon": horizon,
            "turns": _mean([len(t.turns) for t in kept]),
            "env_steps": sum(len(t.turns) for t in trajectories),
            "sampled_tokens": sum(sum(t.tokens.loss_mask) for t in kept if t.tokens),
            "rollout_seconds": seconds,
            "lost": lost,
            "retried": sum(t.attempts > 1 for t in trajectories),
        }
        for outcome, count in Counter(t.outcome for t in trajectories).items():
            figures[f"outcome/{outcome}"] = count / len(trajectories)
        for name, value in figures.items():
            self._metrics["train"][name].append(float(value))
        self.store.append_trajectories("train", [without_tokens(t) for t in trajectories])
        if share > self.config.max_lost_rate:
            error = next(t.error for t in trajectories if not teaches(t.outcome))
            raise TooManyLost(
                f"{lost} of {len(trajectories)} episodes were lost at step "
                f"{self.state.global_step}, more than max_lost_rate {self.config.max_lost_rate} "
                f"allows. The first was lost to: {error}"
            )


def trajectory_reward(
    completions: list[Any], trajectory_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: what the world paid over the episode; None for a lost one."""
    return trajectory_reward


def grpo_config(config: TrainConfig, loss_type: str, store: RunStore) -> GRPOConfig:
    """TRL's own config for a run; `config.trl` has the last word."""
    on_gpu = torch.cuda.is_available()
    processes = PartialState().num_processes
    local = config.episodes_per_step // processes
    rows = config.rows_per_forward or local
    if config.prompts_per_step % processes or local % rows:
        raise BadRequest(
            f"prompts_per_step {config.prompts_per_step} (x group_size {config.group_size}, in "
            f"passes of {rows} episodes) does not divide among {processes} processes"
        )
    values: dict[str, Any] = {
        "output_dir": str(store.checkpoints),
        "max_steps": config.steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": config.warmup_steps,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": local // rows,
        "num_generations": config.group_size,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        "beta": config.kl,
        "loss_type": loss_type,
        "seed": config.seed,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        "gradient_checkpointing": on_gpu,
        "logging_steps": 1,
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "disable_tqdm": True,
        "report_to": "none",
        "dataloader_num_workers": 0,
    }
    return GRPOConfig(**{**values, **config.trl})


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The episode as text alone, which is what a long run can afford to keep of every step."""
    return msgspec.structs.replace(trajectory, tokens=None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
