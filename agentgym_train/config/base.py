"""RunConfig: the settings that every training method shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from agentgym_env.errors import BadRequest
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.engines import EngineName, EngineSettings, engine_settings
from agentgym_train.config.reading import lay_over, parse_overrides, read_yaml, refuse_unknown
from agentgym_train.config.values import RolloutLimits
from agentgym_train.rollout.agent import agent_factory, format_of

_C = TypeVar("_C", bound="RunConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The fields that all methods share. Each is a key of the YAML file and an option."""

    method: str
    """How the policy learns: rl, sft, dpo or evolve (docs/training.md, docs/imitation.md)."""
    model: str
    """The policy to start from: a folder, or a model id of the hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the trained weights are kept in. bfloat16 takes half the memory and loses updates that
    are small next to a weight; it is for `lora`, whose adapters are small themselves."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """What forward passes compute in, of the trainer and of the hf engine. Null takes bfloat16 on a
    GPU, and on a CPU that of the weights. vLLM's own is in `engine_args`."""
    attention: str | None = None
    """Attention kernels of the update: sdpa, eager, flash_attention_2, ... Null takes
    FlashAttention on a GPU where its package is installed, else sdpa. A CPU passes it over."""
    env: str = ""
    """Id of the environment that is played, or that evaluates; sft and dpo do without one, and then
    nothing is evaluated."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """The environment's own settings, for the local server."""
    output_dir: str
    """The run folder. What was there is moved aside."""
    servers: list[str] = field(default_factory=list)
    """Addresses of running environment servers; none starts a local one for this run."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Gymnasium wrappers around the environment, the innermost first: `module:Class`, or a mapping
    of `wrapper: module:Class` and its keyword arguments. Rewards and observations are what they
    make of them, in evaluation too; `success` and `score` stay the environment's own."""
    seed: int = 0
    """Of the order of what is learned from, of the worlds, and of sampling."""
    instruction: str | None = None
    """What the policy is told; null takes the environment's own text, "" tells nothing."""
    action_format: str = "plain"
    """How the policy writes an action: plain, react or act."""
    agent: str = "plain"
    """How the conversation is built: `plain`; `react` or `act_only`, which are plain with that
    `action_format`; `plan_then_act`; `reflect` (after a failure a lesson and the episode once
    more); `window:K` (at most K exchanges in the context) or `summary:K` (the policy sums up each K
    of them); or `package.module:Class`. `max_tokens` bounds each context."""
    keep_reasoning: bool = False
    """Use a chat template append-only although it would drop the reasoning of earlier turns."""
    turn_max_tokens: int = 512
    """Most tokens the policy may sample in one turn."""
    max_tokens: int = 8192
    """Most tokens of a whole episode, prompt and observations included; of each of its contexts
    where the agent cuts them."""

    concurrency: int = 256
    """Most episodes under way at once, over all processes."""
    engine_concurrency: int = 0
    """Most turns that one process has generated at once; 0 leaves it to the engine, which batches
    what is waiting. Below `concurrency` it bounds what is computed side by side."""
    env_concurrency: int = 0
    """Most calls to environments that one process makes at once; 0 sets no limit."""
    episode_timeout_s: float = 0.0
    """Longest an episode may take, its retries included; 0 sets no limit. One that waited most for
    the policy ends as policy_timeout and teaches; else it is lost, and does not."""
    retries: int = 2
    """Further attempts at an episode whose world or engine was lost."""
    engine: EngineName = "hf"
    """What samples: `hf` from the trainer's own model, `vllm_colocate` beside it on its device, or
    `vllm_server` behind HTTP (docs/engines.md)."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Fields of the engine's settings, such as `{servers: [http://host:8000]}`."""

    tokens_per_forward: int = 0
    """Tokens in one forward and backward pass of a process, padding included; a longer episode is
    a pass of its own. 0 takes 4096 on a CPU and 16384 on a GPU. The gradient does not depend on it.
    """
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises."""
    lora: dict[str, Any] | None = None
    """Train adapters instead of the weights: fields of PEFT's LoraConfig, such as `{r: 16}`. The
    model that is kept is the adapters; null trains all weights."""
    trl: dict[str, Any] = field(default_factory=dict)
    """Further values for TRL's own config of the method, by its own names."""
    save_every: int = 50
    """Optimizer steps between checkpoints."""

    eval_split: str = "test"
    """Held-out split that is evaluated before and after."""
    eval_horizon: int = 0
    """The one horizon of all evaluations; 0 takes what the method trains at."""
    eval_samples: int = 1
    """Episodes a held-out task."""
    eval_per_category: int = 0
    """Of each of the world's categories, evaluate only so many tasks; 0 takes all."""
    eval_temperature: float = 1.0
    """Of sampling, in evaluation."""
    eval_before: bool = True
    eval_after: bool = True

    def check_common(self) -> None:
        """Raise `BadRequest` for a value of the shared fields that cannot be."""
        self.engine_settings()
        named_wrappers(self.wrappers)
        agent_factory(self.agent, format_of(self.agent, self.action_format))
        at_least(
            1,
            turn_max_tokens=self.turn_max_tokens,
            max_tokens=self.max_tokens,
            concurrency=self.concurrency,
            eval_samples=self.eval_samples,
            save_every=self.save_every,
        )
        at_least(
            0,
            engine_concurrency=self.engine_concurrency,
            env_concurrency=self.env_concurrency,
            episode_timeout_s=self.episode_timeout_s,
            retries=self.retries,
        )
        if self.tokens_per_forward < 0:
            raise BadRequest(
                f"tokens_per_forward is a number of tokens, or 0 for what suits the device, got "
                f"{self.tokens_per_forward}"
            )
        if self.dtype == "bfloat16" and self.compute_dtype == "float32":
            raise BadRequest("compute_dtype float32 needs dtype float32, got dtype bfloat16")

    def check_processes(self, processes: int) -> None:
        """Raise `BadRequest` where a step does not divide among so many processes."""
        raise NotImplementedError

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the run plays."""
        raise NotImplementedError

    @property
    def rollout_limits(self) -> RolloutLimits:
        """What the episodes of one process may use."""
        return RolloutLimits(
            engine_concurrency=self.engine_concurrency,
            env_concurrency=self.env_concurrency,
            episode_timeout_s=self.episode_timeout_s,
            retries=self.retries,
        )

    @property
    def fixed_eval_horizon(self) -> int:
        """The horizon of every evaluation of the run."""
        return self.eval_horizon

    def computes_in(self, *, on_gpu: bool) -> str:
        """The name of what forward passes compute in."""
        return self.compute_dtype or ("bfloat16" if on_gpu else self.dtype)

    def engine_settings(self) -> EngineSettings:
        """What the engine is told."""
        return engine_settings(self.engine, self.engine_args)

    def check_model(self) -> None:
        """Raise `BadRequest` if the model is not available; loads nothing heavy."""
        from agentgym_train.local_models import check_available

        check_available(self.model)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


def at_least(least: int, **values: float) -> None:
    """Raise `BadRequest` for the first value that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise BadRequest(f"{name} is at least {least}, got {value}")


def read_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a YAML file, with `key=value` words laid over them."""
    if not path.is_file():
        raise BadRequest(f"no config file {path}; examples are in examples/train")
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise BadRequest(f"{path} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise BadRequest(f"{path} holds no keys and values; write lines such as `steps: 100`")
    return lay_over(values, parse_overrides(overrides))


def converted(values: Mapping[str, Any], kind: type[_C]) -> _C:
    """The config of one method, from plain values."""
    refuse_unknown("", values, (f.name for f in fields(kind)))
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the config does not fit: {error}") from error


def check_trl_names(trl: Mapping[str, Any], **ours: str) -> None:
    """Raise `BadRequest` for a name under `trl` that has one of ours, which is set by it."""
    for name, own in ours.items():
        if name in trl:
            raise BadRequest(f"trl.{name} is set by {own}; write {own}: VALUE beside trl")


def check_data(sources: Sequence[str]) -> None:
    """Raise `BadRequest` where there is nothing to read that a config names."""
    if not sources:
        raise BadRequest("data names no run folder and no file; name one to learn from")
    for source in map(Path, sources):
        if not source.is_file() and not (source / "run.json").is_file():
            raise BadRequest(
                f"no episodes in {source}: it is neither a run folder nor a file. Collect some "
                "with `agentgym collect --env ID --policy expert --out DIR`"
            )
