"""Replaces a command by `accelerate launch` of it, if several processes are requested."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.config.files import local_path
from agentgym_train.config.run import RunConfig
from agentgym_train.runs.preflight import ASKED, SIZES, check_local

_SAFE_PATH: Final = ("PYTHONSAFEPATH", "agentgym")
"""Environment variable for the launcher and its processes: without it, `python -m` puts the working
directory first in the path, where it can shadow installed modules."""


def launch_if_asked(
    config: RunConfig, words: Sequence[str], file: Path | None, count: int | None
) -> None:
    """Replace this process by `accelerate launch` of the command `words`, if several are requested.

    `file` is an accelerate config. `count` is the number of processes on all machines and overrides
    the file's. Errors are reported here, once, and not by every process.
    """
    options, asked = _options(file, count)
    check_local(config, asked)
    if not options:
        return
    if any(name in os.environ for name in SIZES):
        raise ConfigError(
            "a launcher already started this process; omit --accelerate and --num-processes"
        )
    command = [sys.executable, "-m", "agentgym_train.launcher", *options]
    variable, value = _SAFE_PATH
    environ = {variable: value, **os.environ, ASKED: str(asked)}
    _become([*command, "-m", "agentgym_train", *words], environ)


def drop_safe_path() -> None:
    """Unset the variable of `launch_if_asked`, so that child processes do not inherit it."""
    variable, value = _SAFE_PATH
    if os.environ.get(variable) == value:
        del os.environ[variable]


def _options(file: Path | None, count: int | None) -> tuple[list[str], int]:
    """(the options of `accelerate launch`, the number of processes); none for one process."""
    if count is not None and count < 1:
        raise ConfigError(f"--num-processes must be at least 1, got {count}")
    number = [] if count is None else ["--num_processes", str(count)]
    if file is not None:
        file = local_path(file)
        return ["--config_file", str(file), *number], count or _processes_of(file)
    if count is None or count == 1:
        return [], 1
    # The only distributed type of accelerate that also starts several processes on CPUs.
    plain = "--multi_gpu --num_machines 1 --mixed_precision no --dynamo_backend no"
    return [*plain.split(), "--main_process_port", "0", *number], count


def _processes_of(file: Path) -> int:
    """The number of processes of an accelerate config; raises if it cannot be launched."""
    if not file.is_file():
        raise ConfigError(f"no accelerate config {file}; one is starter:accelerate/fsdp2.yaml")
    try:
        values: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(values, dict) or "distributed_type" not in values:
        raise ConfigError(f"{file} is not an accelerate config: it has no distributed_type")
    kind, count = values["distributed_type"], values.get("num_processes", 1)
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"{file} has num_processes {count!r}; set it with --num-processes N")
    if kind == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise MissingExtra(f"{file} needs deepspeed: pip install deepspeed")
    return count


def _become(command: list[str], environ: dict[str, str]) -> NoReturn:
    """Replace this process by another program, which gets its signals and exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)
