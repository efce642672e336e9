"""RLConfig: the settings of an RL run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from agentgym_env.errors import TEACHES, ConfigError
from agentgym_train.config.checks import (
    AboveZero,
    AtLeastOne,
    Count,
    NonNegative,
    Positive,
    Settings,
    Share,
    Typed,
    chosen,
    object_of,
    shortest,
    type_of,
)
from agentgym_train.config.episodes import trained_outcomes
from agentgym_train.config.policy import HORIZON, RolloutLimits
from agentgym_train.config.run import RunConfig
from agentgym_train.config.worlds import TRAINED_KEYS, World
from agentgym_train.rollout.contrast import SAMPLERS, ContrastSampler
from agentgym_train.rollout.gates import GATES, AdmissionGate
from agentgym_train.rollout.horizon import (
    SCHEDULES,
    Turns,
    make_horizon,
    normal_horizon,
    stages_of,
)
from agentgym_train.rollout.samplers import TaskSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCorrection(Settings):
    """Sampled tokens keep the weight 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCorrection(Settings):
    """A weight for each token, at most `cap`."""

    cap: AtLeastOne = 3.0
    """Maximum importance weight of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricCorrection(TokenCorrection):
    """The same, without the episodes whose mean differs too much."""

    band: AtLeastOne = 1.05
    """An episode is excluded if the geometric mean of its tokens' weights is above this or below
    its inverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedCorrection(TokenCorrection):
    """The same, without the tokens where the policy has already moved as the advantage asks."""

    epsilon: AboveZero = 0.2
    """How far the policy may move from the one that sampled: a weight of 1 + epsilon, or of 1 -
    epsilon where the advantage is negative."""


CORRECTIONS: Final[dict[str, type[NoCorrection | TokenCorrection]]] = {
    "auto": TokenCorrection,
    "off": NoCorrection,
    "token": TokenCorrection,
    "geometric": GeometricCorrection,
    "clipped": ClippedCorrection,
}
"""Type of `importance_sampling` -> its settings."""


TYPES: Final[dict[str, tuple[str, Mapping[str, Any]]]] = {
    "algorithm": ("grpo", {}),  # its types are known where torch is loaded
    "sampler": ("uniform", SAMPLERS),
    "admission": ("all", GATES),
    "importance_sampling": ("auto", CORRECTIONS),
}
"""Setting with a type -> its default, and its types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RLLimits(RolloutLimits):
    """Limits of the episodes of RL."""

    max_lost_rate: Share = 0.5
    """The run stops if a step loses more than this share of its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig(RunConfig):
    """Settings of an RL run. Every field is a key of the YAML file and an option of the command."""

    trained_keys: ClassVar[frozenset[str]] = TRAINED_KEYS
    step_size: ClassVar[str] = "prompts_per_step"
    method: Literal["rl"] = "rl"  # type: ignore[mutable-override]
    split: str = "train"
    """Split whose tasks are trained on."""
    horizon: Turns = field(default_factory=lambda: [HORIZON])
    """Maximum turns per episode: one number; several, which grow every 100 steps; or a mapping with
    a `type`: `{type: stepwise, turns: [10, 20, 30], every: 100}` (ScalingInter-RL), `linear` with
    the same fields, `adaptive` (when the current horizon is learned) also with `threshold`,
    `patience` and `window`, or `package.module:Class`, called with the turns and further fields."""
    sampler: Typed = "uniform"
    """Which tasks are drawn: `uniform` goes through all in a random order, again and again;
    `contrast` draws those whose recent groups, or whose category's, were informative: had episodes
    with different returns; or `package.module:Class`, with further fields. `{type: contrast, tasks:
    true, envs: true}` also draws each of `envs` by its weight times the share of its recent groups
    that were informative."""
    admission: Typed = "all"
    """Which groups a step trains on: `all`; `informative` ones, whose episodes differ in return
    (dynamic sampling, arXiv:2503.14476); or `package.module:Class`. It plays others in place of
    the rest: `{type: informative, budget: 2}`."""
    max_policy_age: Count = 0
    """With 0, a step's episodes are played, then trained on, and every result follows from the
    seed; above 0, episodes run all the time, and groups whose oldest token is more than so many
    updates old are dropped and counted. The engine then gets new weights between turns, so it
    has weights of its own."""
    limits: RLLimits = field(default_factory=RLLimits)  # type: ignore[mutable-override]
    """Limits of the episodes."""

    algorithm: Typed = "grpo"
    """The advantage estimator: a name, `package.module:Class`, or a mapping with such a `type` and
    fields of the algorithm: `{type: ppo, lam: 0.95}`. `loss` changes its loss: `{type: grpo,
    loss: {epsilon: 0.3}}`, with kind, ratio, mean, epsilon, epsilon_high and delta."""
    train_outcomes: list[str] = field(default_factory=lambda: sorted(TEACHES))
    """Outcomes whose episodes are trained on: success, failure, horizon, world_limit, token_budget
    and policy_timeout. Others are excluded from the loss and from baselines, as lost ones are."""
    importance_sampling: Typed = "auto"
    """Weight sampled tokens by the trainer's probability over the engine's: `off`; `token`, at most
    `cap`; `geometric`, also excluding the episodes whose mean is outside `band`; `clipped`, also
    excluding tokens where the policy has moved by more than `epsilon` already; or `auto`, which is
    `clipped` with a `max_policy_age`, and else `token` for engines that compute differently.
    `{type: geometric, cap: 3, band: 1.05}`."""
    prompts_per_step: Positive = 8
    """P: tasks per step, over all processes. A step is a rollout and the updates with it."""
    num_generations: Annotated[int, msgspec.Meta(ge=2)] = 8
    """G: episodes per task."""
    minibatches_per_rollout: Positive = 1
    """Mini-batches that a rollout is divided into, with as many episodes in each. Every mini-batch
    is one optimizer step. With a single update per rollout the importance ratio is 1, and clipping
    has no effect."""
    epochs_per_rollout: Positive = 1
    """How often a rollout's mini-batches are used."""
    steps: Positive = 300
    """Steps of the run: rollouts, each with its updates."""
    beta: NonNegative = 0.0
    """Weight of the KL divergence from the initial policy; above 0 keeps a reference model."""
    entropy_bonus: NonNegative = 0.0
    """Weight of the mean entropy of the trained tokens (in nats), which is maximized."""
    overlong_tokens: Count = 0
    """DAPO's soft penalty on long episodes: the return falls linearly over the last
    `overlong_tokens` before `max_tokens`, by 1 at `max_tokens`. 0 has no penalty."""
    keep_tokens: Literal["none", "sample", "all"] = "sample"
    """Which token ids `agentgym view` can show: those of each step's first group (`sample`), of
    `all` episodes, or of `none`. Per-turn advantages are kept unless it is none."""

    def __post_init__(self) -> None:
        self.check_common()
        for name, (default, _) in TYPES.items():
            value = shortest(name, getattr(self, name), default)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "horizon", normal_horizon(self.horizon))
        _ = self.correction
        if self.temperature == 0:
            raise ConfigError("temperature must be above 0 in RL; 0 is greedy")
        self._check_envs()
        trained_outcomes(self.train_outcomes)
        if self.overlong_tokens > self.max_tokens:
            raise ConfigError(
                f"overlong_tokens is at most max_tokens {self.max_tokens}, got "
                f"{self.overlong_tokens}"
            )

    def _check_envs(self) -> None:
        # A class of the user's is made with the trainer.
        if ":" not in type_of(self.admission):
            object_of("admission", self.admission, GATES, AdmissionGate)
        if ":" not in type_of(self.sampler):
            sampler = object_of("sampler", self.sampler, SAMPLERS, TaskSampler, "next")
            if isinstance(sampler, ContrastSampler) and sampler.envs and not self.envs:
                raise ConfigError("sampler.envs draws from several environments; set envs")
        if not self.envs or isinstance(self.horizon, list):
            make_horizon(self.horizon)
        for world in self.envs:
            try:
                make_horizon(self.horizon_in(world))
            except ConfigError as error:
                raise ConfigError(f"{world.env} in envs: {error}") from error

    @property
    def correction(self) -> dict[str, Any]:
        """The importance sampling: kind, most, band and epsilon."""
        kind = type_of(self.importance_sampling)
        found = chosen("importance_sampling", self.importance_sampling, CORRECTIONS)
        values = asdict(found)
        if "cap" in values:
            values["most"] = values.pop("cap")
        return {"kind": "clipped" if kind == "auto" and self.max_policy_age else kind, **values}

    @property
    def stages(self) -> list[int]:
        """The horizon of each stage, in turns."""
        return stages_of(self.horizon)

    def horizon_in(self, world: World) -> list[int] | dict[str, Any]:
        """The schedule in a world: its own, its own numbers with the run's type, or the run's.

        A world with one number has a fixed horizon under any of our types.
        """
        own, run = world.horizon or self.horizon, normal_horizon(self.horizon)
        if not isinstance(own, list) or isinstance(run, list):
            return normal_horizon(own)
        is_fixed = len(own) == 1 and run["type"] in SCHEDULES
        return own if is_fixed else {**run, "turns": own}

    @property
    def episodes_per_step(self) -> int:
        """B = P * G."""
        return self.prompts_per_step * self.num_generations

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps per rollout."""
        return self.minibatches_per_rollout * self.epochs_per_rollout

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if a step cannot be divided among this many processes."""
        RunConfig.check_processes(self, processes)
        if self.episodes_per_step // processes % self.minibatches_per_rollout:
            raise ConfigError(
                f"the {self.episodes_per_step // processes} episodes of a process cannot be "
                f"divided into {self.minibatches_per_rollout} mini-batches of equal size; change "
                "minibatches_per_rollout, prompts_per_step or num_generations"
            )
