"""Groups of options that several commands of the trainer share.

A new option of a policy or of a filter is one field here, beside the setting of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
import yaml

from agentgym_env.cli.options import EnvKwargs, json_object
from agentgym_env.errors import BadRequest, ConfigError, WrapperFailed
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.values import read_yaml

Instruction = Annotated[
    str | None,
    typer.Option(help='System prompt instead of the environment\'s own; "" for none.'),
]

ChatTemplateKwargs = Annotated[
    str,
    typer.Option(
        help="Arguments of the chat template, as a JSON object, such as "
        "'{\"enable_thinking\": false}' for Qwen3."
    ),
]


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """The options of `eval` and `collect` that describe the environment."""

    env: Annotated[str, typer.Option(help="Id of the environment.")]
    env_kwargs: EnvKwargs = "{}"
    server: Annotated[
        list[str] | None, typer.Option(help="Address of a running environment server; repeatable.")
    ] = None
    wrapper: Annotated[
        list[str] | None,
        typer.Option(
            help="Gymnasium wrapper, the innermost first: module:Class, or with arguments "
            "'{wrapper: module:Class, scale: 2}', as in a config file; repeatable.",
        ),
    ] = None
    horizon: Annotated[int, typer.Option(min=1, help="Maximum turns per episode.")] = 50
    seed: Annotated[int, typer.Option(help="Seed for tasks, environments and sampling.")] = 0

    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the environment."""
        return json_object("--env-kwargs", self.env_kwargs)

    def wrappers(self) -> list[Any]:
        """The wrappers as in a config file: names, or mappings of a name and its arguments."""
        return [_wrapper_spec(text) for text in self.wrapper or []]


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The options of `eval` and `collect` that are fields of `PolicyConfig`."""

    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
    ] = 1.0
    instruction: Instruction = None
    action_format: Annotated[str, typer.Option(help="plain, react or act.")] = "plain"
    agent: Annotated[
        str,
        typer.Option(
            help="How the conversation is built: plain, react, act_only, plan_then_act, reflect, "
            "window:K, summary:K or package.module:Class.",
        ),
    ] = "plain"
    chat_template_kwargs: ChatTemplateKwargs = "{}"
    keep_reasoning: Annotated[
        bool,
        typer.Option(
            "--keep-reasoning",
            help="Keep earlier reasoning in the context where the chat template would drop it.",
        ),
    ] = False
    turn_max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per turn.")] = 512
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per episode.")] = 8192

    def values(self) -> dict[str, Any]:
        """The fields of `PolicyConfig`."""
        kwargs = json_object("--chat-template-kwargs", self.chat_template_kwargs)
        return {**asdict(self), "chat_template_kwargs": kwargs}


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """The options of `collect` and `export` that are fields of `EpisodeFilter`."""

    success: Annotated[
        bool, typer.Option("--success", help="Keep only episodes that solved their task.")
    ] = False
    min_reward: Annotated[
        float | None, typer.Option(help="Keep only episodes with at least this reward.")
    ] = None
    min_turns: Annotated[
        int, typer.Option(min=0, help="Keep only episodes with at least this many turns.")
    ] = 1
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Keep only episodes with at most this many turns.")
    ] = None
    max_episode_tokens: Annotated[
        int | None, typer.Option(min=1, help="Keep only episodes with at most this many tokens.")
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Model whose tokenizer counts the tokens, for policies without token ids."
        ),
    ] = None
    unique: Annotated[
        bool,
        typer.Option(
            "--unique", help="Keep only the first of episodes with the same task and actions."
        ),
    ] = False


@contextmanager
def naming_wrapper_option() -> Iterator[None]:
    """Name the option in the error of a wrapper, which names the key of a config."""
    try:
        yield
    except WrapperFailed as error:
        raise WrapperFailed(str(error).replace("`wrappers`", "`--wrapper`")) from error


def _wrapper_spec(text: str) -> Any:
    try:
        spec = read_yaml(text) if text.lstrip().startswith("{") else text
        named_wrappers([spec])
    except yaml.YAMLError as error:
        raise ConfigError(f"--wrapper is not valid YAML: {text}") from error
    except BadRequest as error:
        raise ConfigError(f"--wrapper: {error}") from error
    return spec
