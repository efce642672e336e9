"""Trust: what a file from somebody else may say about an environment, and `--trust` for the rest.

This is an allow-list: ids of registered environments, our own wrappers, numbers, and texts that are
known to choose among harmless things. `agentgym_train.config.trust` has that of training.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer

from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_env.printable import one_line
from agentgym_env.registry import env_class, full_id

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the code, connect to the addresses and use the files that the run's files "
        "name. They can name anything, so use this option only for files that you trust.",
    ),
]
"""The option of every command that reads a run folder."""

ENV_ID: Final = re.compile(r"[\w./-]*")
"""An id of an environment, unlike `module:Class`."""
HARMLESS_TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    "agentgym/BabyAI-v0.levels": re.compile(r"\w*"),
    "agentgym/BrowserGym-v0.family": re.compile(r"[a-z][a-z0-9_]*"),
    "agentgym/SciWorld-v0.simplifications": re.compile(r"[\w, ]*"),
    "agentgym/Search-v0.corpus": re.compile(r"synthetic:\d+"),
}
"""`ENV.ARGUMENT` of a constructor whose texts choose something harmless -> these texts."""
NEEDS_TRUST: Final = frozenset(
    {
        "agentgym/BrowserGym-v0.sites", "agentgym/BrowserGym-v0.task_kwargs",
        "agentgym/OpenEnv-v0.address", "agentgym/OpenEnv-v0.action_field",
        "agentgym/OpenEnv-v0.observation_field", "agentgym/OpenEnv-v0.token",
        "agentgym/Search-v0.retriever", "agentgym/Search-v0.questions",
        "agentgym/WebArena-v0.judge",
    }
)  # fmt: skip
"""The same of the other texts."""
HARMLESS_WRAPPERS: Final = frozenset(
    {"ScaleReward", "StepPenalty", "TruncateObservation", "AvailableActions", "EndAfterInvalid"}
)
"""Classes of `agentgym_env.wrappers` whose arguments are numbers."""
_OURS: Final = "agentgym_env.wrappers:"
_USED_AS_NAME: Final = re.compile(
    "server|address|url|host|endpoint|command|program|script|judge|retriever|module|entry_point"
    "|token_file|trust_remote_code"
)
"""Keys whose values name something or switch it on, also as a number."""
_MOST: Final = 10_000
"""Characters of a list of names."""

KEYS: Final = ("env", "env_kwargs", "servers", "wrappers")


def names_in(
    settings: Mapping[str, Any], before: str = "", keys: Collection[str] = KEYS
) -> dict[str, str]:
    """What settings of an environment set and only you may set, by place: `env_kwargs.judge`.

    `before` precedes each place. `env` tells what its arguments mean, also if it is not in `keys`.
    May include an unusual text that is harmless; the user decides.
    """
    env, kwargs, wrappers = (settings.get(key) for key in ("env", "env_kwargs", "wrappers"))
    found: dict[str, str] = {}
    if "env" in keys and not (isinstance(env, str) and ENV_ID.fullmatch(env)):
        found |= leaves(f"{before}env", env)
    if "env_kwargs" in keys and isinstance(kwargs, Mapping):
        found |= _argument_names(f"{before}env_kwargs.", env, kwargs)
    if "servers" in keys:
        found |= leaves(f"{before}servers", settings.get("servers"))
    if "wrappers" in keys and isinstance(wrappers, list | tuple):
        for number, spec in enumerate(wrappers):
            found |= _wrapper_names(f"{before}wrappers[{number}]", spec)
    return found


def leaves(place: str, value: Any) -> dict[str, str]:
    """Everything in a value, by place, but None; a key that has nothing stands for itself."""
    return {at: str(leaf) for at, _, leaf in _values(place, "", value)}


def is_number(last: str, value: Any) -> bool:
    """Whether a value is a number or a truth value, and its key not one that switches code on."""
    return isinstance(value, int | float) and (value is False or not _USED_AS_NAME.search(last))


def require_trust(source: object, names: Mapping[str, str], *, trusted: bool) -> None:
    """Raise `BadRequest` with all names, unless there are none or they are trusted."""
    if trusted or not names:
        return
    listed = ", ".join(f"{place}={name!r}" for place, name in names.items())
    raise BadRequest(
        f"{source} names code, addresses or files: {one_line(listed, _MOST)}. A file from somebody "
        "else can name anything; if you trust all of these, repeat the command with --trust"
    )


def _values(place: str, last: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(its place, the last key of it, value) of everything in a value, but None."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            at = f"{place}.{key}"
            yield from list(_values(at, str(key).lower(), inner)) or [(at, last, str(key))]
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _values(f"{place}[{number}]", last, inner)
    elif value is not None:
        yield place, last, value


def _argument_names(before: str, env: Any, kwargs: Mapping[str, Any]) -> dict[str, str]:
    return {
        place: str(leaf)
        for argument, value in kwargs.items()
        for place, last, leaf in _values(f"{before}{argument}", str(argument).lower(), value)
        # The keys of a mapping are texts, too.
        if not (is_number(last, leaf) and not isinstance(value, Mapping))
        and not _is_harmless_text(env, argument, leaf)
    }


def _wrapper_names(place: str, spec: Any) -> dict[str, str]:
    name = spec.get("wrapper") if isinstance(spec, Mapping) else spec
    if not (isinstance(name, str) and name.removeprefix(_OURS) in HARMLESS_WRAPPERS) or (
        not name.startswith(_OURS)
    ):
        return leaves(place, spec)
    return {
        at: str(leaf)
        for at, last, leaf in _values(place, "", spec)
        if at != place and at != f"{place}.wrapper" and not is_number(last, leaf)
    }


def _is_harmless_text(env: Any, argument: str, value: Any) -> bool:
    """Whether a text is harmless as an argument of an environment's constructor."""
    if not (isinstance(value, str) and isinstance(env, str)) or ":" in env:
        return False
    try:
        env_id = full_id(env)
    except AgentGymError:
        return False
    pattern = HARMLESS_TEXTS.get(f"{env_id}.{argument}")
    if pattern is not None:
        return pattern.fullmatch(value) is not None
    return value in _declared(env_id, argument)


def _declared(env_id: str, argument: str) -> list[Any]:
    """The default of an argument and the choices that its type lists: `Literal["easy", "hard"]`.

    The class is imported, which an id can only ask of a package that is installed.
    """
    try:
        parameters = inspect.signature(env_class(env_id).__init__, eval_str=True).parameters
    except (AgentGymError, NameError, TypeError, ValueError):
        return []
    if argument not in parameters:
        return []
    parameter = parameters[argument]
    kinds = (parameter.annotation, *get_args(parameter.annotation))
    choices = [c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
    return [parameter.default, *choices]
