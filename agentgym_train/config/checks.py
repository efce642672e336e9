"""Settings: dataclasses whose fields say what they may be, and are checked when one is made.

A setting with a `type`, such as `{type: ppo, lam: 0.95}`, is a text or a mapping: the text is short
for the type alone. The type may be a class of the user's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import get_annotations
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from agentgym_env.entry_points import load_named
from agentgym_env.errors import AgentGymError, BadRequest, ConfigError

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
AboveZero = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
ShareAboveZero = Annotated[float, msgspec.Meta(gt=0, le=1)]
AtLeastOne = Annotated[float, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]

_PATH: Final = re.compile(r"(.*) - at `\$(.*)`$", re.DOTALL)
Typed = str | dict[str, Any]
"""A type by name, or a mapping with a `type` and its further fields."""

_WORDS: Final = {
    "int": "an integer", "float": "a number", "str": "text", "bool": "true or false",
    "object": "a mapping", "array": "a list",
}  # fmt: skip
"""What msgspec calls a type, and what it is called here."""
_WORD: Final = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_BOUND: Final = re.compile(r"Expected `\w+` (>=|>|<=) (\d+(?:\.0*[1-9]\d*)?)(?:\.0)?")
_BOUNDS: Final = {">=": "at least", ">": "above", "<=": "at most"}
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class Settings:
    """Base class of dataclasses of settings.

    Every field is converted to its declared type and checked against its bounds, whether it comes
    from a file, a command line or Python. Fields that are settings themselves take a mapping.
    """

    __slots__ = ()

    def __new__(cls, *args: object, **values: object) -> Self:
        """Raise `ConfigError` for an unknown key, which `__init__` would report as a TypeError."""
        check_keys("", values, (f.name for f in fields(cls)))  # type: ignore[arg-type]
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(settings: Any) -> None:
    """Convert the fields of a dataclass to their types; raises `ConfigError` with path and value.

    A path is accepted for text.
    """
    kind: Any = type(settings)
    hints = type_hints(kind)
    for f in fields(settings):
        if f.init:
            value = converted_value(getattr(settings, f.name), hints[f.name], f.name)
            object.__setattr__(settings, f.name, value)


def made(kind: type[_T], values: Mapping[str, Any], name: str, type_name: str = "") -> _T:
    """A dataclass from the values of the setting `name`, such as `engine`, which has a type.

    Raises `ConfigError` for an unknown key, a wrong type, or a value out of bounds.
    """
    of_type = f" of type {type_name}" if type_name else ""
    check_keys(f" in {name}{of_type}", values, (f.name for f in fields(kind)))  # type: ignore[arg-type]
    return converted_value(values, kind, name)  # type: ignore[no-any-return]


def converted_value(value: Any, hint: Any, name: str) -> Any:
    """A value as the type that is declared for it; `name` is its place, for errors."""
    value = str(value) if isinstance(value, Path) else value
    try:
        plain = msgspec.to_builtins(value)
        if isinstance(plain, str):
            plain.encode()
        for place, kind, keys in _mappings(plain, hint, ""):
            check_keys(f" in {name}{place}", keys, (f.name for f in fields(kind)))
        found = msgspec.convert(plain, hint)
    except msgspec.ValidationError as error:
        raise ConfigError(_described(error, name, plain, hint)) from error
    except (TypeError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be {value!r:.80}: {error}") from error
    if isinstance(found, float) and not isfinite(found):
        raise ConfigError(f"{name} must be a finite number, got {found}")
    return found


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, with their bounds."""
    return get_type_hints(kind, include_extras=True)


def kinds_of(hint: Any) -> list[Any]:
    """The types that a hint allows, without their bounds; of a union all, null among them."""
    if get_origin(hint) is Annotated:
        return kinds_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for each in get_args(hint) for kind in kinds_of(each)]
    return [hint]


def check_keys(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for unknown keys, with a suggestion.

    `where` is the location of the keys, such as " in trainer_args"; empty for the config itself.
    """
    valid = sorted(known)
    unknown = sorted({str(name) for name in names} - set(valid))
    if not unknown:
        return
    # Read only for an error.
    from agentgym_train.config.old_names import instead_of
    from agentgym_train.config.trainer_args import hint_for_trl

    if old := instead_of(unknown, valid):
        raise ConfigError(f"keys{where} {old}")
    hints = [hint for name in unknown if (hint := hint_for_trl(name, valid))]
    if hints:
        raise ConfigError(f"unknown key {', '.join(unknown)}{where}: {'; '.join(hints)}")
    near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, valid, n=1))]
    hint = f"did you mean {' and '.join(near)}?" if len(near) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise ConfigError(
        f"unknown {keys} {', '.join(unknown)}{where}; "
        + (hint or (f"valid keys: {', '.join(valid)}" if valid else "no keys are allowed here"))
    )


def type_and_fields(value: Typed) -> tuple[str, dict[str, Any]]:
    """(type, further fields)."""
    if isinstance(value, str):
        return value, {}
    rest = dict(value)
    return str(rest.pop("type")), rest


def shortest(name: str, value: Typed, default: str) -> Typed:
    """The value in its shortest form; a mapping without a type has the default one."""
    if not isinstance(value, Mapping):
        return value
    kind = value.get("type", default)
    if not isinstance(kind, str):
        raise ConfigError(f"{name}.type must be text, got {kind!r:.80}")
    rest = {key: own for key, own in value.items() if key != "type"}
    return {"type": kind, **rest} if rest else kind


def type_of(value: Typed) -> str:
    """The type alone."""
    return type_and_fields(value)[0]


def chosen(name: str, value: Typed, kinds: Mapping[str, type[_T]], further: str = "") -> _T:
    """The settings of a type among several; raises `ConfigError` for another or a wrong field.

    `further` says what else the type may be, for the error.
    """
    kind, rest = type_and_fields(value)
    if kind not in kinds:
        raise ConfigError(
            f"{name} has no type {kind!r:.80}; choose from {', '.join(kinds)}{further}"
        )
    return made(kinds[kind], rest, name, kind)


_FIELDS: Final = "__dataclass_fields__"
"""What a dataclass has, and a class that only inherits from one does not have itself."""


def object_of(
    key: str, setting: Typed, kinds: Mapping[str, type], base: type, needs: str = ""
) -> Any:
    """What the setting `key` describes: one of `kinds`, or `package.module:Class` with this base.

    The class is a dataclass whose fields are those of the setting, or is called with them; it
    defines the method `needs`. Raises `ConfigError` for anything else.
    """
    name, values = type_and_fields(setting)
    kind = kinds.get(name) or _own(key, name, kinds, base, needs)
    own = [vars(each) for each in kind.__mro__ if each not in base.__mro__]
    inits = (_FIELDS in each for each in own if _FIELDS in each or "__init__" in each)
    by_fields = next(inits, True)  # whether the nearest `__init__` is a dataclass's
    if values and by_fields and get_annotations(kind) and _FIELDS not in vars(kind):
        raise ConfigError(f"{name} has fields and is not a dataclass; write `@dataclass` above it")
    if is_dataclass(kind) and by_fields:
        return made(kind, values, key, name)
    try:
        return kind(**values)
    except AgentGymError:
        raise
    except Exception as error:
        # The user's code may fail in any way.
        raise ConfigError(
            f"{key}: {name} cannot be made with {', '.join(values) or 'no fields'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def imported(name: str, described: str) -> Any:
    """What `package.module:Class` names; a `ConfigError` calls it as it is described."""
    try:
        return load_named(name)
    except (BadRequest, ImportError) as error:
        raise ConfigError(f"cannot import {described}: {error}") from error


def check_arguments(where: str, values: Mapping[str, Any], kind: type) -> None:
    """Raise `ConfigError` for a key that a library lacks, or for a plain value of a wrong type.

    Mappings, lists and enumerations are left to the library.
    """
    hints = type_hints(kind)
    check_keys(f" in {where}", values, (f.name for f in fields(kind)))  # type: ignore[arg-type]
    plain = {int, float, bool, str, NoneType}
    for name, value in values.items():
        if plain.issuperset(kinds_of(hints[name])):
            converted_value(value, hints[name], f"{where}.{name}")


def _own(key: str, name: str, kinds: Mapping[str, Any], base: type, needs: str) -> Any:
    """The user's class."""
    if ":" not in name:
        raise ConfigError(
            f"{key} has no type {name!r:.80}; choose from {', '.join(kinds)}, or write "
            "package.module:Class"
        )
    kind = imported(name, f"{name!r} of {key}")
    if base not in getattr(kind, "__mro__", ()):
        raise ConfigError(
            f"{name} is not for {key}; write `class {name.rpartition(':')[2]}({base.__name__})` "
            f"with `from {base.__module__} import {base.__name__}`"
        )
    if needs and getattr(kind, needs) is getattr(base, needs):
        raise ConfigError(f"{name} does not define {needs}, which {key} needs")
    return kind


def _mappings(value: Any, hint: Any, place: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(place, dataclass, values) of each mapping that becomes a dataclass, with all its keys."""
    if get_origin(hint) is list and isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _mappings(item, get_args(hint)[0], f"{place}[{number}]")
    elif is_dataclass(hint) and isinstance(value, Mapping):
        yield place, hint, value
        for name, inner in type_hints(hint).items():  # type: ignore[arg-type]
            if name in value:
                yield from _mappings(value[name], inner, f"{place}.{name}")
    elif (kinds := kinds_of(hint)) != [hint]:
        for one in kinds:
            yield from _mappings(value, one, place)


def _described(error: msgspec.ValidationError, name: str, value: Any, hint: Any) -> str:
    """The place of an invalid value, what it may be, and what it is."""
    found = _PATH.match(str(error))
    text, path = found.groups() if found else (str(error), "")
    for key, number in _STEP.findall(path):
        value = value[key] if key else value[int(number)]
        hint = _within(hint, key)
    if isinstance(error.__cause__, ConfigError):
        names = [f.name for f in fields(hint)] if is_dataclass(hint) else []
        is_field = re.split(r"\W", text, maxsplit=1)[0] in names
        return f"{name}{path}{'.' if is_field else ': '}{text}"
    if " - at `key` in " in str(error):
        return f"the keys of {name} must be text, got {value!r:.80}"
    if isinstance(value, float) and not isfinite(value):
        return f"{name}{path} must be a finite number, got {value}"
    if bound := _BOUND.fullmatch(text):
        return f"{name}{path} is {_BOUNDS[bound[1]]} {bound[2]}, got {value!r:.80}"
    expected = text.replace("`", "").removeprefix("Expected ").partition(", got ")[0]
    expected = _WORD.sub(lambda word: _WORDS[word[0]], expected).replace(" | ", " or ")
    if text.startswith("Invalid enum value"):
        expected = f"one of {', '.join(map(str, choices_of(hint)))}"
    return f"{name}{path} must be {expected}, got {value!r:.80}"


def _within(hint: Any, key: str) -> Any:
    """The type of what is within a value, by a key or, if that is empty, in a list."""
    if is_dataclass(hint):
        return type_hints(hint).get(key, Any)  # type: ignore[arg-type]
    if get_origin(hint) in (list, dict):
        return get_args(hint)[-1]
    inner = [one for one in kinds_of(hint) if one not in (hint, NoneType)]
    return next((_within(one, key) for one in inner), Any)


def choices_of(hint: Any) -> list[Any]:
    """The values that a `Literal` lists, also within a union."""
    literals = [kind for kind in kinds_of(hint) if get_origin(kind) is Literal]
    return [value for kind in literals for value in get_args(kind)]
