"""RunConfig: the settings that every training method shares."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any, ClassVar, Final

from agentgym_env.errors import ConfigError
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import check_number
from agentgym_train.config.engines import EngineSettings, engine_settings
from agentgym_train.config.files import user_path
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.trainer_args import check_trainer_args
from agentgym_train.config.worlds import World, read_worlds

ANOTHER_FOLDER: Final = "output_dir=FOLDER"
"""How to choose another run folder, in a command and in a config in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(PolicyConfig):
    """The fields that all methods share. Each is a key of the YAML file and an option."""

    trained_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of an entry of `envs` about the episodes that the method plays to learn from; empty if
    it plays none, and so needs no environment."""
    method: str
    """Training method: rl (the default), sft, dpo or evolve."""
    attention: str | None = None
    """Attention kernels of the update: sdpa, eager, flash_attention_2, ... Null uses
    FlashAttention on a GPU if its package is installed, else sdpa. Ignored on a CPU."""
    compile: bool = False
    """Compile the layers with torch.compile for the update. The first steps take longer."""
    env: str = ""
    """Id of the environment; `envs` names several. Optional for sft and dpo, which then run no
    evaluation."""
    envs: list[World] = field(default_factory=list)
    """Several environments instead of `env`, each with its own `servers`, `instruction`,
    `eval_split` and so on, or the run's. In RL the episodes of a group share theirs."""
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
    `wrapper: module:Class` and its keyword arguments. They change rewards and observations in
    training and evaluation; `success` and `score` remain the environment's own."""
    seed: int = 0
    """Seed for the order of the data, environments and sampling."""

    concurrency: int = 256
    """Maximum number of concurrent episodes, over all processes."""
    engine_concurrency: int = 0
    """Maximum number of turns that one process generates concurrently; 0 sets no limit."""
    env_concurrency: int = 0
    """Maximum number of concurrent environment calls per process; 0 sets no limit."""
    episode_timeout_s: float = 0.0
    """Time limit of an episode in seconds, including retries; 0 sets no limit. An episode that
    mostly waited for the policy ends as policy_timeout and is trained on; others are lost."""
    retries: int = 2
    """Retries of an episode whose environment or engine was lost."""
    engine: str = "hf"
    """Generation engine: `hf` (the trainer's own model), `vllm_colocate` (on the trainer's device)
    or `vllm_server` (over HTTP)."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine, such as `{servers: [http://host:8000]}`."""

    max_tokens_per_microbatch: int = 0
    """Maximum tokens, including padding, of one forward and backward pass per process; a longer
    episode has its own pass. 0 uses 4096 on a CPU and 16384 on a GPU. The gradient does not depend
    on it."""
    learning_rate: float = 1e-6
    """Peak learning rate."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises; the first step has a learning rate of 0. In RL a
    step is a rollout with all its updates."""
    lora: dict[str, Any] | None = None
    """Train LoRA adapters: fields of PEFT's LoraConfig, such as `{r: 16}`. The saved model is the
    adapters, with the embeddings of new tokens, if any. Null trains all weights."""
    trainer_args: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the method's TRL config, by TRL's names."""
    save_every: int = 50
    """Steps between checkpoints; in RL a step is a rollout with all its updates."""

    eval_split: str = "test"
    """Held-out split that is evaluated before and after training."""
    eval_horizon: int = 0
    """Maximum turns per evaluation episode; 0 uses the (last) training horizon."""
    eval_samples: int = 1
    """Episodes per held-out task."""
    eval_per_category: int = 0
    """Evaluate only this many tasks per category; 0 evaluates all."""
    eval_temperature: float = 1.0
    """Sampling temperature in evaluation; 0 is greedy."""
    eval_before: bool = True
    """Evaluate before training."""
    eval_after: bool = True
    """Evaluate after training."""

    def check_common(self) -> None:
        """Raise `ConfigError` for an invalid value of a shared field."""
        worlds = read_worlds(self.envs, self.method, self.trained_keys)
        object.__setattr__(self, "envs", worlds)
        if self.envs and (self.env or self.env_kwargs or self.servers):
            raise ConfigError(
                "both are set: name the environments with envs, or one with env, env_kwargs and "
                "servers"
            )
        PolicyConfig.__post_init__(self)
        self.engine_settings()
        named_wrappers(self.wrappers)
        self.check_policy()
        for name, value in (self.lora or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_number(f"lora.{name}", value, minimum=1 if name == "r" else 0)
        check_trainer_args(self.method, self.trainer_args)
        for name, value in self.trainer_args.items():
            if isinstance(value, float):  # TRL gives a meaning to some negative numbers
                check_number(f"trainer_args.{name}", value, minimum=-inf)
        if self.dtype == "float16":
            raise ConfigError("dtype float16 cannot be trained; use float32 or bfloat16")
        if self.dtype == "bfloat16" and self.compute_dtype == "float32":
            raise ConfigError("compute_dtype float32 needs dtype float32, got dtype bfloat16")

    def check_required(self) -> None:
        """Raise `ConfigError` if the model, the run folder or a needed environment is missing."""
        missing = [name for name in ("model", "output_dir") if not getattr(self, name)]
        if self.trained_keys and not (self.env or self.envs):
            missing.append("env")
        if missing:
            raise ConfigError(f"invalid config: missing {' and '.join(missing)}")

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if a step cannot be divided among this many processes."""
        raise NotImplementedError

    def collect_command(self) -> str:
        """The command that collects an expert's episodes with this config's prompt.

        Before an evaluation on the paper's tasks these are of the paper's training tasks.
        """
        envs = [self.env, *(world.env for world in self.envs)]
        words = ["agentgym", "collect", "--env", next(filter(None, envs), "ID")]
        words += ["--policy", "expert"]
        if self.eval_split.startswith("paper"):
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
        split, stages = self.trained_on
        return [
            replace(
                world,
                env=world.known_id,
                wrappers=self.wrappers if world.wrappers is None else world.wrappers,
                instruction=self.instruction if world.instruction is None else world.instruction,
                split=world.split or split,
                horizon=world.stages or stages,
                eval_split=world.eval_split or self.eval_split,
                eval_horizon=(
                    world.eval_horizon or self.eval_horizon or (world.stages or stages)[-1]
                ),
                eval_samples=world.eval_samples or self.eval_samples,
                eval_per_category=world.eval_per_category or self.eval_per_category,
            )
            for world in given
        ]

    @property
    def instructions(self) -> dict[str, str]:
        """Environment -> its system prompt, of the entries of `envs` that have one."""
        return {w.known_id: w.instruction for w in self.envs if w.instruction is not None}

    @property
    def trained_on(self) -> tuple[str, list[int]]:
        """(split, horizon of each stage) of the episodes that are played to learn from, if any."""
        return "", []

    def computes_in(self, *, on_gpu: bool) -> str:
        """The data type of forward passes."""
        return self.compute_dtype or ("bfloat16" if on_gpu else self.dtype)

    def engine_settings(self) -> EngineSettings:
        """The settings of the engine, checked."""
        return engine_settings(self.engine, self.engine_args)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


def check_divides(config: RunConfig, name: str, processes: int) -> None:
    """Raise `ConfigError` if a size of a step is not divisible by the number of processes."""
    value = getattr(config, name)
    if value % processes:
        raise ConfigError(
            f"{name} {value} is not divisible by {processes} processes; make it a multiple of them"
        )


def not_sampled(config: RunConfig) -> None:
    """Raise `ConfigError` if a method that samples only in evaluation is given a temperature."""
    if config.temperature != 1.0:
        raise ConfigError(
            f"method {config.method} samples only in evaluation; set eval_temperature instead of "
            "temperature"
        )


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
