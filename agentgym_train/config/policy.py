"""PolicyConfig: the model, the conversation around it, and how it samples; and where it plays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import (
    Count,
    NonNegative,
    Positive,
    Seed,
    Settings,
    Share,
    Typed,
    check_fields,
    shortest,
)
from agentgym_train.config.engines import EngineSettings, engine_settings
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.rollout.agent import (
    AgentFactory,
    agent_factory,
    black_box,
    format_of,
    with_type,
)

HORIZON: Final = 30
"""Maximum turns per episode of every method and command, unless another number is set."""

SETTINGS_OF_A_RUN: Final = (
    "instruction", "action_format", "agent", "chat_template_kwargs", "keep_reasoning",
    "turn_max_tokens", "max_tokens",
)  # fmt: skip
"""What `--settings-of` takes from a run."""

_SET_BY_CHAT: Final = frozenset(
    {
        "conversation", "messages", "chat_template", "add_generation_prompt",
        "continue_final_message", "tokenize", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self",
    }
)  # fmt: skip
"""Arguments of `apply_chat_template` that are no variables of the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig(Settings):
    """Describes a policy: the model, the conversation around it, and how it samples.

    Training, evaluation, collection, audit and gateway each take one.
    """

    model: str = ""
    """The model: a folder, a model id of the hub, `pip:PACKAGE`, or a small policy of this package,
    `starter:textcraft/warm_policy`. Evaluation and collection also take `expert`, `random`,
    `vllm:URL` and `openai:MODEL@URL`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of the weights. With bfloat16 a model takes half the memory, but small updates are
    lost in training: use it with `lora`. float16 is for audits only."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of forward passes, of the update and of the hf engine. Null uses bfloat16 on a
    GPU and the data type of the weights on a CPU. vLLM has its own: `engine: {type: vllm, dtype:
    bfloat16}`."""
    engine: Typed = "hf"
    """What samples from the model: `hf` (transformers), `vllm` (a vLLM server that is started here,
    or those at `servers`), `vllm_colocate` (vLLM in this process), `package.module:Class`, or a
    mapping with such a `type` and the engine's settings: `{type: vllm, servers:
    [http://host:8000]}`."""
    instruction: str | None = None
    """System prompt. Null uses the environment's own instruction, "" uses none."""
    action_format: str = "plain"
    """How the policy writes an action: plain, react, act, or tools (native tool calls)."""
    agent: Typed = "plain"
    """How the conversation is built: `plain`; `react` or `act_only` (plain with that
    `action_format`); `plan_then_act`; `reflect` (after a failure, a reflection and a second trial);
    `window:K` (at most K exchanges in the context); `summary:K` (the policy summarizes every K
    exchanges); `package.module:Class`; or a black box, which uses the gateway: `command:PROGRAM
    ARGUMENTS`, `callable:package.module:function`, `external`, or a kind that another package adds.
    With settings it is a mapping: `{type: 'command:PROGRAM', port: 8100, calls: 50}` has those of
    the gateway, and `{type: package.module:Class, size: 4}` arguments of the class. `max_tokens`
    limits each context."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, such as `{enable_thinking: false}` for Qwen3."""
    keep_reasoning: bool = False
    """Keep the reasoning of earlier turns in the context where the chat template would drop it."""
    turn_max_tokens: Positive = 512
    """Maximum tokens that the policy samples per turn. Turns that reach it are counted as
    `cut_turns`; demonstrated turns must not be longer."""
    max_tokens: Positive = 8192
    """Maximum tokens per episode, including prompt and observations; per context if the agent
    starts new contexts."""
    temperature: NonNegative = 1.0
    """Sampling temperature; 0 is greedy, which RL cannot use. In a training run it is that of the
    rollouts, and `eval` has its own."""

    def __post_init__(self) -> None:
        # Without `check_policy`, which may import an agent that a stored config names.
        check_fields(self)
        agent = shortest("agent", with_type(self.agent), "plain")
        object.__setattr__(self, "agent", agent)
        object.__setattr__(self, "engine", shortest("engine", self.engine, "hf"))
        self.engine_settings()
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

    def engine_settings(self) -> EngineSettings:
        """The settings of the engine, checked."""
        return engine_settings(self.engine)

    def check_policy(self) -> None:
        """Raise `ConfigError` for an invalid value."""
        if black_box(self.agent) is None:
            _ = self.new_agent


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits(Settings):
    """Limits of the episodes of one process. 0 is no limit."""

    engine_concurrency: Count = 0
    """Maximum number of turns that are generated at once."""
    env_concurrency: Count = 0
    """Maximum number of concurrent environment calls."""
    episode_timeout_s: NonNegative = 0.0
    """Time limit of an episode in seconds, including retries, not counting the wait for a slot. An
    episode that mostly waited for the policy ends as policy_timeout and is trained on; others are
    lost."""
    retries: Count = 2
    """Maximum retries of an episode whose environment or engine was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig(PolicyConfig):
    """Settings of a collection; `model` is the name of any policy, such as `expert`."""

    env: str
    """Id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as a mapping."""
    servers: list[str] = field(default_factory=list)
    """Address of a running environment server; repeatable."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Gymnasium wrapper, the innermost first: module:Class, or with arguments '{wrapper:
    module:Class, scale: 2}', as in a config file; repeatable."""
    horizon: Positive = HORIZON
    """Maximum turns per episode."""
    seed: Seed = 0
    """Seed for tasks, environments and sampling."""
    output_dir: str
    """Run folder. A collection with the same settings in it is resumed."""
    split: str = "train"
    """Split of tasks."""
    n: Positive | None = None
    """Number of starts, each a task with a seed: the split's tasks in a random order, then again
    with other seeds, and so on. Without it each task once."""
    samples: Positive = 1
    """Episodes per start."""
    keep: EpisodeFilter = field(default_factory=EpisodeFilter)
    """Which episodes are kept as training data."""
    mix_policy: str = ""
    """Another policy, which takes some turns: random, or the model that learns."""
    mix_rate: Share = 0.3
    """Probability that a turn is that of the other policy."""
    mix_loss: bool = False
    """Train on the other policy's turns too, as an imitator of an imperfect player would. By
    default they are context and not trained on."""
    method: Literal["collect"] = "collect"
    """What this run folder contains."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(PolicyConfig):
    """The audited policy and the audit's episodes; a run's own values are the defaults."""

    turns: Positive = 3
    """Turns per episode."""
    episodes: Positive = 4
    """Number of episodes sampled from the model."""
    seed: Seed = 0
    """Seed of sampling."""
    instruction: str | None = "You are in a world of text. Answer with one action."
    turn_max_tokens: Positive = 64
    max_tokens: Positive = 4096
    temperature: Annotated[float, msgspec.Meta(ge=1e-3)] = 1.0
    """Sampling temperature."""
    tolerance: NonNegative | None = None
    """Tolerance of a log-probability. Without it 1e-4 in float32 and 2e-2 in 16 bits."""
    trainer_args: dict[str, Any] = field(default_factory=dict)
    """TRL's settings of the run that affect precision."""


def join_instructions(instruction: str, form: ActionFormat) -> str:
    """An instruction, followed by those of an action format unless it contains them already."""
    if form.instructions and form.instructions in instruction:
        return instruction
    return "\n\n".join(part for part in (instruction, form.instructions) if part)
