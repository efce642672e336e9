"""The files that a setting may name, configs and policies of the package among them; and YAML."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Final

import yaml

from agentgym_env.errors import ConfigError

STARTER: Final = "starter:"

_PACKAGE: Final = Path(__file__).parents[1]

_STARTERS: Final = (
    (_PACKAGE / "starters",)
    if (_PACKAGE / "starters").is_dir()
    else (_PACKAGE.parent / "examples" / "train", _PACKAGE.parent / "examples")
)
"""Where the configs and policies that come with the package are: in a wheel, or in a clone."""


def local_path(name: str | Path) -> Path:
    """The path that a name refers to; `starter:NAME` is a file or folder of the package.

    The ending `.yaml` of a config may be left out: `starter:quickstart`.
    Raises `ConfigError` for an unknown starter and where `user_path` does.
    """
    text = str(name)
    if not text.startswith(STARTER):
        return user_path(text)
    wanted = text.removeprefix(STARTER)
    if wanted and ".." not in Path(wanted).parts and not Path(wanted).is_absolute():
        for folder in _STARTERS:
            for path in (folder / wanted, folder / f"{wanted}.yaml"):
                if checked_path(path).exists():
                    return path
    known = [name for name in starters() if not name.startswith(f"{STARTER}accelerate/")]
    close = difflib.get_close_matches(text[:200], known, n=3, cutoff=0.6)
    shown = text[:200] if wanted else f"{STARTER} without a name"
    raise ConfigError(f"there is no {shown}; choose from {', '.join(close or known)}")


def user_path(name: str | Path) -> Path:
    """The path with `~` replaced; raises `ConfigError` for an unknown user, or a long path."""
    try:
        return checked_path(Path(name).expanduser())
    except RuntimeError as error:
        user = Path(name).parts[0]
        raise ConfigError(
            f"{str(name)[:200]}: no home folder is known for {user[:200]}; write the full path"
        ) from error


def checked_path(path: Path) -> Path:
    """The path; raises `ConfigError` if the system rejects it, such as one that is too long."""
    try:
        path.exists()
    except OSError as error:
        shown = f"{str(path)[:200]}..." if len(str(path)) > 200 else path
        raise ConfigError(f"the path {shown} cannot be used: {error.strerror}") from error
    return path


def starters() -> list[str]:
    """The names of all configs and policies that come with the package."""
    found = {
        f"{STARTER}{path.relative_to(folder).as_posix()}"
        for folder, patterns in zip(
            _STARTERS,
            (("*.yaml", "*/*.yaml", "*/*_policy"), ("accelerate/*.yaml",)),
            strict=False,
        )
        for pattern in patterns
        for path in folder.glob(pattern)
    }
    return sorted(found)


def read_yaml(text: str) -> Any:
    """Parse YAML 1.2, where 1e-6 is a number and `off` is text; PyYAML alone differs in both."""
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping; a key that is written twice would lose the first value."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is written twice, in lines {lines[key.value]} and "
                    f"{line}; write one mapping with the keys of both", key.start_mark,
                )  # fmt: skip
            lines[key.value] = line
        return node


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:bool"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    list("tTfF"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
