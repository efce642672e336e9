"""Checks before torch is loaded: processes, libraries and the environments of a config."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trainer_args import OTHER_TRACKERS, TRACKERS, trackers_of
from agentgym_train.models.available import check_available
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds, open_worlds

logger = logging.getLogger(__name__)

_NEEDED: Final = ("torch", "transformers", "trl", "accelerate", "datasets", "tokenizers")


ASKED: Final = "AGENTGYM_PROCESSES"
"""Environment variable with the requested number of processes; set by `launch_if_asked`."""

SIZES: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

_RANKS: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")

_FIX: Final = (
    "On CPUs start with `agentgym train CONFIG --num-processes N`, or with `agentgym train CONFIG "
    "--accelerate starter:accelerate/cpu_two_processes.yaml`"
)


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """Rank of this process and number of processes, from environment variables."""

    rank: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


def process_rank(environ: Mapping[str, str] | None = None) -> ProcessRank:
    """The place of this process; raises `ConfigError` if fewer processes than requested run."""
    given = os.environ if environ is None else environ
    sizes = [_number(given, name) for name in SIZES if name in given]
    ranks = [_number(given, name) for name in _RANKS if name in given]
    here = ProcessRank(next(iter(ranks), 0), next(iter(sizes), 1))
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


@contextmanager
def lean_imports() -> Iterator[None]:
    """Context in which torch, transformers and TRL are imported in three quarters of the time.

    Garbage collection pauses, as it finds nothing to free among modules; those that exist
    afterwards are left out of later collections. scikit-learn and SciPy are hidden, which
    transformers uses only for assisted generation and for models that detect objects.
    """
    hidden = [name for name in ("sklearn", "scipy") if name not in sys.modules]
    collects = gc.isenabled()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if collects:
            gc.freeze()
            gc.enable()


def check_trackers(config: RunConfig) -> None:
    """Raise `MissingExtra` if the package of a tracker is not installed, without loading it."""
    for name in trackers_of(config.trainer_args):
        packages = TRACKERS.get(name)
        if packages and not any(find_spec(package) for package in packages):
            raise MissingExtra(
                f"trainer_args.report_to {name} needs {packages[0]}: "
                f"pip install 'agentgym-sdk[{name}]'"
            )
        module = OTHER_TRACKERS.get(name)
        if module and find_spec(module) is None:
            raise MissingExtra(f"trainer_args.report_to {name} needs {module}; install it with pip")


def check_local(config: RunConfig, processes: int, *, is_loaded: bool = False) -> None:
    """Raise an error if the batch cannot be divided, or a library or the model is not available."""
    config.check_processes(processes)
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"agentgym train needs {', '.join(missing)}: pip install 'agentgym-sdk[train]'"
        )
    check_trackers(config)
    if not is_loaded:
        check_available(config.model)


def prepared(config: RunConfig, processes: int = 1, *, is_loaded: bool = False) -> Worlds:
    """The environments of a config, opened for one of `processes`.

    Raises an error if the batch is not divisible by the processes, or if a library, the model, a
    server, an environment or a split is not available.
    """
    servers = [address for world in config.worlds for address in world.servers]
    if config.token_file is not None and not servers:
        raise ConfigError(
            "token_file (--token-file) needs servers: name their addresses, or leave it out; a "
            "local server needs no token"
        )
    check_local(config, processes, is_loaded=is_loaded)
    with ExitStack() as stack:
        worlds = stack.enter_context(open_worlds(config, processes))
        for world, runner in zip(config.worlds, worlds, strict=True):
            if world.split:
                _warn_of_trained_tasks(runner, world.split, world.eval.split)
        stack.pop_all()
    return worlds


def _warn_of_trained_tasks(runner: RolloutRunner, split: str, eval_split: str) -> None:
    """Log a warning if tasks of the evaluation are trained on, as selections allow."""
    held_out = set(runner.tasks.split(eval_split))
    trained = held_out.intersection(runner.tasks.split(split))
    if trained and process_rank().is_first:
        logger.warning(
            "%s: %d of the %d tasks of eval.split %r are also in split %r, which is trained on; "
            "success on them does not show success on new tasks",
            runner.env_id, len(trained), len(held_out), eval_split, split,
        )  # fmt: skip


def _number(given: Mapping[str, str], name: str) -> int:
    try:
        return int(given[name])
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, got {given[name]!r}; unset it") from error
