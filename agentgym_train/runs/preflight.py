"""Checks before torch is loaded, and the rollout runner of a config."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_env.registry import full_id
from agentgym_env.server_token import token_of_file
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trainer_args import OTHER_TRACKERS, TRACKERS, trackers_of
from agentgym_train.models.hub import check_available
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Stage, Worlds, limits_of
from agentgym_train.runs.place import place

logger = logging.getLogger(__name__)

_NEEDED: Final = ("torch", "transformers", "trl", "accelerate", "datasets", "tokenizers")


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


def check_libraries() -> None:
    """Raise `MissingExtra` if the trainer's libraries are not installed, without loading them."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"agentgym train needs {', '.join(missing)}: pip install 'agentgym-sdk[train]'"
        )


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


def prepared(config: RunConfig, processes: int = 1, *, is_loaded: bool = False) -> Stage:
    """The rollout runner of a config, for one of `processes`; None without an environment.

    Raises an error if the batch is not divisible by the processes, or if a library, the model, a
    server, the environment or a split is not available.
    """
    config.check_processes(processes)
    addresses = list(config.servers)
    several = _of_several(config)
    if several is not None:
        # An unknown environment is reported before a model is downloaded.
        addresses += [address for world in several.worlds for address in world.servers]
    elif config.env and not config.servers:
        full_id(config.env)
    if config.token_file is not None and not addresses:
        raise ConfigError(
            "token_file (--token-file) needs servers: name their addresses, or leave it out; a "
            "local server needs no token"
        )
    check_libraries()
    check_trackers(config)
    if not is_loaded:
        check_available(config.model)
    if several is not None:
        worlds = Worlds(several, processes)
        for world, runner in worlds:
            warn_of_trained_tasks(runner, world.split, world.eval_split)
        return worlds
    if not config.env:
        return None
    rollout_runner = world_of(config, processes)
    if isinstance(config, RLConfig):
        warn_of_trained_tasks(rollout_runner, config.split, config.eval_split)
    return rollout_runner


def warn_of_trained_tasks(rollout_runner: RolloutRunner, split: str, eval_split: str) -> None:
    """Log a warning if tasks of the evaluation are trained on, as selections allow."""
    tasks = rollout_runner.tasks
    trained = set(tasks.split(split)).intersection(tasks.split(eval_split))
    if trained and place().is_first:
        logger.warning(
            "%s: %d of the %d tasks of eval_split %r are also in split %r, which is trained on; "
            "success on them does not show success on new tasks",
            rollout_runner.env_id, len(trained), len(tasks.split(eval_split)), eval_split, split,
        )  # fmt: skip


def world_of(config: RunConfig, processes: int = 1) -> RolloutRunner:
    """A `RolloutRunner` for the environment of a config."""
    rollout_runner = RolloutRunner(
        config.env,
        config.servers,
        token=token_of_file(config.token_file) if config.servers else None,
        env_kwargs=config.env_kwargs,
        concurrency=config.concurrency,
        processes=processes,
        limits=limits_of(config),
        wrappers=config.wrappers,
    )
    try:
        for split in config.splits:
            rollout_runner.tasks.split(split)
    except BaseException:
        rollout_runner.close()
        raise
    return rollout_runner


def _of_several(config: RunConfig) -> AgentEvolConfig | RLConfig | None:
    """The config, if it is one of several environments."""
    has_several = isinstance(config, AgentEvolConfig) or (
        isinstance(config, RLConfig) and bool(config.envs)
    )
    return config if has_several else None  # type: ignore[return-value]
