"""What all runs of the study share: the worlds, the sizes, and the config of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from agentgym_train.config.read import read_config
from agentgym_train.config.rl import RLConfig

HERE = Path(__file__).resolve().parent
WORLDS = ("textcraft", "babyai", "search")
ENVS = {
    "textcraft": "agentgym/TextCraft-v0",
    "babyai": "agentgym/BabyAI-v0",
    "search": "agentgym/Search-v0",
}
SEEDS = (11, 12, 13)
START, JOINT = "start", "joint"
LARGE = "-x3"
"""Suffix of a specialist whose steps have three times the groups, and a third as many steps."""
ENV_STEPS = 20_400
"""Default environment steps of a joint run; each specialist has a third."""
EVAL_TASKS = 100
"""Held-out tasks per world; TextCraft and BabyAI have as many."""
_MAX_STEPS = 10_000
"""The environment steps end a run; an optimizer step takes more than one of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy of the study."""

    arm: str
    """`start`, `joint`, or the world of a specialist, perhaps with `LARGE`."""
    seed: int
    joint_env_steps: int = ENV_STEPS
    """Environment steps of a joint run."""

    @property
    def name(self) -> str:
        """Its folder, and its key in the summary."""
        return f"{self.arm}-{self.seed}"

    @property
    def config(self) -> str:
        """The config's name: that of the world, or `joint`."""
        return self.arm.removesuffix(LARGE)

    @property
    def worlds(self) -> tuple[str, ...]:
        """Where it is evaluated."""
        return (self.config,) if self.config in WORLDS else WORLDS

    @property
    def env_steps(self) -> int:
        """It ends after the optimizer step that reaches this number of environment steps."""
        whole = self.joint_env_steps
        return {START: 0, JOINT: whole}.get(self.arm, whole // len(WORLDS))


def runs(seeds: Sequence[int] = SEEDS, joint_env_steps: int = ENV_STEPS) -> list[Run]:
    """Every run, all arms of a seed before the next seed; large batches are last."""
    parts = [(START, JOINT, *WORLDS), tuple(world + LARGE for world in WORLDS)]
    return [Run(arm, seed, joint_env_steps) for arms in parts for seed in seeds for arm in arms]


def run_config(run: Run, out: Path) -> RLConfig:
    """The config of a run that trains."""
    config = read_config(HERE / f"{run.config}.yaml")
    factor = 3 if run.arm.endswith(LARGE) else 1
    return replace(
        config,
        prompts_per_step=config.prompts_per_step * factor,
        model=str(HERE / config.model),
        env_kwargs=_whole(config.env_kwargs),
        envs=[replace(world, env_kwargs=_whole(world.env_kwargs)) for world in config.envs],
        output_dir=str(out / run.name),
        seed=run.seed,
        steps=_MAX_STEPS,
        eval=replace(config.eval, before=False, after=False),
    )


def world_config(world: str, model: str, seed: int) -> RLConfig:
    """The config with which a policy is evaluated in a world."""
    config = read_config(HERE / f"{world}.yaml")
    return replace(config, model=model, env_kwargs=_whole(config.env_kwargs), seed=seed)


def env_kwargs(world: str) -> dict[str, Any]:
    """The arguments of an environment."""
    values = yaml.safe_load((HERE / f"{world}.yaml").read_text(encoding="utf-8"))
    return _whole(values.get("env_kwargs", {}))


def _whole(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with the whole path of the corpus, which configs name relative to this folder."""
    if "corpus" not in arguments:
        return arguments
    return {**arguments, "corpus": str(HERE / arguments["corpus"])}
