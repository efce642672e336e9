"""RunConfig: the settings that every training method shares."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Final

from agentgym_env.errors import ConfigError
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import (
    Count,
    NonNegative,
    Positive,
    Seed,
    check_keys,
    converted_value,
)
from agentgym_train.config.files import user_path
from agentgym_train.config.policy import HORIZON, PolicyConfig, RolloutLimits
from agentgym_train.config.trainer_args import allowed_in, check_argument, trackers_of
from agentgym_train.config.worlds import (
    EvalSettings,
    World,
    WorldEvalSettings,
    check_worlds,
)
from agentgym_train.rollout.horizon import stages_of

ANOTHER_FOLDER: Final = "output_dir=FOLDER"
"""How to choose another run folder, in a command and in a config in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(PolicyConfig):
    """The fields that all methods share. Each is a key of the YAML file and an option."""

    trained_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of an entry of `envs` about the episodes that the method plays to learn from; empty if
    it plays none, and so needs no environment."""
    step_size: ClassVar[str]
    """The key with the size of a step over all processes."""
    method: str
    """Training method: rl (the default), sft, dpo or evolve."""
    attention: str | None = None
    """Attention kernels of the update: sdpa, eager, flash_attention_2, ... Null uses
    FlashAttention on a GPU if its package is installed, else sdpa. Ignored on a CPU."""
    env: str = ""
    """Id of the environment; `envs` names several. Optional for sft and dpo, which then run no
    evaluation."""
    envs: list[World] = field(default_factory=list)
    """Several environments instead of `env`, each with its own `servers`, `instruction`, `eval`
    and so on, or the run's. In RL the episodes of a group share theirs."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, for the local server."""
    output_dir: str = ""
    """The run folder. An earlier run in it is moved aside."""
    servers: list[str] = field(default_factory=list)
    """Addresses of running environment servers. Empty starts a local server for this run."""
    token_file: str | None = None
    """File with the token that `servers` require. Null uses the environment variable
    AGENTGYM_TOKEN. The run folder contains the name of the file, never the token."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Gymnasium wrappers of the environment, innermost first: `module:Class`, or a mapping with
    `wrapper: module:Class` and its keyword arguments. `success` and `score` remain the
    environment's own."""
    turn_max_tokens: Count = 512  # type: ignore[assignment]
    """Maximum tokens that the policy samples per turn. 0 derives it from `data`: the longest
    demonstrated turn and half as much; without `data` it is the limit of the run that trained the
    model. Turns that reach it are counted as `cut_turns`."""
    seed: Seed = 0
    """Seed for the order of the data, environments and sampling."""

    concurrency: Positive = 256
    """Maximum number of concurrent episodes, over all processes."""
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    """Limits of the episodes."""

    max_tokens_per_microbatch: Count = 0
    """Maximum tokens, including padding, of one forward and backward pass per process; a longer
    episode has its own pass. 0 uses 4096 on a CPU and 16384 on a GPU. The gradient does not depend
    on it."""
    learning_rate: NonNegative = 1e-6
    """Peak learning rate."""
    lora: dict[str, Any] | None = None
    """Train LoRA adapters: fields of PEFT's LoraConfig, such as `{r: 16}`. The saved model is the
    adapters, with the embeddings of new tokens, if any. Null trains all weights."""
    trainer_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the method's TRL config, by TRL's names, such as `{warmup_steps: 10}`;
    in RL a step is a rollout with all its updates. `torch_compile` compiles the layers for the
    update, which makes the first steps slower."""
    save_every: Positive = 50
    """Steps between checkpoints; in RL a step is a rollout with all its updates."""

    eval: EvalSettings = field(default_factory=EvalSettings)
    """The evaluations before and after training."""

    def check_common(self) -> None:
        """Raise `ConfigError` for an invalid value of a shared field."""
        PolicyConfig.__post_init__(self)
        check_worlds(self.envs, self.method, self.trained_keys)
        if self.envs and (self.env or self.env_kwargs or self.servers):
            raise ConfigError(
                "both are set: name the environments with envs, or one with env, env_kwargs and "
                "servers"
            )
        named_wrappers(self.wrappers)
        self.check_policy()
        for name, value in (self.lora or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                converted_value(value, Positive if name == "r" else NonNegative, f"lora.{name}")
        self._check_trainer_args()
        if self.temperature != 1.0 and not self.trained_keys:
            raise ConfigError(
                f"method {self.method} samples only in evaluation; set eval: {{temperature: VALUE}}"
                " instead of temperature"
            )
        if self.dtype == "float16":
            raise ConfigError("dtype float16 cannot be trained; use float32 or bfloat16")
        if self.dtype == "bfloat16" and self.compute_dtype == "float32":
            raise ConfigError("compute_dtype float32 needs dtype float32, got dtype bfloat16")

    def _check_trainer_args(self) -> None:
        allowed, keys = allowed_in(self.method), [f.name for f in fields(self)]
        for name, value in self.trainer_args.items():
            check_argument(name, value, keys)
            kind = {"torch_compile": bool, "warmup_steps": NonNegative}.get(name, Any)
            converted_value(value, kind, f"trainer_args.{name}")
        check_keys(" in trainer_args", self.trainer_args, allowed)
        trackers_of(self.trainer_args)

    def check_required(self) -> None:
        """Raise `ConfigError` if the model, the run folder or a needed environment is missing."""
        missing = [name for name in ("model", "output_dir") if not getattr(self, name)]
        if self.trained_keys and not (self.env or self.envs):
            missing.append("env")
        if missing:
            raise ConfigError(f"invalid config: missing {' and '.join(missing)}")

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if a step cannot be divided among this many processes."""
        if (size := getattr(self, self.step_size)) % processes:
            raise ConfigError(
                f"{self.step_size} {size} is not divisible by {processes} processes; make it a "
                "multiple of them"
            )

    def collect_command(self) -> str:
        """The command that collects an expert's episodes with this config's prompt.

        Before an evaluation on the paper's tasks these are of the paper's training tasks.
        """
        envs = [self.env, *(world.env for world in self.envs)]
        words = ["agentgym", "collect", "--env", next(filter(None, envs), "ID")]
        words += ["--policy", "expert"]
        if self.eval.split.startswith("paper"):
            words += ["--split", "paper_train"]
        if self.instruction is not None:
            words += ["--instruction", self.instruction]
        if self.action_format != "plain":
            words += ["--action-format", self.action_format]
        return shlex.join(words)

    @property
    def worlds(self) -> list[World]:
        """The environments, with the run's values for what they leave open; none without one."""
        given = self.envs
        if self.env:
            given = [World(env=self.env, env_kwargs=self.env_kwargs, servers=self.servers)]
        return [self._complete(world) for world in given]

    def _complete(self, world: World) -> World:
        own, run, horizon = world.eval, self.eval, self.horizon_in(world)
        stages = stages_of(horizon)
        return replace(
            world,
            env=world.known_id,
            wrappers=self.wrappers if world.wrappers is None else world.wrappers,
            instruction=self.instruction if world.instruction is None else world.instruction,
            split=world.split or getattr(self, "split", ""),
            horizon=horizon,
            eval=WorldEvalSettings(
                split=own.split or run.split,
                horizon=own.horizon or run.horizon or (stages[-1] if stages else HORIZON),
                samples=own.samples or run.samples,
                per_category=own.per_category or run.per_category,
            ),
        )

    @property
    def instructions(self) -> dict[str, str]:
        """Environment -> its system prompt, of the entries of `envs` that have one."""
        return {w.known_id: w.instruction for w in self.envs if w.instruction is not None}

    def horizon_in(self, world: World) -> list[int] | dict[str, Any]:
        """The horizon of the episodes that are played in a world to learn from, if any."""
        return []

    @property
    def compiles(self) -> bool:
        """Whether the layers are compiled for the update."""
        return bool(self.trainer_args.get("torch_compile"))

    @property
    def trl_args(self) -> dict[str, Any]:
        """The arguments of TRL's config: `trainer_args` without what is done here."""
        return {name: v for name, v in self.trainer_args.items() if name != "torch_compile"}

    def computes_in(self, *, on_gpu: bool) -> str:
        """The data type of forward passes."""
        return self.compute_dtype or ("bfloat16" if on_gpu else self.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


def check_data(sources: Sequence[str], collect: str) -> None:
    """Raise `ConfigError` if a source in `data` is missing; `collect` shows how to make one."""
    if not sources:
        raise ConfigError("data is empty; name at least one run folder or file of episodes")
    for source in map(user_path, sources):
        if not source.is_file() and not (source / "run.json").is_file():
            raise ConfigError(
                f"no episodes in {source}: it is neither a run folder nor a file. To collect "
                f"some: {collect} --out {source}"
            )
