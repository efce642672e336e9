"""Groups of options that several commands of the trainer share.

A new option of a policy or of a filter is one field here, beside the setting of the same name.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import types
from collections.abc import Sequence, Set
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
import yaml

from agentgym_env.cli.options import EnvKwargs, TokenFile, choice_option, json_object, server_token
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.registry import plain_name
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.base import SETTINGS_OF_A_RUN, read_values
from agentgym_train.config.methods import CONFIGS, DEFAULT
from agentgym_train.config.trust import is_known
from agentgym_train.config.values import check_keys, local_path, read_yaml

_SENTENCE = re.compile(r"(?<=[^.]\.)\s")


def expand_flags(words: Sequence[str]) -> list[str]:
    """Write boolean flags as values: `--keep-reasoning` is `keep_reasoning=true`.

    `--no-keep-reasoning` is `keep_reasoning=false`. A boolean key takes the next word as its value
    only if that word is a boolean or null; any other key takes the next word whatever it is.
    """
    booleans = boolean_keys()
    known = {field.name for config in CONFIGS.values() for field in fields(config)}
    expanded, left = [], list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        key = name.replace("-", "_")
        negated = key.removeprefix("no_") if key.startswith("no_") else ""
        next_is_value = bool(left) and _is_flag_value(left[0])
        if negated in booleans and word.startswith("--"):
            if equals or next_is_value:
                positive = name.removeprefix("no-").removeprefix("no_")
                raise ConfigError(
                    f"--{name} has no value; write --{positive}=true or --{positive}=false"
                )
            expanded.append(f"{negated}=false")
        elif equals or not word.startswith("--"):
            expanded.append(word)
        elif key in booleans:
            expanded.append(f"{key}={left.pop(0) if next_is_value else 'true'}")
        else:
            check_keys("", [key.partition(".")[0]], known)
            expanded += [word, *left[:1]]
            del left[:1]
    return expanded


def boolean_keys() -> frozenset[str]:
    """The keys of all methods that are true or false; a key has the same type in each of them."""
    return frozenset(
        name
        for config in CONFIGS.values()
        for name, hint in get_type_hints(config).items()
        if bool in (hint, *get_args(hint)) and get_origin(hint) in (None, Union, types.UnionType)
    )


def _is_flag_value(word: str) -> bool:
    """Whether a word is true, false, yes, no, on, off or null in YAML."""
    return bool(re.fullmatch(r"[A-Za-z]+", word)) and isinstance(
        read_yaml(word), bool | types.NoneType
    )


class ConfigKey(NamedTuple):
    """A key of a config file, in the words of YAML."""

    name: str
    type: str
    default: str
    """The default, or "required"."""
    about: str


def config_keys(method: str) -> list[ConfigKey]:
    """The keys of a method: its own, then those that all methods share."""
    required = {"model", "output_dir"} | ({"env"} if method == DEFAULT else set())
    return _keys_of(CONFIGS[method], required)


def world_keys(method: str) -> list[ConfigKey]:
    """The keys of an entry of `envs`; empty if the method has one environment."""
    hint = get_type_hints(CONFIGS[method]).get("envs")
    return _keys_of(get_args(hint)[0], set()) if hint else []


def _keys_of(config: type, required: set[str]) -> list[ConfigKey]:
    hints, documentation = get_type_hints(config), _documentation(config)
    order = [name for kind in config.__mro__ for name in vars(kind).get("__annotations__", {})]
    found = []
    for field in sorted(fields(config), key=lambda field: order.index(field.name)):
        needed = field.name in required or field.default is field.default_factory is MISSING
        default = "required" if needed else _default(field)
        found.append(
            ConfigKey(field.name, _type_name(hints[field.name]), default, documentation[field.name])
        )
    return found


def key_lines(method: str) -> list[str]:
    """A line about each key of a method, with the first sentence of its description.

    The keys of an entry of `envs` are indented below it.
    """
    lines = []
    for key in config_keys(method):
        lines.append(_line_of(key))
        if key.name == "envs":
            lines += [f"  {_line_of(inner, width=28)}" for inner in world_keys(method)]
    return lines


def _line_of(key: ConfigKey, width: int = 30) -> str:
    default = key.default if key.default == "required" else f"default {key.default}"
    about = _SENTENCE.split(key.about, maxsplit=1)[0]
    return f"{key.name:<{width}}  {key.type}; {default}. {about}"


def _documentation(config: type) -> dict[str, str]:
    """The docstring below each field, of the class itself or of what it extends."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        (definition,) = ast.parse(inspect.getsource(kind)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = inspect.cleandoc(str(below.value.value)).replace("\n", " ")
    return found


def _type_name(hint: Any) -> str:
    if hint is types.NoneType:
        return "null"
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(_type_name, get_args(hint)))
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {_type_name(get_args(hint)[0]).replace(' | ', ' or ')}"
    if get_origin(hint) is dict:
        return "mapping"
    names = {bool: "true | false", float: "number", int: "integer", str: "text"}
    return names.get(hint, "mapping")


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value != "" else '""'


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
        for world in stored.get("envs") or ():
            own = world.get("instruction") if isinstance(world, dict) else None
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
