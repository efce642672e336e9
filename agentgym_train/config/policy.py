"""PolicyConfig: the model, the conversation around it, and how it samples."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_keys, check_numbers, check_types
from agentgym_train.rollout.agent import AgentFactory, agent_factory, black_box, format_of

SETTINGS_OF_A_RUN: Final = (
    "instruction", "action_format", "agent", "chat_template_kwargs", "keep_reasoning",
    "turn_max_tokens", "max_tokens",
)  # fmt: skip
"""What `--settings-of` takes from a run. Its gateway would write to the run's own files."""

_SET_BY_CHAT: Final = frozenset(
    {
        "conversation", "messages", "chat_template", "add_generation_prompt",
        "continue_final_message", "tokenize", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self",
    }
)  # fmt: skip
"""Arguments of `apply_chat_template` that are no variables of the template."""


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
    ARGUMENTS`, `callable:package.module:function`, `external`, or a kind that another package adds.
    `max_tokens` limits each context."""
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
        if black_box(self.agent, self.gateway) is not None:
            return
        _ = self.new_agent
        if self.gateway:
            raise ConfigError(
                f"gateway is for black-box agents, and the agent is {self.agent}; remove gateway, "
                "or set agent to command:PROGRAM, callable:package.module:function or external"
            )


def join_instructions(instruction: str, form: ActionFormat) -> str:
    """An instruction, followed by those of an action format unless it contains them already."""
    if form.instructions and form.instructions in instruction:
        return instruction
    return "\n\n".join(part for part in (instruction, form.instructions) if part)
