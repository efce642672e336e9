"""The config of each training method: RL, SFT, DPO and AgentEvol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from agentgym_env.errors import TEACHES, BadRequest
from agentgym_env.registration import full_id
from agentgym_train.config.base import (
    RunConfig,
    at_least,
    check_data,
    check_trl_names,
    converted,
    read_values,
)
from agentgym_train.config.reading import refuse_unknown
from agentgym_train.config.values import EpisodeFilter, PairRules, trained_outcomes
from agentgym_train.horizon import Horizon, ScheduleName, make_horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class RLConfig(RunConfig):
    """One RL run. Every field is a key of the YAML file and an option of the command line."""

    method: Literal["rl"] = "rl"  # type: ignore[mutable-override]
    env: str
    """Id of the environment."""
    split: str = "train"
    """Split whose tasks are trained on."""

    horizon: list[int] = field(default_factory=lambda: [30])
    """Most turns of an episode: one number, or several that rise from stage to stage."""
    horizon_schedule: ScheduleName | None = None
    """How the horizon goes from number to number: `stepwise` (ScalingInter: it jumps), `linear`
    (it climbs), or `adaptive` (it jumps when the present number is learned); `fixed` for one
    number. Null takes fixed for one number and stepwise for several."""
    horizon_every: int = 100
    """Optimizer steps from one number to the next; adaptive: the fewest."""
    horizon_threshold: float = 0.8
    """Adaptive: grow when the mean success reaches this, above 0 and up to 1."""
    horizon_patience: int = 50
    """Adaptive: grow, too, when the mean success has not risen for so many steps."""
    horizon_window: int = 10
    """Adaptive: the mean success is over so many steps."""
    temperature: float = 1.0
    """Of sampling, in training."""
    steps_ahead: int = 0
    """1 plays the next step's episodes while this one trains: they are one update old, which
    `engine_correction` weighs, and `staleness` shows. The engine then has a copy of the weights.
    0 plays and trains in turns."""
    oversample: float = 0.0
    """Play this share more groups than a step needs, and use the first to be complete. Which those
    are depends on the clock, so a run is not repeatable. See `stragglers`."""
    stragglers: Literal["drop", "carry"] = "drop"
    """What becomes of the groups that `oversample` leaves over: `drop` them, which biases training
    towards short episodes, or let them rest during the update and `carry` them into the next step.
    """
    max_staleness: int = 4
    """A carried group whose first token is more updates old is dropped and counted."""

    algorithm: str = "grpo"
    """Name of the advantage estimator, or `package.module:Class`."""
    algorithm_args: dict[str, Any] = field(default_factory=dict)
    """Fields of the algorithm's dataclass."""
    train_outcomes: list[str] = field(default_factory=lambda: sorted(TEACHES))
    """Endings whose episodes train: success, failure, horizon, token_budget and policy_timeout. One
    that is left out is in no loss and no baseline. A lost episode never trains."""
    engine_correction: Literal["auto", "off", "token", "sequence"] = "auto"
    """Weigh what the engine sampled by the trainer's probability over the engine's: by `token`, or
    leaving out whole episodes (`sequence`). auto is token for engines that compute differently."""
    engine_correction_max: float = 3.0
    """Most that a weight may be."""
    prompts_per_step: int = 8
    """P: tasks an optimizer step looks at, over all processes."""
    group_size: int = 8
    """G: episodes of the same start."""
    steps: int = 300
    """Optimizer steps of the run."""
    kl: float = 0.0
    """Weight of the KL divergence from the starting policy; above 0 keeps a second model."""
    max_lost_rate: float = 0.5
    """Above this share of lost episodes in a step the run stops."""

    keep_tokens: Literal["none", "sample", "all"] = "sample"
    """Keep the tokens of the first group of each step (`sample`), of `all` episodes, or of none,
    for `agentgym view`; advantages of all turns are kept but for `none`."""

    def __post_init__(self) -> None:
        self.check_common()
        self.make_horizon()
        trained_outcomes(self.train_outcomes)
        at_least(1, prompts_per_step=self.prompts_per_step, steps=self.steps)
        at_least(0, oversample=self.oversample)
        if self.engine_correction_max < 1:
            raise BadRequest(
                f"engine_correction_max is at least 1, got {self.engine_correction_max}"
            )
        if self.group_size < 2:
            raise BadRequest(
                f"group_size is at least 2, got {self.group_size}: an episode is judged by the "
                "others of its start"
            )
        if self.steps_ahead not in (0, 1):
            raise BadRequest(f"steps_ahead is 0 or 1, got {self.steps_ahead}")
        if self.max_staleness < 1 + self.steps_ahead:
            raise BadRequest(
                f"max_staleness is at least {1 + self.steps_ahead} updates, got "
                f"{self.max_staleness}: no carried group could be younger"
            )
        if not 0 <= self.max_lost_rate <= 1:
            raise BadRequest(f"max_lost_rate is a share from 0 to 1, got {self.max_lost_rate}")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run plays."""
        return self.split, self.eval_split

    @property
    def samples_stale(self) -> bool:
        """Whether a step may train on what older weights sampled."""
        return self.steps_ahead > 0 or (self.oversample > 0 and self.stragglers == "carry")

    @property
    def episodes_per_step(self) -> int:
        """B = P * G."""
        return self.prompts_per_step * self.group_size

    @property
    def fixed_eval_horizon(self) -> int:
        """The horizon of every evaluation of the run."""
        return self.eval_horizon or self.horizon[-1]

    def make_horizon(self) -> Horizon:
        """A new schedule, as the `horizon` fields describe it."""
        return make_horizon(
            self.horizon,
            self.horizon_every,
            self.horizon_schedule,
            threshold=self.horizon_threshold,
            patience=self.horizon_patience,
            window=self.horizon_window,
        )

    def check_processes(self, processes: int) -> None:
        """Raise `BadRequest` if a step does not divide among so many processes."""
        if self.prompts_per_step % processes:
            raise BadRequest(
                f"prompts_per_step {self.prompts_per_step} does not divide among {processes} "
                "processes, and a group stays whole on one; make it a multiple of them"
            )


def config_from(values: Mapping[str, Any]) -> RLConfig:
    """A config from plain values; raises `BadRequest` on an unknown key or a wrong type."""
    method = values.get("method", "rl")
    if method != "rl":
        raise BadRequest(f"an RL config is needed here, and this is one of method {method}")
    return converted(values, RLConfig)


def read_config(path: Path, overrides: Sequence[str] = ()) -> RLConfig:
    """A YAML file of values, with `key=value` words laid over it."""
    return config_from(read_values(path, overrides))


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig(RunConfig):
    """One SFT run: the policy learns to say what the episodes of `data` say."""

    method: Literal["sft"] = "sft"  # type: ignore[mutable-override]
    data: list[str]
    """Run folders, or files of episodes in one of the formats of `agentgym export`."""
    success: bool = True
    """Learn from episodes that solved their task, and from no others."""
    least_reward: float | None = None
    """Learn from episodes with at least this reward."""
    least_turns: int = 1
    most_turns: int | None = None
    """Learn from episodes with so many turns; null sets no limit."""
    unique: bool = True
    """Of episodes with the same task and the same actions learn from the first alone."""

    rows_per_step: int = 16
    """Rows of tokens that an optimizer step looks at, over all processes: an episode each, unless
    its context was cut."""
    epochs: float = 1.0
    """How often each row is looked at."""
    steps: int = 0
    """Optimizer steps; 0 takes as many as `epochs` are."""
    shuffle: bool = True
    """Draw the rows of each epoch in a new order; false takes them as they come (a curriculum)."""
    packing: bool | None = None
    """Lay several rows out in one, each apart from the others: null where the attention kernel is
    made for it (FlashAttention), true elsewhere too, false nowhere. The loss is the same."""
    learning_rate: float = 1e-5
    eval_horizon: int = 30

    def __post_init__(self) -> None:
        self.check_common()
        at_least(1, rows_per_step=self.rows_per_step, eval_horizon=self.eval_horizon)
        at_least(0, steps=self.steps)
        _ = self.keep
        if self.epochs <= 0:
            raise BadRequest(f"epochs is above 0, got {self.epochs:g}")
        check_trl_names(
            self.trl,
            packing="packing",
            padding_free="packing",
            max_length="max_tokens",
            per_device_train_batch_size="rows_per_step",
            gradient_accumulation_steps="tokens_per_forward",
            num_train_epochs="epochs",
            max_steps="steps",
        )

    def check_processes(self, processes: int) -> None:
        """Raise `BadRequest` where a step does not divide among so many processes."""
        if self.rows_per_step % processes:
            raise BadRequest(
                f"rows_per_step {self.rows_per_step} does not divide among {processes} processes; "
                "make it a multiple of them"
            )
        check_data(self.data)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run plays."""
        return (self.eval_split,)

    @property
    def keep(self) -> EpisodeFilter:
        """Which episodes are learned from."""
        return EpisodeFilter(
            success=self.success,
            least_reward=self.least_reward,
            least_turns=self.least_turns,
            most_turns=self.most_turns,
            unique=self.unique,
        )

    def steps_of(self, rows: int) -> int:
        """Optimizer steps of a run over so many rows."""
        return self.steps or max(1, round(self.epochs * rows / self.rows_per_step))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One of the environments of a run. What is null or 0 is as it is for the whole run."""

    env: str
    """Id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Its own settings, for the local server."""
    servers: list[str] = field(default_factory=list)
    """Addresses of running servers; none starts a local one."""
    split: str = "train"
    """Split whose tasks are explored."""
    tasks: int = 0
    """Tasks explored in each iteration, drawn anew; 0 takes all of the split."""
    horizon: int = 0
    """Most turns of an episode, in exploration and evaluation."""
    least_reward: float | None = None
    """Learn from episodes with at least this reward, solved or not; null takes solved ones."""
    weight: float = 1.0
    """How often its rows come in an epoch: 2 is twice, 0.5 is every other one."""
    eval_split: str = ""

    def __post_init__(self) -> None:
        at_least(0, tasks=self.tasks, horizon=self.horizon)
        if self.weight <= 0:
            raise BadRequest(f"weight is above 0, got {self.weight:g}; leave {self.env} out for 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvolConfig(RunConfig):
    """One AgentEvol run (arXiv:2406.04151): explore, keep what was good, learn it from the base.

    Iteration 0 learns the demonstrations of `data`. Each further one explores every environment
    with the policy of the one before, and learns what was kept together with the demonstrations.
    """

    method: Literal["evolve"] = "evolve"  # type: ignore[mutable-override]
    envs: list[World] = field(default_factory=list)
    """The environments; `env: ID` (with env_kwargs and servers) is short for one."""
    data: list[str] = field(default_factory=list)
    """Demonstrations: run folders, or files in one of the formats of `agentgym export`. Without any
    the first exploration is the base policy's."""
    iterations: int = 4
    """How often is explored and learned, after the demonstrations."""
    samples: int = 3
    """Episodes of each explored task."""
    temperature: float = 1.2
    """Of sampling, in exploration."""
    horizon: int = 30
    """Most turns of an episode."""
    per_task: int = 1
    """Most episodes of one task that an iteration learns from, the first that are good; 0 takes
    all that differ."""
    merge: Literal["data", "all", "none"] = "data"
    """What new episodes are learned together with: the demonstrations (`data`, as in the paper),
    those and the episodes of all earlier iterations (`all`), or nothing."""
    from_base: bool = True
    """Learn from the base policy in every iteration, as the paper does, which keeps it from
    drifting; false goes on from the present one."""

    rows_per_step: int = 32
    """Rows of tokens that an optimizer step looks at, over all processes."""
    epochs: float = 1.0
    """How often an iteration looks at each row."""
    steps: int = 0
    """Optimizer steps of each iteration; 0 takes as many as `epochs` are."""
    packing: bool | None = None
    """As in `method: sft`."""
    learning_rate: float = 1e-5

    def __post_init__(self) -> None:
        self.check_common()
        at_least(
            1,
            iterations=self.iterations,
            samples=self.samples,
            horizon=self.horizon,
            rows_per_step=self.rows_per_step,
        )
        at_least(0, per_task=self.per_task, steps=self.steps)
        if self.epochs <= 0:
            raise BadRequest(f"epochs is above 0, got {self.epochs:g}")
        if bool(self.env) == bool(self.envs):
            raise BadRequest("name the environments with envs, or one with env")
        names = [world.env for world in self.worlds]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadRequest(f"{twice[0]} is among envs twice; give it a higher weight instead")
        check_trl_names(
            self.trl,
            packing="packing",
            padding_free="packing",
            max_length="max_tokens",
            per_device_train_batch_size="rows_per_step",
            gradient_accumulation_steps="tokens_per_forward",
            num_train_epochs="epochs",
            max_steps="steps",
        )

    def check_processes(self, processes: int) -> None:
        """Raise `BadRequest` where a step does not divide among so many processes."""
        if self.rows_per_step % processes:
            raise BadRequest(
                f"rows_per_step {self.rows_per_step} does not divide among {processes} processes; "
                "make it a multiple of them"
            )
        if self.data:
            check_data(self.data)

    @property
    def worlds(self) -> list[World]:
        """The environments, what they leave open filled in."""
        given = self.envs or [World(env=self.env, env_kwargs=self.env_kwargs, servers=self.servers)]
        return [
            World(
                **{
                    **{f.name: getattr(world, f.name) for f in fields(World)},
                    # What runs elsewhere need not be known here.
                    "env": world.env if world.servers else full_id(world.env),
                    "horizon": world.horizon or self.horizon,
                    "eval_split": world.eval_split or self.eval_split,
                }
            )
            for world in given
        ]

    @property
    def splits(self) -> tuple[str, ...]:
        """Each environment has its own."""
        return ()

    def eval_horizon_of(self, world: World) -> int:
        """The one horizon at which an environment is evaluated."""
        return self.eval_horizon or world.horizon

    def keep_of(self, world: World) -> EpisodeFilter:
        """Which explored episodes are good."""
        return EpisodeFilter(
            success=world.least_reward is None, least_reward=world.least_reward, unique=True
        )

    def imitation(self, model: str, output_dir: str) -> SFTConfig:
        """What an iteration's learning is told."""
        shared = {f.name for f in fields(SFTConfig)} & {f.name for f in fields(self)}
        values = {name: getattr(self, name) for name in shared - {"method", "env", "env_kwargs"}}
        values |= {"model": model, "output_dir": output_dir, "servers": []}
        values |= {"data": self.data or ["explored"], "eval_horizon": self.horizon}
        return SFTConfig(**values)


def check_worlds(values: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for a key that an environment of `envs` does not have."""
    envs = values.get("envs")
    for world in envs if isinstance(envs, list) else []:
        if not isinstance(world, Mapping):
            raise BadRequest(
                f"envs holds {world!r}; write, say, `envs: [{{env: ID, horizon: 20}}]`"
            )
        refuse_unknown(" in envs", map(str, world), (f.name for f in fields(World)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOConfig(RunConfig):
    """One DPO run: of two episodes that began alike the policy learns to prefer the better."""

    method: Literal["dpo"] = "dpo"  # type: ignore[mutable-override]
    data: list[str]
    """Run folders, or files of episodes in one of the formats of `agentgym export`."""
    shorter: bool = False
    """Of two successes, prefer the one with fewer turns. A success is always preferred to what is
    none."""
    reward_gap: float | None = None
    """Of two that are no successes, prefer the one whose reward is higher by at least this; of two
    successes as well, before their turns are counted. Null leaves rewards aside."""
    pairs_per_start: int = 4
    """Most pairs of episodes of one task in one world; 0 takes all."""

    beta: float = 0.1
    """How strongly the policy is held to the one it started from."""
    pairs_per_step: int = 16
    """Pairs that an optimizer step looks at, over all processes."""
    epochs: float = 1.0
    """How often each pair is looked at."""
    steps: int = 0
    """Optimizer steps; 0 takes as many as `epochs` are."""
    learning_rate: float = 5e-7
    eval_horizon: int = 30

    def __post_init__(self) -> None:
        self.check_common()
        at_least(1, pairs_per_step=self.pairs_per_step, eval_horizon=self.eval_horizon)
        at_least(0, steps=self.steps, pairs_per_start=self.pairs_per_start)
        for name, value in (("epochs", self.epochs), ("beta", self.beta)):
            if value <= 0:
                raise BadRequest(f"{name} is above 0, got {value:g}")
        _ = self.pair_rules
        check_trl_names(
            self.trl,
            beta="beta",
            max_length="max_tokens",
            per_device_train_batch_size="pairs_per_step",
            gradient_accumulation_steps="tokens_per_forward",
            num_train_epochs="epochs",
            max_steps="steps",
        )

    def check_processes(self, processes: int) -> None:
        """Raise `BadRequest` where a step does not divide among so many processes."""
        if self.pairs_per_step % processes:
            raise BadRequest(
                f"pairs_per_step {self.pairs_per_step} does not divide among {processes} "
                "processes; make it a multiple of them"
            )
        check_data(self.data)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run plays."""
        return (self.eval_split,)

    @property
    def pair_rules(self) -> PairRules:
        """When one episode is preferred to another."""
        return PairRules(self.shorter, self.reward_gap, self.pairs_per_start or None)

    def steps_of(self, pairs: int) -> int:
        """Optimizer steps of a run over so many pairs."""
        return self.steps or max(1, round(self.epochs * pairs / self.pairs_per_step))


DEFAULT: Final = "rl"

CONFIGS: Final[Mapping[str, type[RunConfig]]] = {
    "rl": RLConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "evolve": AgentEvolConfig,
}


def method_config(values: Mapping[str, Any]) -> RunConfig:
    """The config of the method that the values name; without a name it is RL."""
    method = values.get("method", DEFAULT)
    if method not in CONFIGS:
        raise BadRequest(f"no method {method!r}; there are {', '.join(CONFIGS)}")
    if method == "evolve":
        check_worlds(values)
    return converted(values, CONFIGS[method])


def read_method_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """A YAML file of values for any method, with `key=value` words laid over it."""
    return method_config(read_values(path, overrides))


_RUNNERS: Final = {"evolve": "agentgym_train.agent_evol"}
"""Methods that are more than one training; the others are run by `agentgym_train.run`."""


def runner_of(config: RunConfig) -> Any:
    """The module that has `start` and `resume` of a config's method; torch loads with it."""
    return import_module(_RUNNERS.get(config.method, "agentgym_train.run"))
