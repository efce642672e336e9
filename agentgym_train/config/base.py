"""RunConfig: the settings that every training method shares, and PolicyConfig within it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.engines import EngineSettings, GatewaySettings, engine_settings
from agentgym_train.config.trainer_args import check_trainer_args
from agentgym_train.config.values import (
    RolloutLimits,
    check_keys,
    check_number,
    check_numbers,
    check_types,
    local_path,
    merge,
    parse_overrides,
    read_yaml,
    starters,
    user_path,
)
from agentgym_train.rollout.agent import (
    AgentFactory,
    agent_factory,
    format_of,
    is_black_box,
)

_C = TypeVar("_C", bound="RunConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Describes a policy: the model, the conversation around it, and how it samples.

    Training, evaluation, collection and audit each take one.
    """

    model: str = ""
    """The model: a folder, a model id of the hub, `pip:PACKAGE`, or a small policy of this package,
    `starter:textcraft/warm_policy`. Evaluation and collection also take `expert`, `random`,
    `vllm:URL` and `openai:MODEL@URL`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the weights. With bfloat16 a model takes half the memory, but small updates are
    lost in training: use it with `lora`. float16 is for audits only."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of forward passes, in the trainer and in the hf engine. Null uses bfloat16 on a
    GPU and the data type of the weights on a CPU. For vLLM set `dtype` in `engine_args`."""
    instruction: str | None = None
    """System prompt. Null uses the environment's own instruction, "" uses none."""
    action_format: str = "plain"
    """How the policy writes an action: plain, react, act, or tools (native tool calls)."""
    agent: str = "plain"
    """How the conversation is built: `plain`; `react` or `act_only` (plain with that
    `action_format`); `plan_then_act`; `reflect` (after a failure, a reflection and a second trial);
    `window:K` (at most K exchanges in the context); `summary:K` (the policy summarizes every K
    exchanges); `package.module:Class`; or a black box, which uses the gateway: `command:PROGRAM
    ARGUMENTS`, `callable:package.module:function` or `external`. `max_tokens` limits each
    context."""
    gateway: dict[str, Any] = field(default_factory=dict)
    """Settings of the gateway of a black-box agent, such as `{port: 8100, calls: 50}`."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as `{enable_thinking: false}` for Qwen3."""
    keep_reasoning: bool = False
    """Keep the reasoning of earlier turns in the context where the chat template would drop it."""
    turn_max_tokens: int = 512
    """Maximum tokens that the policy samples per turn. Turns that reach it are counted as
    `cut_turns`; demonstrated turns must not be longer."""
    max_tokens: int = 8192
    """Maximum tokens per episode, including prompt and observations; per context if the agent
    starts new contexts."""
    temperature: float = 1.0
    """Sampling temperature of training rollouts, evaluation or collection; 0 is greedy, which RL
    cannot use."""

    def __new__(cls, *args: object, **values: object) -> Self:
        """Raise `ConfigError` for an unknown key, which `__init__` would report as a TypeError."""
        check_keys("", values, (f.name for f in fields(cls)))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        # Without `check_policy`, which may import an agent that a stored config names.
        check_numbers(self)
        check_types(self)
        reserved = sorted(_SET_BY_CHAT.intersection(self.chat_template_kwargs))
        if reserved:
            raise ConfigError(
                f"chat_template_kwargs.{reserved[0]} is not a variable of a chat template but an "
                "argument that training sets itself; remove it"
            )

    @property
    def form(self) -> ActionFormat:
        """The action format. Raises `ConfigError` if the agent has another one."""
        return format_of(self.agent, self.action_format)

    @property
    def new_agent(self) -> AgentFactory:
        """Makes an agent per episode. Raises `ConfigError` for an unknown agent."""
        return agent_factory(self.agent, self.form)

    def system_prompt(self, env_instruction: str = "") -> str:
        """The instruction, followed by the instructions of the action format."""
        instruction = env_instruction if self.instruction is None else self.instruction
        return join_instructions(instruction, self.form)

    def check_policy(self) -> None:
        """Raise `ConfigError` for an invalid value."""
        settings = GatewaySettings.of(self.gateway)
        if not is_black_box(self.agent):
            _ = self.new_agent
            if self.gateway:
                raise ConfigError(
                    f"gateway is for black-box agents, and the agent is {self.agent}; remove "
                    "gateway, or set agent to command:PROGRAM, "
                    "callable:package.module:function or external"
                )
        elif self.agent == "external" and settings.address_file is None:
            raise ConfigError(
                "the agent external needs gateway.address_file: the file that tells a program "
                "elsewhere where to take episodes, such as `gateway: {address_file: gateway.json}`"
            )


SETTINGS_OF_A_RUN: Final = (
    "instruction", "action_format", "agent", "chat_template_kwargs", "keep_reasoning",
    "turn_max_tokens", "max_tokens",
)  # fmt: skip
"""What `--settings-of` takes from a run. Its gateway would write to the run's own files."""

_MAX_VALUES: Final = 100_000
"""Values of a config file."""
_SET_BY_CHAT: Final = frozenset(
    {
        "conversation", "messages", "chat_template", "add_generation_prompt",
        "continue_final_message", "tokenize", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self",
    }
)  # fmt: skip
"""Arguments of `apply_chat_template` that are no variables of the template."""


def join_instructions(instruction: str, form: ActionFormat) -> str:
    """An instruction, followed by those of an action format unless it contains them already."""
    if form.instructions and form.instructions in instruction:
        return instruction
    return "\n\n".join(part for part in (instruction, form.instructions) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(PolicyConfig):
    """The fields that all methods share. Each is a key of the YAML file and an option."""

    method: str
    """Training method: rl (the default), sft, dpo or evolve."""
    attention: str | None = None
    """Attention kernels of the update: sdpa, eager, flash_attention_2, ... Null uses
    FlashAttention on a GPU if its package is installed, else sdpa. Ignored on a CPU."""
    compile: bool = False
    """Compile the layers with torch.compile for the update. The first steps take longer."""
    env: str = ""
    """Id of the environment. Optional for sft and dpo, which then run no evaluation."""
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
        """Raise `ConfigError` if the model, the run folder or RL's environment is missing."""
        needed = ("model", "output_dir", "env") if self.method == "rl" else ("model", "output_dir")
        given = {"env": getattr(self, "envs", None)}
        missing = [name for name in needed if not (getattr(self, name) or given.get(name))]
        if missing:
            raise ConfigError(f"invalid config: missing {' and '.join(missing)}")

    def check_processes(self, processes: int) -> None:
        """Raise `ConfigError` if a step cannot be divided among this many processes."""
        raise NotImplementedError

    def collect_command(self) -> str:
        """The command that collects an expert's episodes with this config's prompt.

        Before an evaluation on the paper's tasks these are of the paper's training tasks.
        """
        words = ["agentgym", "collect", "--env", self.env or "ID", "--policy", "expert"]
        if self.eval_split.startswith("paper"):
            words += ["--split", "paper_train"]
        if self.instruction is not None:
            words += ["--instruction", self.instruction]
        if self.action_format != "plain":
            words += ["--action-format", self.action_format]
        return shlex.join(words)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run uses."""
        raise NotImplementedError

    @property
    def rollout_limits(self) -> RolloutLimits:
        """Limits of the episodes of one process."""
        return RolloutLimits(
            engine_concurrency=self.engine_concurrency,
            env_concurrency=self.env_concurrency,
            episode_timeout_s=self.episode_timeout_s,
            retries=self.retries,
        )

    @property
    def fixed_eval_horizon(self) -> int:
        """The horizon of every evaluation of the run, in turns."""
        return self.eval_horizon

    def computes_in(self, *, on_gpu: bool) -> str:
        """The data type of forward passes."""
        return self.compute_dtype or ("bfloat16" if on_gpu else self.dtype)

    def engine_settings(self) -> EngineSettings:
        """The settings of the engine, checked."""
        return engine_settings(self.engine, self.engine_args)

    def check_model(self) -> None:
        """Raise `ConfigError` if the model is not available; does not load it."""
        from agentgym_train.models.hub import check_available

        check_available(self.model)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


def not_sampled(config: RunConfig) -> None:
    """Raise `ConfigError` if a method that samples only in evaluation is given a temperature."""
    if config.temperature != 1.0:
        raise ConfigError(
            f"method {config.method} samples only in evaluation; set eval_temperature instead of "
            "temperature"
        )


def read_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a YAML file, with `key=value` overrides applied."""
    file = local_path(path)
    if file.is_dir():
        raise ConfigError(f"{path} is a folder; name a config file in it")
    if not file.is_file():
        configs = [name for name in starters() if name.endswith(".yaml")]
        raise ConfigError(f"no config file {path}; the package contains {', '.join(configs)}")
    try:
        values = read_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if _has_too_many(values):
        raise ConfigError(f"{path} has more than {_MAX_VALUES:,} values; aliases count as often")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has no keys and values; write lines such as `steps: 100`")
    if "compute_environment" in values:
        raise ConfigError(
            f"{path} is a config file of accelerate; name a training config first and pass this "
            f"one as an option: agentgym train CONFIG --accelerate {path}"
        )
    return merge(values, parse_overrides(overrides))


def _has_too_many(values: Any) -> bool:
    """Whether there is more in it than in any config: a few aliases can stand for billions."""
    pending, count = [values], 0
    while pending and count <= _MAX_VALUES:
        value = pending.pop()
        count += 1
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return count > _MAX_VALUES


def converted(values: Mapping[str, Any], kind: type[_C]) -> _C:
    """The config of one method, from plain values."""
    check_keys("", values, (f.name for f in fields(kind)))
    agent = values.get("agent")
    if isinstance(agent, Mapping) and len(agent) == 1:
        # YAML reads `command: python agent.py` as a mapping.
        ((name, target),) = agent.items()
        values = {**values, "agent": f"{name}:{'' if target is None else target}"}
    try:
        config = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"invalid config: {error}{choices_of(error, kind)}") from error
    config.check_required()
    return config


def choices_of(error: Exception, kind: type) -> str:
    """What a key may be, where it is one of a few texts."""
    key = str(error).rpartition("`$.")[2].rstrip("`")
    named = next((f.type for f in fields(kind) if f.name == key), None)
    hint = get_type_hints(kind)[key] if named is not None else None
    return f"; choose from {', '.join(get_args(hint))}" if get_origin(hint) is Literal else ""


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
