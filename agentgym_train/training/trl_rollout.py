"""TrlRollout: rollouts in an environment for any GRPOTrainer, as TRL's `rollout_func`.

```python
with RolloutRunner("agentgym/TextCraft-v0") as runner:
    rollout = TrlRollout(policy, runner, horizon=20)
    trainer = GRPOTrainer(
        model=policy.model, processing_class=policy.tokenizer, rollout_func=rollout,
        train_dataset=rollout.dataset(n=256), reward_funcs=[trajectory_reward], args=...,
    )
```

Unlike TRL's tool loop it supports the end of an episode, a horizon, independent episodes and
retries. TRL uses one advantage per row, so the rewards of turns are summed.
"""

from __future__ import annotations

import json
import math
from statistics import fmean
from typing import Any

from datasets import Dataset

from agentgym_adapters.starts import draw_starts
from agentgym_env.errors import ConfigError, teaches
from agentgym_env.trajectory import Trajectory
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.horizon import Horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.batch import rollout_output
from agentgym_train.training.step_metrics import check_lost


class TrlRollout:
    """Runs one episode per prompt of a batch when TRL calls it.

    TRL passes prompts only, so a prompt contains the task and the environment seed; `dataset`
    creates such prompts. Equal prompts form a group. A lost episode has the reward None, which TRL
    excludes from the group's baseline. If the rate of lost episodes in a step is above
    `max_lost_rate`, the run stops.
    """

    def __init__(
        self,
        policy: Policy,
        rollout_runner: RolloutRunner,
        horizon: int | Horizon,
        *,
        temperature: float = 1.0,
        max_lost_rate: float = 0.5,
    ) -> None:
        self.trajectories: list[Trajectory] = []
        """The trajectories of the last batch."""
        self._policy = policy
        self._rollout_runner = rollout_runner
        self._horizon = horizon
        self._temperature = temperature
        self._max_lost_rate = max_lost_rate

    def dataset(self, split: str = "train", n: int | None = None, seed: int = 0) -> Dataset:
        """A dataset of `n` prompts; default: each task of the split once, shuffled by `seed`."""
        starts = draw_starts(self._rollout_runner.tasks.split(split), n, seed)
        prompts = [json.dumps({"task": task, "seed": number}) for task, number in starts]
        return Dataset.from_dict({"prompt": prompts})

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run the episodes of the batch with the trainer's current weights."""
        step = int(trainer.state.global_step)
        model = trainer.accelerator.unwrap_model(trainer.model)
        self._rollout_runner.run(self._policy.engine.update_weights(model, step))
        horizon = self._horizon if isinstance(self._horizon, int) else self._horizon(step)
        self.trajectories = self._rollout_runner.collect(
            self._policy.actors(self._temperature),
            _starts(prompts),
            horizon,
            step=step,
            instruction=self._policy.instruction,
        )
        check_lost(self.trajectories, step, self._max_lost_rate)
        if not isinstance(self._horizon, int):
            taught = [float(t.success) for t in self.trajectories if teaches(t.outcome)]
            self._horizon.observe(step, fmean(taught) if taught else math.nan)
        output = rollout_output(self.trajectories, int(self._policy.tokenizer.pad_token_id))
        if len(output["prompt_ids"]) != len(prompts):
            raise ConfigError(
                f"the agent {self._policy.config.agent!r} resets the context, so an episode "
                "has several rows, but TRL's rollout_func supports one per prompt; use the agent "
                "plain, or `agentgym train`"
            )
        return output


def trajectory_reward(
    completions: list[Any], trajectory_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: the sum of an episode's rewards; None for a lost episode."""
    return trajectory_reward


def _starts(prompts: list[Any]) -> list[EpisodeSpec]:
    """The episodes that prompts specify; consecutive equal prompts form a group."""
    starts: list[EpisodeSpec] = []
    group = -1
    for number, prompt in enumerate(prompts):
        if not number or prompt != prompts[number - 1]:
            group += 1
        try:
            start = json.loads(prompt)
            task, seed = str(start["task"]), int(start["seed"])
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"the prompt {str(prompt)[:100]!r} does not specify an episode; create the dataset "
                "with TrlRollout.dataset"
            ) from error
        starts.append(EpisodeSpec(task=task, seed=seed, sample=number, group=group))
    return starts
