"""The config of a stored run, for resuming it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore, last_step, links_out
from agentgym_env.trust import require_trust
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.read import (
    CONFIGS,
    DEFAULT,
    method_config,
    parse_overrides,
    stored_config,
)
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import names_in_run


def resumed_config(path: Path, words: Sequence[str] = (), *, trusted: bool = False) -> RunConfig:
    """The config of the run in `path`, with other steps if `words` say so (`steps=N`).

    Raises `ConfigError` if there is none or if `words` change anything else, and `BadRequest` if it
    sets what needs trust and is not trusted.
    """
    asked = _only_steps(path, words)
    metadata = RunStore.open(path).read_json("run.json") or {}
    if objects := metadata.get("objects"):
        raise ConfigError(
            f"{path} was trained with Python objects ({', '.join(map(str, objects))}), which its "
            "config cannot restore; resume it with AgentTrainer.train(resume_from_checkpoint=True)"
        )
    values = metadata.get("config")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a training run: its run.json has no config")
    method = values.get("method", DEFAULT)
    if not isinstance(method, str) or method not in CONFIGS:
        raise ConfigError(f"{path} is not a training run: its method is {method!r:.80}")
    # Check this first: creating the config imports the agent.
    require_trust(f"{path}/run.json", names_in_run(values), trusted=trusted)
    # The run would be written to what they lead to, and checkpoints there be deleted.
    require_trust(f"{path}, by links,", links_out(path), trusted=trusted)
    if not (path / "trajectories").is_dir():
        raise ConfigError(
            f"{path} cannot be resumed: it has no folder trajectories. Restore it, or start a new "
            "run with the config in run.json"
        )
    config: RunConfig = stored_config(path, {**values, "output_dir": str(path)})
    return _with_steps(config, asked) if asked else config


def is_complete(config: RunConfig) -> bool:
    """Whether the run of a stored config is complete, with as many steps as the config has."""
    store = RunStore.open(Path(config.output_dir))
    summary = store.read_json("summary.json")
    if summary is None:
        return False
    if isinstance(config, AgentEvolConfig):
        return True
    stored = (store.read_json("run.json") or {}).get("config", {}).get("steps", 0)
    return bool(summary.get("steps", stored) >= config.as_dict()["steps"])


def _only_steps(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """The values in `words`; raises `ConfigError` if they are more than `steps`."""
    files = [word for word in words[:1] if "=" not in word and not word.startswith("-")]
    asked = {} if files else parse_overrides(words)
    if others := ", ".join([*files, *(key for key in asked if key != "steps")]):
        raise ConfigError(
            f"a resumed run keeps its config; leave out {others}, or start a new run with "
            f"{path}/config.yaml. Only the steps of RL, SFT and DPO can change: steps=N"
        )
    return asked


def _with_steps(config: RunConfig, asked: Mapping[str, Any]) -> RunConfig:
    """A stored run's config with the number of steps that is asked for."""
    path = config.output_dir
    if isinstance(config, AgentEvolConfig):
        raise ConfigError(f"{path} is a run of AgentEvol, which keeps its steps; leave out steps")
    changed = method_config({**config.as_dict(), **asked})
    rows, _ = RunStore.open(Path(path)).metrics()
    if (steps := changed.as_dict()["steps"]) < last_step(rows):
        raise ConfigError(
            f"{path} is trained to step {last_step(rows)}; steps is at least that, got {steps}"
        )
    return changed
