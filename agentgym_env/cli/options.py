"""Options that several commands share."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

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


def choice_option(values: Sequence[str], help: str, *names: str) -> Any:
    """An option with a fixed set of values; another value is rejected with a suggestion.

    `names`, such as --dtype; without any it has the parameter's.
    """

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is None or value in values:
            return value
        near = difflib.get_close_matches(value[:100], values, n=1)
        hint = f"did you mean {near[0]}? Choose" if near else "choose"
        raise ConfigError(f"{param.opts[0]} {value!r} is invalid; {hint} from {', '.join(values)}")

    return typer.Option(*names, help=f"{help}: {', '.join(values)}.", callback=check)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is annotated with a dataclass by an option per field.

    Commands share options this way: a field of the dataclass is an option of all of them.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            parameters += _options_of(groups[parameter.name])
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def expanded(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    expanded.__doc__ = command.__doc__
    expanded.__name__ = command.__name__
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


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
