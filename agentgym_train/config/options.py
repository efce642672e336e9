"""Groups of options that several commands of the trainer share.

A new option of a policy or of a filter is one field here, beside the setting of the same name.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer
import yaml

from agentgym_env.cli.options import EnvKwargs, TokenFile, choice_option, json_object, server_token
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.registry import plain_name
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.files import local_path, read_yaml
from agentgym_train.config.policy import SETTINGS_OF_A_RUN

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

_MAX_TURNS: Final = 50

WORLD: Final = "{world}"
"""Stands for the world's name in the folders of a suite's policies."""


def given_options(context: typer.Context) -> frozenset[str]:
    """The options that the command line has, as opposed to their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(n for n, source in sources.items() if source and source.name == "COMMANDLINE")


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """The options of `eval` and `collect` that describe the environment."""

    env: Annotated[str, typer.Option(help="Id of the environment.")]
    env_kwargs: EnvKwargs = "{}"
    server: Annotated[
        list[str] | None, typer.Option(help="Address of a running environment server; repeatable.")
    ] = None
    token_file: TokenFile = None
    wrapper: Annotated[
        list[str] | None,
        typer.Option(
            help="Gymnasium wrapper, the innermost first: module:Class, or with arguments "
            "'{wrapper: module:Class, scale: 2}', as in a config file; repeatable.",
        ),
    ] = None
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Maximum turns per episode. Default: 50.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed for tasks, environments and sampling.")] = 0

    @property
    def max_turns(self) -> int:
        """Maximum turns per episode."""
        return self.horizon or _MAX_TURNS

    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the environment."""
        return json_object("--env-kwargs", self.env_kwargs)

    def token(self) -> str | None:
        """The token of the servers that the user names."""
        return server_token(self.token_file, has_server=bool(self.server))

    def wrappers(self) -> list[Any]:
        """The wrappers as in a config file: names, or mappings of a name and its arguments."""
        return [_wrapper_spec(text) for text in self.wrapper or []]


@dataclass(frozen=True, kw_only=True)
class EvalEnvOptions(EnvOptions):
    """The options of `eval`: without an environment for a suite of them."""

    env: Annotated[str, typer.Option(help="Id of the environment; not with --suite.")] = ""


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The options of `eval` and `collect` that are fields of `PolicyConfig`."""

    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
    ] = 1.0
    settings_of: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Run or config file of a training, whose instruction, action format, agent, "
            "reasoning and token limits are used where no option sets another value.",
        ),
    ] = None
    instruction: Instruction = None
    action_format: Annotated[
        str, typer.Option(help="plain, react, act, or tools (tool calls).")
    ] = "plain"
    agent: Annotated[
        str,
        typer.Option(
            help="How the conversation is built: plain, react, act_only, plan_then_act, reflect, "
            "window:K, summary:K, package.module:Class, or a black box: 'command:PROGRAM ARGS', "
            "callable:package.module:function, external.",
        ),
    ] = "plain"
    gateway: Annotated[
        str,
        typer.Option(
            help="Settings of the gateway of a black-box agent, as a JSON object, such as "
            "'{\"port\": 8100}'."
        ),
    ] = "{}"
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
    compute_dtype: Annotated[
        str,
        choice_option(
            ("auto", "float32", "bfloat16"),
            "Compute data type of hf: models; auto is bfloat16 on a GPU",
            "--dtype",
        ),
    ] = "auto"

    def values(
        self, env: str = "", given: Set[str] = frozenset(), world: str = ""
    ) -> dict[str, Any]:
        """The fields of `PolicyConfig` for an environment; no run sets those that are `given`.

        `{world}` in `settings_of` is the name of this world. Raises `ConfigError` for a run that
        cannot be read.
        """
        dtype = None if self.compute_dtype == "auto" else self.compute_dtype
        kwargs = json_object("--chat-template-kwargs", self.chat_template_kwargs)
        gateway = json_object("--gateway", self.gateway)
        changed = {"compute_dtype": dtype, "chat_template_kwargs": kwargs, "gateway": gateway}
        values = asdict(self) | changed
        del values["settings_of"]
        if self.settings_of is None:
            return values
        path = self.settings_of.replace(WORLD, world) if world else self.settings_of
        return values | _stored_settings(path, env, given)


def _stored_settings(path: str, env: str, given: Set[str]) -> dict[str, Any]:
    """The settings of a run's policy in an environment, without those that are given."""
    from agentgym_train.config.read import read_values
    from agentgym_train.config.trust import is_known
    from agentgym_train.config.worlds import check_worlds

    folder = local_path(path)
    file = folder / "config.yaml" if folder.is_dir() else folder
    if not file.is_file():
        raise ConfigError(
            f"--settings-of {path} is neither the folder of a training run nor its config file"
        )
    stored = read_values(file)
    found: dict[str, Any] = {
        name: stored[name] for name in SETTINGS_OF_A_RUN if name in stored and name not in given
    }
    agent = str(found.get("agent", ""))
    if "agent" in found and not is_known("agent", found["agent"]):
        raise ConfigError(
            f"the agent of {path} is code or a program, {agent!r}; name it with --agent if you "
            "trust it"
        )
    if "instruction" not in given:
        worlds = stored.get("envs") or ()
        check_worlds(worlds)
        for world in worlds:
            own = world.get("instruction")
            if own is not None and plain_name(str(world.get("env"))) == plain_name(env):
                found["instruction"] = own
    return found


@dataclass(frozen=True, kw_only=True)
class MixOptions:
    """The options of `collect` for episodes of two policies."""

    mix_policy: Annotated[
        str,
        typer.Option(
            help="Another policy, which takes some turns: random, or the model that learns. Its "
            "turns are context and not trained on."
        ),
    ] = ""
    mix_rate: Annotated[
        float, typer.Option(help="Probability that a turn is that of --mix-policy.")
    ] = 0.3


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


def _wrapper_spec(text: str) -> Any:
    try:
        spec = read_yaml(text) if text.lstrip().startswith("{") else text
        named_wrappers([spec])
    except yaml.YAMLError as error:
        raise ConfigError(f"--wrapper is not valid YAML: {text}") from error
    except BadRequest as error:
        raise ConfigError(f"--wrapper: {error}") from error
    return spec
