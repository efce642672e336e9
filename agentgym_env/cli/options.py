"""Options that several commands share."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, get_type_hints

import typer

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.server_token import token_of_file

EnvId = Annotated[str, typer.Argument(help="Environment id, short name or module:Class.")]
EnvKwargs = Annotated[
    str, typer.Option(help="Keyword arguments of the environment, as a JSON object.")
]
Server = Annotated[
    str,
    typer.Option(help="Address of a running server, or `inprocess` to use no server."),
]

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the token of the server. Default: the environment variable AGENTGYM_TOKEN."
    ),
]


def server_token(token_file: Path | None, *, has_server: bool) -> str | None:
    """The token of `--token-file`; raises `ConfigError` if there is no server to send it to."""
    if token_file is not None and not has_server:
        raise ConfigError("--token-file needs --server ADDRESS; a local server needs no token")
    return token_of_file(token_file)


_FILES: Final = frozenset(
    {".arrow", ".csv", ".feather", ".gz", ".html", ".json", ".jsonl", ".parquet", ".pkl", ".tsv"}
    | {".txt", ".xz", ".yaml", ".yml", ".zip"}
)


def check_ending(option: str, path: Path, *endings: str) -> None:
    """Raise `ConfigError` for a file whose ending promises another format than is written."""
    is_file = path.is_file() or not path.exists()  # not /dev/stdout
    if is_file and path.suffix.lower() not in endings:
        given = f"ends in {path.suffix}" if path.suffix else "has no ending"
        raise ConfigError(f"{option} {path} {given}; name a file in {' or '.join(endings)}")


def check_folder_name(option: str, path: Path) -> None:
    """Raise `ConfigError` for a folder that is called like a file."""
    if path.suffix.lower() in _FILES and not path.is_dir():
        raise ConfigError(
            f"{option} {path} is a folder here, and ends in {path.suffix} like a file; choose "
            f"another name, such as {path.with_suffix('')}"
        )


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object in the value of an option; raises `BadRequest` with the option's name."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRequest(f"{option} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest(f"{option} must be a JSON object, got {text}")
    return value


def choice_option(values: Sequence[str], help: str) -> Any:
    """An option with a fixed set of values; another value is rejected with a suggestion."""

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is None or value in values:
            return value
        near = difflib.get_close_matches(value[:100], values, n=1)
        hint = f"did you mean {near[0]}? Choose" if near else "choose"
        raise ConfigError(f"{param.opts[0]} {value!r} is invalid; {hint} from {', '.join(values)}")

    return typer.Option(help=f"{help}: {', '.join(values)}.", callback=check)


class OptionGroup(Protocol):
    """Options that become one argument of a command, which is annotated with the group."""

    def parameters(self) -> list[inspect.Parameter]:
        """A keyword-only parameter per option, annotated as typer needs it."""
        ...

    def value(self, options: dict[str, Any]) -> Any:
        """The command's argument, from the options by their parameters."""
        ...


@dataclass(frozen=True, slots=True)
class _DataclassGroup:
    """An option per field of a dataclass, of which the argument is one."""

    kind: Any

    def parameters(self) -> list[inspect.Parameter]:
        return _options_of(self.kind)

    def value(self, options: dict[str, Any]) -> Any:
        return self.kind(**options)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is annotated with a group of options by those options.

    A group is a dataclass, or an `OptionGroup` in `Annotated[TYPE, GROUP]`. Commands share options
    this way.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: group
        for name, parameter in signature.parameters.items()
        if (group := _group_of(parameter.annotation)) is not None
    }
    parameters: list[inspect.Parameter] = []
    names: dict[str, list[str]] = {}
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            own = groups[parameter.name].parameters()
            names[parameter.name] = [option.name for option in own]
            parameters += own
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def expanded(**values: Any) -> None:
        made = {
            name: group.value({option: values.pop(option) for option in names[name]})
            for name, group in groups.items()
        }
        command(**values, **made)

    expanded.__doc__ = command.__doc__
    expanded.__name__ = command.__name__
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _group_of(annotation: Any) -> OptionGroup | None:
    if is_dataclass(annotation):
        return _DataclassGroup(annotation)
    marks = getattr(annotation, "__metadata__", ())
    return next((mark for mark in marks if hasattr(mark, "parameters")), None)


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
