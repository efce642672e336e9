"""The cells of the study: worlds, schedules, algorithms, seeds and sizes. PLAN.md says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cell import Cell, Measured

from agentgym_env.errors import ConfigError
from agentgym_train.config.read import read_config
from agentgym_train.config.rl import RLConfig

HERE = Path(__file__).resolve().parent
CONTROL = "control"
"""The run at a learning rate of 0, at the long horizon."""
STAGED = "stepwise"
"""The schedule that the paper's claim is about."""
SEEDS = (11, 12, 13, 14, 15)
"""Seeds 1 to 10 are for pilots."""


@dataclass(frozen=True, slots=True)
class World:
    """A world of the study, and the sizes of its cells."""

    name: str
    config: str
    """The config of one run, in this folder."""
    horizons: tuple[int, int, int]
    """Short, medium, long, in turns."""
    every: int
    """Optimizer steps per stage of a staged schedule."""
    env_steps: int
    """Budget of a cell."""
    during: tuple[str, int]
    final: tuple[str, int]
    """Split and episodes per task of the evaluations during and after training."""
    learning_rate: float
    number: int = 8
    """Evaluations during training, after the one before it."""


WORLDS = {
    "tower": World("tower", "tower.yaml", (6, 14, 32), 20, 60_000, ("dev", 2), ("test", 4), 1e-3),
    "textcraft": World(
        "textcraft", "textcraft.yaml", (4, 8, 16), 20, 24_000, ("test", 1), ("test", 2), 5e-4, 6
    ),
}

_TRIAL_STEPS = 40
SCHEDULES = ("short", "medium", "long", "stepwise", "linear", "adaptive")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    # A tiny critic learns at a tiny model's rate, as in examples/learning/compare.py.
    "ppo": {"critic_learning_rate": 1e-3, "lam": 0.95},
    "reinforce_pp": {},
    "turn_gae": {"critic_learning_rate": 1e-3},
}


def schedule(world: World, name: str) -> dict[str, Any]:
    """The `horizon` fields of a schedule."""
    short, medium, long = world.horizons
    turns = list(world.horizons)
    match name:
        case "short" | "medium" | "long":
            return {"horizon": [{"short": short, "medium": medium, "long": long}[name]]}
        case "stepwise" | "linear":
            return {"horizon": {"type": name, "turns": turns, "every": world.every}}
        case "adaptive":
            # The defaults are for runs of hundreds of steps; these are the same parts of a run.
            window = max(2, world.every // 4)
            own = {"every": window, "window": window, "patience": window}
            return {"horizon": {"type": name, "turns": turns, **own}}
    raise ConfigError(f"no schedule {name!r}; choose from {', '.join((*SCHEDULES, CONTROL))}")


@dataclass(frozen=True, slots=True)
class Study:
    """Where the study is kept, and its sizes."""

    out: Path
    seeds: tuple[int, ...] = SEEDS
    words: tuple[str, ...] = ()
    """`key=value` words over the config of every cell."""
    trial: bool = False
    """Cells of a few steps and tasks, to try the study out."""

    def cell(
        self,
        part: str,
        world: World,
        chosen: str,
        seed: int,
        *,
        algorithm: str = "grpo",
        algorithm_args: Mapping[str, Any] | None = None,
        tag: str = "",
        label: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Cell:
        """The cell of a world, schedule, algorithm and seed; `tag` tells variants apart."""
        steps = _TRIAL_STEPS if self.trial else world.env_steps
        arguments = ALGORITHMS.get(algorithm, {}) if algorithm_args is None else algorithm_args
        values = {
            "learning_rate": world.learning_rate,
            **(schedule(world, chosen) if chosen != CONTROL else schedule(world, "long")),
            "algorithm": {"type": algorithm, **dict(arguments)},
            **({"learning_rate": 0.0} if chosen == CONTROL else {}),
            **changes,
        }
        name = "-".join(filter(None, (world.name, tag, algorithm, chosen, str(seed))))
        values |= {
            "output_dir": str(self.out / part / name),
            "seed": seed,
            # The budget ends a run: a turn is a step at least, so these are more than it can take.
            "steps": steps,
            "eval": {
                "before": False,
                "after": False,
                "horizon": world.horizons[-1],
                "per_category": int(self.trial),
            },
        }
        own = self.given(world)
        config: RLConfig = replace(own, model=_model(own.model), **values)
        measured = Measured(world.horizons, world.during, world.final, world.number)
        labels = {
            "part": part, "world": world.name, "schedule": chosen, "algorithm": algorithm,
            "tag": tag, "seed": seed, **(label or {}),
        }  # fmt: skip
        return Cell(f"{part}/{name}", config, steps, measured, labels)

    def given(self, world: World) -> RLConfig:
        """The config of a world, with the words over it."""
        return read_config(HERE / world.config, [f"--{word}" for word in self.words])

    def check(self, cell: Cell) -> None:
        """Raise `ConfigError` if a word sets what the plan sets otherwise."""
        given = self.given(WORLDS[cell.labels["world"]]) if self.words else None
        for key in (word.partition("=")[0] for word in self.words):
            if key != "model" and getattr(given, key) != getattr(cell.config, key):
                raise ConfigError(f"{key} of {cell.name} is set by the plan, in plan.py")


def main_grid(study: Study, worlds: tuple[str, ...] = tuple(WORLDS)) -> Iterator[Cell]:
    """Part `main`: six schedules and the control, GRPO; all schedules of a seed, then the next."""
    for world in worlds:
        for seed in study.seeds:
            for name in (*SCHEDULES, CONTROL):
                yield study.cell("main", WORLDS[world], name, seed)


def algorithm_grid(study: Study, worlds: tuple[str, ...] = tuple(WORLDS)) -> Iterator[Cell]:
    """Part `algorithms`: the other three, three schedules, three seeds; GRPO's are in `main`."""
    for world in worlds:
        for seed in study.seeds[:3]:
            for algorithm in ALGORITHMS:
                for name in ("short", "long", STAGED):
                    if algorithm != "grpo":
                        yield study.cell(
                            "algorithms", WORLDS[world], name, seed, algorithm=algorithm
                        )


MAP = tuple(
    (tower, shaped, group)
    for tower in ("TowerTo4", "TowerTo12", "Tower")
    for shaped in (False, True)
    for group in (4, 16)
)
"""Task length, reward, and episodes per task (with 64 per step in all)."""


def map_grid(study: Study, worlds: tuple[str, ...] = ("tower",)) -> Iterator[Cell]:
    """Part `map`: where staging helps, over task length, reward sparsity and group size."""
    world = replace(WORLDS["tower"], env_steps=WORLDS["tower"].env_steps // 2)
    for seed in study.seeds[:3]:
        for tower, shaped, group in MAP:
            for name in ("short", "long", STAGED):
                yield study.cell(
                    "map",
                    world,
                    name,
                    seed,
                    tag=f"{tower}-{'shaped' if shaped else 'sparse'}-{group}",
                    label={"tasks": tower, "shaped": shaped, "group": group},
                    env=f"tower:{tower}",
                    env_kwargs={"shaped": shaped},
                    num_generations=group,
                    prompts_per_step=64 // group,
                )


SETTINGS = {
    "10-20-30": (1 / 3, 2 / 3, 1.0), "6-13-20": (0.3, 0.65, 1.0), "5-8-10": (0.5, 0.8, 1.0),
    "8-12-15": (8 / 15, 0.8, 1.0), "5-10-15": (1 / 3, 2 / 3, 1.0),
}  # fmt: skip
"""The stages in the paper and its scripts, as shares of the last one."""


def settings_grid(study: Study, worlds: tuple[str, ...] = ("tower",)) -> Iterator[Cell]:
    """Part `settings`: the paper's stages on this scale, and its best for half and twice as long.

    Two of its five shapes are the same on this scale, so one of the two ends below the long
    horizon, as 15 turns do below 30.
    """
    for world in (WORLDS[name] for name in worlds):
        long = world.horizons[-1]
        ends = {name: long // 2 if name == "5-10-15" else long for name in SETTINGS}
        variants = [(name, ends[name], 1.0) for name in SETTINGS]
        variants += [("10-20-30", long, 0.5), ("10-20-30", long, 2.0)]
        for seed in study.seeds[:3]:
            for name, end, length in variants:
                stages = [max(1, round(end * share)) for share in SETTINGS[name]]
                yield study.cell(
                    "settings",
                    world,
                    STAGED,
                    seed,
                    tag=f"{name}-x{length:g}",
                    label={"stages": stages, "length": length},
                    horizon={"turns": stages, "every": max(1, round(world.every * length))},
                )


def rate_grid(study: Study, worlds: tuple[str, ...] = ("tower",)) -> Iterator[Cell]:
    """Part `rate`: a third of the learning rate, to see whether the answer hangs on it."""
    for world in (WORLDS[name] for name in worlds):
        for seed in study.seeds[:3]:
            for name in ("short", "long", STAGED):
                yield study.cell("rate", world, name, seed, learning_rate=world.learning_rate / 3)


PUBLISHED = {"entropy_bonus": 0.001, "beta": 0.001}
"""The terms of AgentGym-RL's loss next to the reward's, for all three algorithms alike."""
MASKED = "masked_reward:MaskedRewardReinforcePP"


def masked_grid(study: Study, worlds: tuple[str, ...] = ("tower",)) -> Iterator[Cell]:
    """Part `masked`: REINFORCE++ as in AgentGym-RL's code, the correct one, and GRPO."""
    for world in (WORLDS[name] for name in worlds):
        for seed in study.seeds:
            for algorithm, tag in ((MASKED, "published"), ("reinforce_pp", ""), ("grpo", "")):
                cell = study.cell(
                    "masked", world, STAGED, seed,
                    algorithm=algorithm, tag=tag, **PUBLISHED,
                )  # fmt: skip
                folder = cell.config.output_dir.replace(MASKED, "reinforce_pp")
                yield replace(cell, name=cell.name.replace(MASKED, "reinforce_pp"),
                              config=replace(cell.config, output_dir=folder))  # fmt: skip


PARTS = {
    "main": main_grid,
    "algorithms": algorithm_grid,
    "masked": masked_grid,
    "rate": rate_grid,
    "settings": settings_grid,
    "map": map_grid,
}


def _model(name: str) -> str:
    """A policy of this folder by its path; any other by its name."""
    folder = HERE / name
    return str(folder) if folder.is_dir() else name
