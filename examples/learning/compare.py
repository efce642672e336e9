"""Does it learn? Final success at one fixed horizon, next to the same run at a learning rate of 0.

    python examples/learning/compare.py --algorithms grpo,rloo --out runs/learning
    python examples/learning/compare.py --schedule --out runs/schedules

Every run starts from the same policy; runs of one seed see the same tasks in the same order. What
is done is not run again, so more algorithms or seeds can be added later to the same folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgym_env.errors import AgentGymError
from agentgym_train.algorithms import make_algorithm
from agentgym_train.config.read import read_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.models.available import check_available
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.worlds import open_worlds

HERE = Path(__file__).resolve().parent
CONTROL = "control"
ALGORITHM_ARGS: dict[str, dict[str, Any]] = {
    # A tiny critic learns at a tiny model's rate, not at that of a language model.
    "ppo": {"critic_learning_rate": 1e-3, "lam": 0.95},
    "turn_gae": {"critic_learning_rate": 1e-3},
}
"""Fields that are not the algorithm's defaults."""


def main() -> int:
    """Run what is missing, then show and write the comparison."""
    args = arguments()
    console = Console()
    quiet_libraries()
    try:
        arms = list(schedule_arms(args) if args.schedule else algorithm_arms(args))
        if not run_missing(arms, console):
            console.print("Interrupted. The same command resumes.")
            return 130
    except KeyboardInterrupt:
        console.print("Stopped at once. The same command resumes.")
        return 130
    except AgentGymError as error:
        console.print(f"[red]{error}[/]")
        return 2
    from figures import Comparison

    comparison = Comparison.from_results([arm.result() for arm in arms], CONTROL)
    console.print(comparison.table())
    for path in comparison.write(args.out, shown_command(), curves=not args.schedule):
        console.print(str(path), soft_wrap=True, highlight=False)
    return 0


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--algorithms", default="grpo,rloo,reinforce_pp,turn_returns,gigpo")
    add("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    add("--first-seed", type=int, default=11, help="the seeds before it were used for tuning")
    add("--out", type=Path, required=True, help="folder of the runs and the figures")
    add("--schedule", action="store_true", help="compare horizons instead of algorithms")
    add("--horizons", default="4,8,12", help="with --schedule: short, ..., long")
    add("--every", type=int, default=8, help="with --schedule: optimizer steps of a stage")
    add("--env-steps", type=int, default=12000, help="with --schedule: of every run")
    add("--config", type=Path, default=HERE / "courier.yaml")
    add("--model", default=str(HERE / "warm_policy"), help="the policy all runs start from")
    add("overrides", nargs="*", metavar="key=value", help="values laid over the config")
    return parser.parse_intermixed_args()


def base_config(args: argparse.Namespace) -> RLConfig:
    """What all runs of the comparison share."""
    config = read_config(args.config, [f"--{word}" for word in args.overrides])
    # The final success is measured once, apart from the runs, with each run's own seed.
    return replace(config, model=args.model, eval=replace(config.eval, before=False, after=False))


def seeds_of(args: argparse.Namespace) -> range:
    """The seeds of the comparison."""
    return range(args.first_seed, args.first_seed + args.seeds)


def algorithm_arms(args: argparse.Namespace) -> Iterator[Any]:
    """Each algorithm and the control, seed by seed."""
    from experiment import Arm

    base = base_config(args)
    named = [CONTROL, *args.algorithms.split(",")]
    for seed in seeds_of(args):
        for name in named:
            config = replace(base, seed=seed, output_dir=str(args.out / f"{name}-{seed}"))
            if name == CONTROL:
                yield Arm(name, replace(config, learning_rate=0.0))
                continue
            chosen = ALGORITHM_ARGS.get(name, {})
            algorithm = {"type": name, **chosen}
            make_algorithm(algorithm)
            yield Arm(name, replace(config, algorithm=algorithm))


def schedule_arms(args: argparse.Namespace) -> Iterator[Any]:
    """Fixed short, fixed long and ScalingInter at equal environment steps, and the control."""
    from experiment import Arm

    rounds = [int(word) for word in args.horizons.split(",")]
    base = base_config(args)
    # The budget ends a run: a turn is a step at least, so these are more than it can take.
    horizon = base.worlds[0].eval.horizon
    base = replace(base, steps=args.env_steps, eval=replace(base.eval, horizon=horizon))
    for seed in seeds_of(args):
        for name, horizon, rate in (
            (CONTROL, [rounds[-1]], 0.0),
            (f"fixed {rounds[0]}", [rounds[0]], base.learning_rate),
            (f"fixed {rounds[-1]}", [rounds[-1]], base.learning_rate),
            (f"ScalingInter {'-'.join(map(str, rounds))}", rounds, base.learning_rate),
        ):
            config = replace(
                base,
                seed=seed,
                horizon={"turns": horizon, "every": args.every} if horizon[1:] else horizon,
                learning_rate=rate,
                output_dir=str(args.out / f"{name.replace(' ', '-')}-{seed}"),
                trainer_args={**base.trainer_args, "save_strategy": "no"},
            )
            yield Arm(name, config, env_steps=args.env_steps)


def run_missing(arms: list[Any], console: Console) -> bool:
    """Play every arm that has no result yet, on one server; False if Ctrl-C stopped it."""
    from experiment import Watched, play

    missing = [arm for arm in arms if arm.result() is None]
    if not missing:
        return True
    check_available(missing[0].config.model)
    with open_worlds(missing[0].config) as worlds, progress_bar(console) as progress:
        unit = "env steps" if missing[0].env_steps else "steps"
        bar = progress.add_task(unit, total=sum(arm.size for arm in missing), status="")
        before = 0
        for arm in missing:

            def advance(done: int, figures: str, before: int = before) -> None:
                progress.update(bar, completed=before + done, status=figures)

            with Watched(arm, advance):
                result = play(arm, worlds)
            if result is None:
                return False
            before += arm.size
            progress.update(bar, completed=before)
            console.print(
                f"{arm.name}, seed {arm.config.seed}: success {result['success']:.3f} of "
                f"{result['episodes']} episodes after {result['env_steps']} environment steps, "
                f"{result['train_seconds']:.0f} s",
                highlight=False,
                soft_wrap=True,
            )
    return True


def shown_command() -> str:
    """The command, as it can be typed again."""
    words = [word if word.replace(" ", "") == word else json.dumps(word) for word in sys.argv[1:]]
    return " ".join(["python examples/learning/compare.py", *words])


if __name__ == "__main__":
    sys.exit(main())
