"""Options of the commands, made from the dataclasses of settings."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, get_origin

import typer
import yaml

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.registry import plain_name
from agentgym_env.wrappers import named_wrappers
from agentgym_train.config.checks import choices_of, converted_value, kinds_of, type_hints
from agentgym_train.config.files import local_path, read_yaml
from agentgym_train.config.policy import SETTINGS_OF_A_RUN

SettingsOf = Annotated[
    str | None,
    typer.Option(
        "--settings-of",
        metavar="RUN",
        help="Run or config file of a training, whose instruction, action format, agent, "
        "reasoning and token limits are used where no option sets another value.",
    ),
]

_SENTENCE: Final = re.compile(r"(?<=[^.]\.)\s")

_OLD: Final[Mapping[str, str]] = {
    "--cuda-graphs": "--engine '{type: hf, cuda_graphs: true}'",
    "--dtype": "--compute-dtype; it sets the data type of forward passes",
    "--least-reward": "--min-reward",
    "--least-turns": "--min-turns",
    "--most-turns": "--max-turns",
    "--most-tokens": "--max-episode-tokens",
    "--gateway": "part of --agent: --agent '{type: \"command:PROGRAM\", port: 8100}'",
}
"""Option of earlier versions -> what to write instead."""
OLD_FILTERS: Final = ("--least-reward", "--least-turns", "--most-turns", "--most-tokens")

_NAMES: Final[Mapping[str, str]] = {
    "model": "--policy",
    "output_dir": "--out",
    "servers": "--server",
    "wrappers": "--wrapper",
}
"""Field -> its option, where that is not the field's name."""


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """An option per field of a dataclass of settings; a command gets those that were given."""

    kind: Any
    without: tuple[str, ...] = ()
    required: Mapping[str, str] = field(default_factory=dict)
    """Fields that the command requires although they have a default -> their help."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What is used where an option is not given, of fields that the command has others for."""

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter per field; None if the option is not given."""
        about, hints = documentation(self.kind), type_hints(self.kind)
        return [
            self._parameter(f, hints[f.name], about[f.name])
            for f in fields(self.kind)
            if f.name not in self.without
        ]

    def value(self, options: dict[str, Any]) -> dict[str, Any]:
        """The given values by field, those that are YAML parsed."""
        hints = type_hints(self.kind)
        return {
            name: _parsed(_option(name), value, hints[name])
            for name, value in options.items()
            if value is not None and value != []
        }

    def _parameter(self, f: Any, hint: Any, about: str) -> inspect.Parameter:
        needed = f.default is f.default_factory is MISSING or f.name in self.required
        default = None if f.default_factory is not MISSING else f.default
        choices = [str(value) for value in choices_of(hint)]
        words = [self.required.get(f.name, first_sentence(about))]
        words += [f"{', '.join(choices)}."] * bool(choices)
        if f.name in self.defaults:
            words.append(f"Default: {self.defaults[f.name]}.")
        elif not needed and default not in (None, "", MISSING) and default is not False:
            words.append(f"Default: {default}.")
        text = " ".join(words).replace("[", r"\[")  # rich reads brackets as markup
        name, kind = _option(f.name), _typer_type(hint)
        spelled = f"{name}/--no-{name[2:]}" if kind is bool else name
        return inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if needed else None,
            annotation=Annotated[kind if needed else kind | None, typer.Option(spelled, help=text)],
        )


class OldOptions:
    """Hidden options of earlier versions, which are rejected with what to write instead."""

    def __init__(self, *names: str) -> None:
        self._names = {name[2:].replace("-", "_"): name for name in names}

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter per option."""
        kinds = {name: bool if name == "cuda_graphs" else str for name in self._names}
        return [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kinds[name] | None, typer.Option(option, hidden=True)],
            )
            for name, option in self._names.items()
        ]

    def value(self, options: dict[str, Any]) -> None:
        """Raise `ConfigError` if one was given."""
        for name, value in options.items():
            if value is not None:
                raise ConfigError(f"{self._names[name]} is now {_OLD[self._names[name]]}")


def settings_of(run: str | None, given: Mapping[str, Any], env: str = "") -> dict[str, Any]:
    """The given fields of `PolicyConfig`, and those of a run in an environment for the others.

    Raises `ConfigError` for a run that cannot be read.
    """
    if run is None:
        return dict(given)
    from agentgym_train.config.old_names import instead_of
    from agentgym_train.config.read import read_values
    from agentgym_train.config.trust import is_known
    from agentgym_train.config.worlds import World

    folder = local_path(run)
    file = folder / "config.yaml" if folder.is_dir() else folder
    if not file.is_file():
        raise ConfigError(
            f"--settings-of {run} is neither the folder of a training run nor its config file"
        )
    stored = read_values(file)
    if old := instead_of(stored, SETTINGS_OF_A_RUN):
        raise ConfigError(f"{file} has keys {old}")
    found: dict[str, Any] = {n: stored[n] for n in SETTINGS_OF_A_RUN if n in stored}
    found.update(given)
    if "agent" not in given and "agent" in found and not is_known("agent", found["agent"]):
        raise ConfigError(
            f"the agent of {run} is code or a program, {str(found['agent'])!r}; name it with "
            "--agent if you trust it"
        )
    if "instruction" not in given:
        for entry in converted_value(stored.get("envs") or [], list[World], "envs"):
            if entry.instruction is not None and plain_name(entry.env) == plain_name(env):
                found["instruction"] = entry.instruction
    return found


@cache
def documentation(config: type) -> dict[str, str]:
    """The docstring below each field, of the class itself or of what it extends."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        (definition,) = ast.parse(inspect.getsource(kind)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for one, below in itertools.pairwise(body):
            if (
                isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[one.target.id] = inspect.cleandoc(str(below.value.value)).replace("\n", " ")
    return found


def first_sentence(text: str) -> str:
    """The first sentence of a description."""
    return _SENTENCE.split(text, maxsplit=1)[0]


def _option(name: str) -> str:
    return _NAMES.get(name, f"--{name.replace('_', '-')}")


def _kind(hint: Any) -> Any:
    """The only type that a hint allows besides null; text where there are several."""
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else str


def _typer_type(hint: Any) -> Any:
    kind = _kind(hint)
    if get_origin(kind) is list:
        return list[str]
    return kind if kind in (bool, int, float) else str


def _parsed(option: str, value: Any, hint: Any) -> Any:
    """The value of an option: mappings are written in YAML, of which JSON is a part."""
    kind = _kind(hint)
    if get_origin(kind) is list:
        parsed = [_yaml(option, each) if _is_mapping(each) else each for each in value]
        if option == _NAMES["wrappers"]:
            _check_wrappers(parsed)
        return parsed
    has_mapping = any(get_origin(each) is dict for each in kinds_of(hint))
    is_yaml = get_origin(kind) is dict or (has_mapping and _is_mapping(value))
    return _yaml(option, value) if is_yaml else value


def _is_mapping(text: str) -> bool:
    return text.lstrip().startswith("{")


def _yaml(option: str, text: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option} is not valid YAML: {text}") from error


def _check_wrappers(specs: list[Any]) -> None:
    try:
        named_wrappers(specs)
    except BadRequest as error:
        raise ConfigError(f"{_NAMES['wrappers']}: {error}") from error
