"""Trust: finds the code and addresses that stored data names, and requires `--trust` for them.

A run folder may come from somebody else. Names of registered environments, built-in agents and
algorithms are plain data, and so are models, whose code is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from agentgym_env.errors import BadRequest
from agentgym_env.printable import one_line

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the code and connect to the addresses that the run's files name. They can "
        "name anything, so use this option only for files that you trust.",
    ),
]
"""The option of every command that reads a run folder."""

KEYS: Final = (
    "env", "env_kwargs", "servers", "token_file", "envs", "wrappers", "agent", "algorithm",
    "attention", "engine_args", "trainer_args", "lora", "horizon_schedule",
)  # fmt: skip
"""The settings of a run that can name code or addresses."""
_PLAIN: Final = re.compile(r"[\w\s.,;'!?()+=%-]*")
"""Words, numbers and sentences."""
_DOTTED: Final = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)+|\d+(\.\d+){3}")
"""A module, a file or a host."""
_SIZED: Final = re.compile(r"\w+:\d+")
"""`NAME:SIZE` such as `window:8`, where a setting is written so."""
_USED_AS_NAME: Final = re.compile(
    "server|address|url|host|endpoint|command|program|script|judge|retriever|module|entry_point"
    "|token_file|report_to|hub_|trackio|deepspeed|custom_generate|megatron_core"
)
"""Keys whose texts name something, whatever they look like."""
_FLAGS: Final = ("trust_remote_code", "push_to_hub", "hub_always_push", "use_vllm")
_OFF: Final = ("false", "none", "", "0", "no", "off")
"""Values of a flag that libraries read as off."""
_MOST: Final = 10_000
"""Characters of a list of names."""
_ENV: Final = re.compile(r"(envs\[\d+\]\.)?env")
_VLLM: Final = "engine_args.extra."
_WRAPPER: Final = re.compile(r"(envs\[\d+\]\.)?wrappers\[\d+\](\.wrapper)?")
_OUR_WRAPPER: Final = re.compile(r"agentgym_env\.wrappers:[A-Z]\w*")
_NOT_CODE: Final = ("lora.target_modules", "lora.exclude_modules", "lora.modules_to_save")
"""Layers of the model, whose names have dots."""


def names_in(settings: Mapping[str, Any], keys: Sequence[str] = KEYS) -> dict[str, str]:
    """The code and addresses in a run's settings, by place, such as `env_kwargs.judge`.

    May include an unusual text that is neither; the user decides.
    """
    return {
        place: str(value)
        for key in keys
        for place, last, value in _values(key, key, settings.get(key))
        if _is_name(place, last, value)
    }


def require_trust(source: object, names: Mapping[str, str], *, trusted: bool) -> None:
    """Raise `BadRequest` with all names, unless there are none or they are trusted."""
    if trusted or not names:
        return
    listed = ", ".join(f"{place}={name!r}" for place, name in names.items())
    raise BadRequest(
        f"{source} names code or addresses: {one_line(listed, _MOST)}. A file from somebody else "
        "can name anything; if you trust all of these, repeat the command with --trust"
    )


def trust_option(settings: Mapping[str, Any]) -> str:
    """The option that a command needs to use these settings from a run folder, or nothing."""
    return " --trust" if names_in(settings) else ""


def _values(place: str, last: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(its place, the last key of it, value) of everything in a value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(f"{place}.{key}", str(key).lower(), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _values(f"{place}[{number}]", last, inner)
    else:
        yield place, last, value


def _is_name(place: str, last: str, value: Any) -> bool:
    if place.startswith(_VLLM):
        return value is not None and value is not False
    if last in _FLAGS:
        # Libraries take any true value for yes, and some take words.
        return str(value).lower() not in _OFF
    if not isinstance(value, str):
        return False
    if _ENV.fullmatch(place):
        return ":" in value
    if not value or place.startswith(_NOT_CODE):
        return False
    if _WRAPPER.fullmatch(place) and _OUR_WRAPPER.fullmatch(value):
        return False
    if last in ("agent", "corpus") and _SIZED.fullmatch(value):
        return False
    if last == "report_to" and value in ("none", "tensorboard"):
        return False
    return bool(
        _USED_AS_NAME.search(last) or not _PLAIN.fullmatch(value) or _DOTTED.fullmatch(value)
    )
