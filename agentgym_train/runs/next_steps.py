"""The commands that are suggested at the end of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agentgym_env.run_store import RunStore
from agentgym_train.config.learn import DPOConfig, SFTConfig
from agentgym_train.config.policy import HORIZON, SETTINGS_OF_A_RUN, PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import is_known, trust_option
from agentgym_train.config.worlds import World, WorldEvalSettings
from agentgym_train.training.checkpoints import last_checkpoint

WEAK = 0.05
"""Success below which the suggestion is to find out why."""


def next_commands(config: RunConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after a run."""
    results = store.read_json("summary.json") or {}
    success = results.get("success_after")
    if success is not None and success < WEAK:
        return [_read_failures(config, store, results), *_further(config, store)]
    was_evaluated = success is not None
    return [
        *(_evaluate(config, world, store.path, was_evaluated) for world in _worlds(config)),
        *_further(config, store),
        *([_reinforce(config, store.path)] if isinstance(config, SFTConfig | DPOConfig) else []),
    ]


def policy_options(config: RunConfig, run: Path) -> str:
    """The options of `agentgym eval` and `collect` for the policy of a run."""
    words = []
    plain = PolicyConfig()
    if any(getattr(config, name) != getattr(plain, name) for name in SETTINGS_OF_A_RUN):
        words += ["--settings-of", shlex.quote(str(run))]
    if not is_known("agent", config.agent):
        agent = config.agent if isinstance(config.agent, str) else json.dumps(config.agent)
        words += ["--agent", shlex.quote(agent)]
    for wrapper in config.wrappers:
        words += [
            "--wrapper",
            wrapper if isinstance(wrapper, str) else shlex.quote(json.dumps(wrapper)),
        ]
    return "".join(f" {word}" for word in words)


def _evaluate(config: RunConfig, world: World, run: Path, was_evaluated: bool) -> tuple[str, str]:
    """The command that evaluates the policy in an environment, after training on a new split."""
    split = world.split if world.split and was_evaluated else world.eval.split
    own = replace(config, instruction=world.instruction, wrappers=world.wrappers or [])
    purpose = "evaluate the trained policy"
    purpose += " on another split" * (split != world.eval.split)
    return (
        f"agentgym eval --env {world.env} --policy {run}/model --split {split} "
        f"--horizon {world.eval.horizon}{policy_options(own, run)}",
        purpose + ", with the wrappers of the training" * bool(world.wrappers),
    )


def _further(config: RunConfig, store: RunStore) -> list[tuple[str, str]]:
    """The command that trains further; none where it would be rejected."""
    metadata = store.read_json("run.json") or {}
    if metadata.get("objects") or last_checkpoint(store.checkpoints) is None:
        return []
    rl = isinstance(config, RLConfig)
    steps = config.steps if rl else (store.read_json("summary.json") or {}).get("steps")
    command = f"agentgym train --resume {store.path} --steps {2 * max(1, steps or 1)}"
    return [
        (
            command + trust_option(config.as_dict()),
            "train it further, to twice as many steps",
        )
    ]


def _reinforce(config: RunConfig, run: Path) -> tuple[str, str]:
    """The command that continues with RL, whose config the user writes."""
    entries = ", ".join(f"{{env: {world.env}}}" for world in _worlds(config))
    return (
        f"agentgym train rl.yaml --model {run}/model --output_dir {run}-rl",
        f"continue with RL: write rl.yaml with envs: [{entries}] (examples/train has some)",
    )


def _read_failures(
    config: RunConfig, store: RunStore, results: Mapping[str, Any]
) -> tuple[str, str]:
    """What to do about a policy that solves next to nothing: RL would learn from no success."""
    after = results.get("after") or {}
    reports = [after] if "cut_turns" in after else list(after.values())
    cut = fmean([report["cut_turns"] or 0.0 for report in reports]) if reports else 0.0
    return (
        f"agentgym view {store.path}",
        f"read five failures: what does the policy write? {cut:.0%} of its turns were cut at "
        f"turn_max_tokens={config.turn_max_tokens}. Where next to nothing is solved, RL has no "
        "success to learn from: begin with a policy that solves some tasks, such as one after SFT",
    )


def _worlds(config: RunConfig) -> list[World]:
    """The environments of a run; without one, the user completes the command."""
    own = WorldEvalSettings(split=config.eval.split, horizon=config.eval.horizon or HORIZON)
    return config.worlds or [World(env="ENV", eval=own)]
