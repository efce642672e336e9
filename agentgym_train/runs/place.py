"""The place of this process among those of a run, from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentgym_env.errors import ConfigError

ASKED: Final = "AGENTGYM_PROCESSES"
"""Environment variable with the requested number of processes; set by `launch_if_asked`."""

SIZES: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

_RANKS: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")

_FIX: Final = (
    "On CPUs start with `agentgym train CONFIG --num-processes N`, or with `agentgym train CONFIG "
    "--accelerate starter:accelerate/cpu_two_processes.yaml`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Rank of this process and number of processes, from environment variables."""

    rank: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


def place(environ: Mapping[str, str] | None = None) -> Place:
    """The place of this process; raises `ConfigError` if fewer processes than requested run."""
    given = os.environ if environ is None else environ
    sizes = [_number(given, name) for name in SIZES if name in given]
    ranks = [_number(given, name) for name in _RANKS if name in given]
    here = Place(next(iter(ranks), 0), next(iter(sizes), 1))
    if ASKED in given:
        asked = _number(given, ASKED)
        if asked != here.processes:
            raise ConfigError(
                f"{asked} processes were requested but {here.processes} started. {_FIX}"
            )
    elif not sizes and {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= set(given):
        raise ConfigError(
            "accelerate was configured for several processes but started one, as it does for --cpu "
            f"and for distributed_type NO or MULTI_CPU. {_FIX}. For a single process pass "
            f"--num_processes 1 and unset MASTER_PORT, or set {ASKED}=1"
        )
    return here


def obey_cpu() -> None:
    """Hide the GPUs from all libraries if accelerate is configured for CPUs."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _number(given: Mapping[str, str], name: str) -> int:
    try:
        return int(given[name])
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, got {given[name]!r}; unset it") from error
