"""Does a staged horizon help? The whole study, a part of it, or one cell.

    python examples/horizon_lab/study.py --out runs/horizon
    python examples/horizon_lab/study.py --part main --world tower --out runs/horizon
    python examples/horizon_lab/study.py --cell main/tower-grpo-long-11 --out runs/horizon
    python examples/horizon_lab/study.py --list

PLAN.md is the plan of analysis. Finished cells are kept, and an interrupted one continues from its
last checkpoint: the same command resumes the study after Ctrl-C or a kill. Every command ends with
the tables and plots of what is there so far.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from plan import PARTS, WORLDS, Study
from rich.console import Console

from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_train.models.loading import quiet_libraries


def main() -> int:
    """Run what is missing, then write the summary, the tables and the plots."""
    args = arguments()
    console = Console()
    quiet_libraries()
    try:
        cells = list(chosen(args))
        if args.list:
            for cell in cells:
                print(cell.name)
            return 0
        from analysis import summarized
        from cell import play

        elsewhere = {cell["name"] for cell in summarized(args.out)}
        began = time.monotonic()
        for number, cell in enumerate(cells if not args.report else (), 1):
            if cell.name in elsewhere or cell.result() is not None:
                continue
            result = play(cell, console)
            shown = " ".join(f"{h}: {v:.3f}" for h, v in result["final"]["success"].items())
            console.print(
                f"[bold]{cell.name}[/] ({number} of {len(cells)}, "
                f"{time.monotonic() - began:.0f} s in all): final success at {shown}",
                highlight=False,
                soft_wrap=True,
            )
        if "scaling" in args.part and not args.report:
            from scaling import scale

            scale(args.out, console, trial=args.trial)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes.")
        return 130
    except AgentGymError as error:
        console.print(f"[red]{error}[/]")
        return 2
    from analysis import write

    command = shlex.join(["python", "examples/horizon_lab/study.py", *sys.argv[1:]])
    for path in write(args.out, command):
        console.print(str(path), soft_wrap=True, highlight=False)
    return 0


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    parts = (*PARTS, "scaling")
    add("--part", default=",".join(parts), help=f"parts, separated by commas: {', '.join(parts)}")
    add("--world", default="", help=f"only these: {', '.join(WORLDS)}")
    add("--schedule", default="", help="only these schedules: short, long, stepwise, ...")
    add("--seed", default="", help="only these seeds")
    add("--cell", default="", help="only this cell, by its name in --list")
    add("--out", type=Path, default=Path("runs/horizon"), help="folder of the study")
    add("--list", action="store_true", help="show the names of the cells, and run nothing")
    add("--report", action="store_true", help="only the tables and plots of what is there")
    add("--trial", action="store_true", help="cells of a few steps, to try the study out")
    add("overrides", nargs="*", metavar="key=value", help="values laid over every cell's config")
    args = parser.parse_intermixed_args()
    args.part = args.part.split(",")
    unknown = [name for name in args.part if name not in parts]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(parts)}")
    return args


def chosen(args: argparse.Namespace) -> Iterator:
    """The cells that the command line names, in the order in which they run."""
    study = Study(args.out, words=tuple(args.overrides), trial=args.trial)
    worlds = tuple(args.world.split(",")) if args.world else None
    for name in worlds or ():
        if name not in WORLDS:
            raise ConfigError(f"no world {name!r}; choose from {', '.join(WORLDS)}")
    found = False
    for part in args.part:
        if part not in PARTS:
            continue
        for cell in PARTS[part](study):
            labels = cell.labels
            if (
                (not worlds or labels["world"] in worlds)
                and (not args.schedule or labels["schedule"] in args.schedule.split(","))
                and (not args.seed or str(labels["seed"]) in args.seed.split(","))
                and (not args.cell or cell.name == args.cell)
            ):
                found = True
                yield cell
    if args.cell and not found:
        raise ConfigError(f"no cell {args.cell!r}; --list shows their names")


if __name__ == "__main__":
    sys.exit(main())
