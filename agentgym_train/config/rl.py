"""RLConfig: the settings of an RL run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from agentgym_env.errors import TEACHES, ConfigError
from agentgym_train.config.episodes import trained_outcomes
from agentgym_train.config.run import RunConfig, check_divides
from agentgym_train.config.worlds import TRAINED_KEYS, Stages, stages_of
from agentgym_train.rollout.horizon import SCHEDULES, Horizon, make_horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig(RunConfig):
    """Settings of an RL run. Every field is a key of the YAML file and an option of the command."""

    trained_keys: ClassVar[frozenset[str]] = TRAINED_KEYS
    method: Literal["rl"] = "rl"  # type: ignore[mutable-override]
    env_sampling: Literal["weight", "contrast"] = "weight"
    """How often each of `envs` is drawn: by its weight, or by its weight times the share of its
    recent groups that were informative (`contrast`)."""
    normalize_per_env: bool = True
    """Compute advantages separately for each of `envs`: whitening, as in REINFORCE++ and PPO,
    otherwise compares the returns of different environments."""
    split: str = "train"
    """Split whose tasks are trained on."""

    horizon: Stages = field(default_factory=lambda: [30])
    """Maximum turns per episode: one number, or several that grow from stage to stage."""
    horizon_schedule: str | None = None
    """How the horizon grows: `fixed`, `stepwise` (ScalingInter-RL), `linear`, `adaptive` (when
    the current horizon is learned), or `package.module:Class`, called with the numbers and
    `horizon_every`. Null uses fixed for one number and stepwise for several."""
    horizon_every: int = 100
    """Steps per stage; the minimum per stage for adaptive."""
    horizon_threshold: float = 0.8
    """adaptive: grow when the mean success reaches this value, above 0 and at most 1."""
    horizon_patience: int = 50
    """adaptive: also grow when the mean success has not risen for this many steps."""
    horizon_window: int = 10
    """adaptive: number of steps over which the mean success is taken."""
    async_steps: int = 0
    """1 collects the next step's episodes while the current step trains. They are one update old,
    which `importance_sampling_correction` corrects and the metric `staleness` reports. The engine
    then keeps a copy of the weights. 0 alternates between collecting and training."""
    oversampling_ratio: float = 0.0
    """Share of additional groups that are started; the first groups to finish are used. Runs are
    then not reproducible, because finishing depends on time. See `unfinished_groups`."""
    unfinished_groups: Literal["drop", "carry"] = "drop"
    """What happens to the other groups: `drop` discards them, which biases training towards short
    episodes; `carry` pauses them during the update and continues them in the next step."""
    task_sampling: Literal["uniform", "contrast"] = "uniform"
    """`uniform` goes through all tasks in a random order, again and again. `contrast` draws tasks
    by how often their recent groups, and those of their category, were informative: had episodes
    with different returns."""
    resampling_ratio: float = 0.0
    """Budget of further groups per step, as a share of prompts_per_step: they replace groups that
    are not informative (dynamic sampling, arXiv:2503.14476). 0 trains on every group."""
    max_staleness: int = 4
    """A carried group whose first token is more updates old than this is dropped and counted."""

    algorithm: str = "grpo"
    """Name of the advantage estimator, or `package.module:Class`."""
    algorithm_args: dict[str, Any] = field(default_factory=dict)
    """Fields of the algorithm's dataclass."""
    train_outcomes: list[str] = field(default_factory=lambda: sorted(TEACHES))
    """Outcomes whose episodes are trained on: success, failure, horizon, world_limit, token_budget
    and policy_timeout. Others are excluded from the loss and from baselines, as lost ones are."""
    importance_sampling_correction: Literal["auto", "off", "token", "geometric"] = "auto"
    """Weight sampled tokens by the trainer's probability over the engine's: per `token`, or also
    excluding the episodes whose mean differs too much (`geometric`). auto uses token for engines
    that compute differently."""
    importance_sampling_cap: float = 3.0
    """Maximum importance weight of a token."""
    importance_sampling_band: float = 1.05
    """With `geometric`, an episode is excluded if the geometric mean of its tokens' weights is
    above this or below its inverse."""
    prompts_per_step: int = 8
    """P: tasks per step, over all processes. A step is a rollout and the updates with it."""
    num_generations: int = 8
    """G: episodes per task."""
    minibatches_per_rollout: int = 1
    """Mini-batches that a rollout is divided into, with as many episodes in each. Every mini-batch
    is one optimizer step. With a single update per rollout the importance ratio is 1, and clipping
    has no effect."""
    epochs_per_rollout: int = 1
    """How often a rollout's mini-batches are used."""
    steps: int = 300
    """Steps of the run: rollouts, each with its updates."""
    beta: float = 0.0
    """Weight of the KL divergence from the initial policy; above 0 keeps a reference model."""
    reset_reference_every: int = 0
    """Every so many steps the current policy becomes the reference of the KL divergence; 0 keeps
    the initial policy. Not with LoRA or DeepSpeed."""
    entropy_bonus: float = 0.0
    """Weight of the mean entropy of the trained tokens (in nats), which is maximized."""
    entropy_floor: float | None = None
    """The entropy bonus applies only after a step whose mean entropy is below this; null always
    applies it."""
    overlong_tokens: int = 0
    """DAPO's soft penalty on long episodes: the return falls linearly over the last
    `overlong_tokens` before `max_tokens`, by 1 at `max_tokens`. 0 has no penalty."""
    max_lost_rate: float = 0.5
    """The run stops if a step loses more than this share of its episodes."""

    keep_tokens: Literal["none", "sample", "all"] = "sample"
    """Which token ids `agentgym view` can show: those of each step's first group (`sample`), of
    `all` episodes, or of `none`. Per-turn advantages are kept unless it is none."""

    def __post_init__(self) -> None:
        if isinstance(self.horizon, int):
            object.__setattr__(self, "horizon", [self.horizon])
        self.check_common()
        if self.temperature == 0:
            raise ConfigError("temperature must be above 0 in RL; 0 is greedy")
        self._check_envs()
        trained_outcomes(self.train_outcomes)
        self._check_sampling()
        if self.max_staleness < 1 + self.async_steps:
            raise ConfigError(
                f"max_staleness is at least {1 + self.async_steps} updates, got "
                f"{self.max_staleness}: every carried group would be dropped"
            )

    def _check_sampling(self) -> None:
        if self.resampling_ratio and self.oversampling_ratio:
            raise ConfigError("resampling_ratio and oversampling_ratio cannot be combined")
        if self.overlong_tokens > self.max_tokens:
            raise ConfigError(
                f"overlong_tokens is at most max_tokens {self.max_tokens}, got "
                f"{self.overlong_tokens}"
            )
        if self.entropy_floor is not None and not self.entropy_bonus:
            raise ConfigError("entropy_floor needs entropy_bonus, the weight that it switches")
        if self.reset_reference_every and self.lora:
            raise ConfigError("reset_reference_every needs a full fine-tuning: unset lora")
        if self.reset_reference_every and not (self.beta or self.algorithm_args.get("beta")):
            raise ConfigError("reset_reference_every needs beta, the weight of the KL divergence")

    def _check_envs(self) -> None:
        if not self.envs and self.env_sampling != "weight":
            raise ConfigError("env_sampling chooses among several environments; set envs")
        if self.oversampling_ratio and len(self.envs) > 1:
            raise ConfigError(
                "oversampling_ratio cannot be combined with envs: the groups that finish first "
                "would be those of the environments with short episodes"
            )
        horizons = {world.env: world.stages or self.stages for world in self.envs}
        # A single number fits any schedule if another environment has stages.
        is_staged = any(len(stages) > 1 for stages in horizons.values())
        self.make_horizon(self.stages if is_staged else ())
        for env, stages in horizons.items():
            try:
                self.make_horizon(stages)
            except ConfigError as error:
                raise ConfigError(f"{env} in envs: {error}") from error

    @property
    def stages(self) -> list[int]:
        """The horizon of each stage, in turns."""
        return stages_of(self.horizon)

    @property
    def trained_on(self) -> tuple[str, list[int]]:
        """(split, horizon of each stage) of the training."""
        return self.split, self.stages

    @property
    def samples_stale(self) -> bool:
        """Whether a step may train on episodes of older weights."""
        return self.async_steps > 0 or (
            self.oversampling_ratio > 0 and self.unfinished_groups == "carry"
        )

    @property
    def episodes_per_step(self) -> int:
        """B = P * G."""
        return self.prompts_per_step * self.num_generations

    def make_horizon(self, stages: Sequence[int] = ()) -> Horizon:
        """A new schedule, as the `horizon` fields describe it, with these stages or its own.

        One of several environments may have a fixed horizon under any of our schedules.
        """
        is_fixed = bool(self.envs) and len(stages) == 1 and self.horizon_schedule in SCHEDULES
        return make_horizon(
            stages or self.stages,
            self.horizon_every,
            None if is_fixed else self.horizon_schedule,
            threshold=self.horizon_threshold,
            patience=self.horizon_patience,
            window=self.horizon_window,
        )

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps per rollout."""
        return self.minibatches_per_rollout * self.epochs_per_rollout

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if a step cannot be divided among this many processes."""
        check_divides(self, "prompts_per_step", processes)
        if self.episodes_per_step // processes % self.minibatches_per_rollout:
            raise ConfigError(
                f"the {self.episodes_per_step // processes} episodes of a process cannot be "
                f"divided into {self.minibatches_per_rollout} mini-batches of equal size; change "
                "minibatches_per_rollout, prompts_per_step or num_generations"
            )
