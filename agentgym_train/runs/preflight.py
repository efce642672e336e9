"""Everything that can be rejected before torch is loaded."""

from __future__ import annotations

from pathlib import Path

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trust import names_in, require_trust
from agentgym_train.config.base import RunConfig
from agentgym_train.config.methods import AgentEvolConfig, method_config
from agentgym_train.rollout.runner import RolloutRunner, Worlds
from agentgym_train.runs.launching import check_libraries


def resumed_config(path: Path, *, trusted: bool = False) -> RunConfig:
    """The config of the run in `path`.

    Raises `ConfigError` if there is none, or if it names code or addresses and is not trusted.
    """
    values = (RunStore.open(path).read_json("run.json") or {}).get("config")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a training run: its run.json has no config")
    # Before it becomes a config, which imports the agent.
    require_trust(f"{path}/run.json", names_in(values), trusted=trusted)
    return method_config({**values, "output_dir": str(path)})


def is_complete(path: Path) -> bool:
    """Whether the run in `path` has come to its end."""
    return RunStore.open(path).read_json("summary.json") is not None


def prepared(
    config: RunConfig, processes: int = 1, *, is_loaded: bool = False
) -> RolloutRunner | Worlds | None:
    """What is played, ready for one of so many processes; None if nothing is.

    Raises with what to do when the batch does not divide, when a library, the model, a server, the
    environment or what it needs, or a split is not there.
    """
    config.check_processes(processes)
    check_libraries()
    if not is_loaded:
        config.check_model()
    if isinstance(config, AgentEvolConfig):
        return Worlds(config, processes)
    return world_of(config, processes) if config.env else None


def world_of(config: RunConfig, processes: int = 1) -> RolloutRunner:
    """The environment that a config names, ready to be played."""
    rollout_runner = RolloutRunner(
        config.env,
        config.servers,
        env_kwargs=config.env_kwargs,
        concurrency=config.concurrency,
        processes=processes,
        limits=config.rollout_limits,
        wrappers=config.wrappers,
    )
    try:
        for split in config.splits:
            rollout_runner.tasks.split(split)
    except BaseException:
        rollout_runner.close()
        raise
    return rollout_runner
