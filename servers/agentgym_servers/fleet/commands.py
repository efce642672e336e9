"""The command lines of a fleet's servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from agentgym_env.entry_points import plugin
from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_servers.fleet.spec import ServerGroup

FLEET_SERVERS: Final = "agentgym.fleet_servers"
"""Entry points of the servers that other packages have, by kind."""
_AGENTGYM: Final = "from agentgym_env.cli import main; main()"
_OURS: Final = frozenset({"host", "port", "embedded", "token_file", "env_kwargs", "protocol"})
"""Options of `agentgym serve` that the fleet sets itself."""


class Launch(Struct, frozen=True):
    """How to start a server."""

    argv: list[str]
    env: dict[str, str] = {}


def launch_of(group: ServerGroup, host: str, port: int, token: str, folder: Path) -> Launch:
    """How to start a server of a group; `folder` is for files that it reads."""
    if group.kind == "env":
        return _env_launch(group, host, port, token, folder)
    found = plugin(FLEET_SERVERS, "vllm")
    if found is None:
        raise MissingExtra("a fleet with models needs 'agentgym-sdk[train]' on its machines")
    argv = found.load()(group.model, group.options, host, port)
    updatable = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    return Launch(argv, {**updatable, "VLLM_API_KEY": token})


def _env_launch(group: ServerGroup, host: str, port: int, token: str, folder: Path) -> Launch:
    taken = sorted(_OURS.intersection(group.options))
    if taken:
        raise ConfigError(f"the fleet sets {', '.join(taken)} itself; remove it from options")
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(token, encoding="ascii")
    argv = [
        # -P: the working directory must not shadow the standard library.
        sys.executable, "-P", "-c", _AGENTGYM, "serve", str(group.env),
        "--host", host, "--port", str(port), "--embedded", "--token-file", str(path),
        "--env-kwargs", json.dumps(group.env_kwargs),
    ]  # fmt: skip
    for name, value in group.options.items():
        argv += _words(name, value)
    return Launch(argv)


def _words(name: str, value: Any) -> list[str]:
    option = "--" + name.replace("_", "-")
    if value is True:
        return [option]
    if value is False or value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [word for each in values for word in (option, str(each))]
