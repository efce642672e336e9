"""The settings of training on recorded episodes: SFT, DPO and AgentEvol."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Literal

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import AboveZero, Count, NonNegative, Positive
from agentgym_train.config.episodes import EpisodeFilter, PairRules
from agentgym_train.config.policy import HORIZON
from agentgym_train.config.run import RunConfig, check_data
from agentgym_train.config.worlds import EXPLORED_KEYS, World


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(RunConfig):
    """The fields of the methods that learn from recorded episodes."""

    step_size: ClassVar[str] = "rows_per_step"
    data: list[str]
    """Run folders, or files in one of the formats of `agentgym export`."""
    epochs: AboveZero = 1.0
    """Passes over the data, of AgentEvol in each iteration."""
    steps: Count = 0
    """Optimizer steps, of AgentEvol in each iteration; 0 derives them from `epochs`."""
    learning_rate: NonNegative = 1e-5
    """Peak learning rate."""

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if data is missing, or a step indivisible by the processes."""
        RunConfig.check_processes(self, processes)
        if self.data or not self.trained_keys:
            check_data(self.data, self.collect_command())

    def steps_of(self, rows: int) -> int:
        """Optimizer steps of a run over this many rows, or pairs."""
        return self.steps or max(1, round(self.epochs * rows / getattr(self, self.step_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig(DataConfig):
    """Settings of supervised fine-tuning on the responses of recorded episodes."""

    method: Literal["sft"] = "sft"  # type: ignore[mutable-override]
    success: bool = True
    """Use only episodes that solved their task."""
    min_reward: float | None = None
    """Use only episodes with at least this reward."""
    min_turns: Count = 1
    """Use only episodes with at least this many turns."""
    max_turns: Positive | None = None
    """Use only episodes with at most this many turns; null sets no limit."""
    unique: bool = True
    """Of episodes with the same task and the same actions, use only the first."""

    rows_per_step: Positive = 16
    """Rows of tokens per optimizer step, over all processes. An episode is one row, unless the
    agent started new contexts."""
    shuffle: bool = True
    """Shuffle the rows in each epoch; false keeps their order (a curriculum)."""
    packing: bool | None = None
    """Concatenate several rows into one without attention between them. Null does so where the
    attention kernel supports it (FlashAttention); true always; false never. The loss is the same.
    """

    def __post_init__(self) -> None:
        self.check_common()
        _ = self.keep

    @property
    def keep(self) -> EpisodeFilter:
        """Which episodes are used."""
        names = ("success", "min_reward", "min_turns", "max_turns", "unique")
        return EpisodeFilter(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOConfig(DataConfig):
    """Settings of DPO on pairs of recorded episodes with the same start."""

    step_size: ClassVar[str] = "pairs_per_step"
    method: Literal["dpo"] = "dpo"  # type: ignore[mutable-override]
    shorter: bool = False
    """Of two successes, prefer the one with fewer turns. A success is always preferred to an
    episode without success."""
    reward_gap: AboveZero | None = None
    """Prefer the episode whose reward is higher by at least this, between two successes or two
    episodes without success; this comes before `shorter`. Null does not compare rewards."""
    pairs_per_start: Count = 4
    """Maximum number of pairs per start (task and seed); 0 uses all."""

    beta: AboveZero = 0.1
    """Strength of the regularization towards the initial policy."""
    pairs_per_step: Positive = 16
    """Pairs per optimizer step, over all processes."""
    learning_rate: NonNegative = 5e-7
    """Peak learning rate."""

    def __post_init__(self) -> None:
        self.check_common()
        _ = self.pair_rules

    @property
    def pair_rules(self) -> PairRules:
        """When one episode is preferred to another."""
        return PairRules(self.shorter, self.reward_gap, self.pairs_per_start or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvolConfig(DataConfig):
    """Settings of AgentEvol (arXiv:2406.04151): explore, select, and fine-tune the base policy.

    The first iteration learns from the demonstrations. Each further one explores every environment
    with the previous policy, and learns from the selected episodes and the demonstrations.
    """

    trained_keys: ClassVar[frozenset[str]] = EXPLORED_KEYS
    method: Literal["evolve"] = "evolve"  # type: ignore[mutable-override]
    data: list[str] = field(default_factory=list)
    """Demonstrations: run folders, or files in one of the formats of `agentgym export`. Without
    demonstrations the base policy explores first."""
    iterations: Positive = 4
    """Iterations of exploring and learning, after the demonstrations."""
    samples: Positive = 3
    """Episodes per explored task."""
    temperature: NonNegative = 1.2
    """Sampling temperature of exploration."""
    split: str = "train"
    """Split whose tasks are explored."""
    horizon: Positive = HORIZON
    """Maximum turns per episode."""
    per_task: Count = 1
    """Maximum number of selected episodes per task and iteration; 0 uses all that differ."""
    merge: Literal["data", "all", "none"] = "data"
    """What new episodes are combined with: the demonstrations (`data`, as in the paper), also the
    episodes of all earlier iterations (`all`), or nothing (`none`)."""
    from_base: bool = True
    """Start each iteration from the base policy, as in the paper; false continues from the current
    one."""

    rows_per_step: Positive = 32
    """Rows of tokens per optimizer step, over all processes."""
    packing: bool | None = None
    """As in `method: sft`."""

    def __post_init__(self) -> None:
        self.check_common()
        staged = [
            world.env
            for world in self.envs
            if len(world.stages) > 1 or isinstance(world.horizon, dict)
        ]
        if staged:
            raise ConfigError(f"{staged[0]} in envs: horizon is one number with method evolve")

    def horizon_in(self, world: World) -> list[int]:
        """The horizon of the exploration of a world."""
        return world.stages or [self.horizon]

    def keep_of(self, world: World) -> EpisodeFilter:
        """Which explored episodes are selected."""
        return EpisodeFilter(
            success=world.min_reward is None, min_reward=world.min_reward, unique=True
        )

    def sft_config(
        self, model: str, output_dir: str, *, evaluates_before: bool = False
    ) -> SFTConfig:
        """The settings of the SFT run of an iteration; the first one evaluates the base policy."""
        shared = {f.name for f in fields(SFTConfig)} & {f.name for f in fields(self)}
        own = {"method", "env", "env_kwargs", "servers", "temperature"}
        values = {name: getattr(self, name) for name in shared - own}
        values |= {
            "model": model,
            "output_dir": output_dir,
            "data": self.data or ["explored"],
            "envs": [world.only_evaluated() for world in self.worlds],
            "eval": replace(self.eval, before=self.eval.before and evaluates_before),
        }
        name = f"{Path(self.output_dir).name}-{Path(output_dir).name}"
        values["trainer_args"] = {"run_name": name, **self.trainer_args}
        return SFTConfig(**values)
