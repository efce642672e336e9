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
from collections.abc import Iterator, Sequence
from pathlib import Path

from cell import Cell, digest, play
from plan import PARTS, WORLDS, Study
from rich.console import Console
from rich.markup import escape

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
        if not args.report:
            run(args, cells, console)
        report(args, console)
        if args.scaling and not args.report:
            from scaling import WORLD, scale

            first = next(PARTS["main"](study_of(args), (WORLD,))).config
            if scale(args.out, first, console, trial=args.trial):
                report(args, console)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes.")
        return 130
    except (AgentGymError, OSError) as error:
        # The folders of the cells are in --out.
        text = str(error).replace("output_dir=", "--out ").replace("output_dir", "--out")
        console.print(f"[red]{escape(text)}[/]", soft_wrap=True)
        return 2
    return 0


def run(args: argparse.Namespace, cells: Sequence[Cell], console: Console) -> None:
    """Train the cells that are not finished yet; raises `ConfigError` for one of another plan."""
    import torch
    from analysis import SUMMARY, summarized

    # Sums depend on the number of threads in their last bits, and so do sampled tokens.
    torch.set_num_threads(args.threads)
    elsewhere = {cell["name"]: cell.get("plan") for cell in summarized(args.out)}
    missing = [cell for cell in cells if cell.result() is None and cell.name not in elsewhere]
    for cell in cells:
        if cell.name in elsewhere and elsewhere[cell.name] != digest(cell.plan):
            raise ConfigError(
                f"{args.out / SUMMARY} has {cell.name} of another plan; choose another --out"
            )
    if len(missing) < len(cells):
        console.print(f"Finished already: {len(cells) - len(missing)} of {len(cells)}.")
    began = time.monotonic()
    for number, cell in enumerate(missing, 1):
        result = play(cell, console)
        shown = " ".join(f"{h}: {v:.3f}" for h, v in result["final"]["success"].items())
        console.print(
            f"[bold]{cell.name}[/] ({number} of {len(missing)}, "
            f"{time.monotonic() - began:.0f} s in all): final success at {shown}",
            highlight=False,
            soft_wrap=True,
        )


def report(args: argparse.Namespace, console: Console) -> None:
    """Write the summary, the tables and the plots of the finished cells."""
    from analysis import write

    command = shlex.join(["python", "examples/horizon_lab/study.py", *sys.argv[1:]])
    paths = write(args.out, command)
    if not paths:
        raise ConfigError(f"{args.out} has no finished cell")
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    parts = (*PARTS, "scaling")
    add("--part", default="", help=f"parts, separated by commas; without it {', '.join(parts)}")
    add("--world", default="", help=f"only these: {', '.join(WORLDS)}")
    add("--schedule", default="", help="only these schedules: short, long, stepwise, ...")
    add("--seed", default="", help="only these seeds")
    add("--cell", default="", help="only this cell, by its name in --list")
    add("--out", type=Path, default=Path("runs/horizon"), help="folder of the study")
    add("--list", action="store_true", help="show the names of the cells, and run nothing")
    add("--report", action="store_true", help="only the tables and plots of what is there")
    threads = {"type": int, "choices": range(1, 257), "metavar": "N", "default": 1}
    add("--threads", **threads, help="threads of torch; a rerun needs as many as before")
    add("--trial", action="store_true", help="cells of a few steps, to try the study out")
    add("overrides", nargs="*", metavar="key=value", help="values over those of every config")
    args = parser.parse_intermixed_args()
    filtered = args.world or args.schedule or args.seed or args.cell
    args.scaling = "scaling" in args.part.split(",") or not (args.part or filtered)
    args.part = args.part.split(",") if args.part else list(parts)
    unknown = [name for name in args.part if name not in parts]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(parts)}")
    return args


def study_of(args: argparse.Namespace) -> Study:
    """The study that the command line describes."""
    return Study(args.out, words=tuple(args.overrides), trial=args.trial)


def chosen(args: argparse.Namespace) -> Iterator[Cell]:
    """The cells that the command line names, in the order in which they run."""
    asked = {
        label: names.split(",")
        for label in ("world", "schedule", "seed")
        if (names := getattr(args, label))
    }
    study = study_of(args)
    named = [cell for part in args.part if part in PARTS for cell in PARTS[part](study)]
    for label, names in asked.items():
        known = dict.fromkeys(str(cell.labels[label]) for cell in named)
        for name in names:
            if named and name not in known:
                raise ConfigError(f"no {label} {name!r} here; choose from {', '.join(known)}")
    found = [
        cell
        for cell in named
        if all(str(cell.labels[label]) in names for label, names in asked.items())
        and (not args.cell or cell.name == args.cell)
    ]
    if not found and (args.cell or asked):
        what = f"no cell {args.cell!r}" if args.cell else "no cell of this kind"
        raise ConfigError(f"{what} in part {', '.join(args.part)}; --list shows all names")
    for cell in found:
        study.check(cell)
        yield cell


if __name__ == "__main__":
    sys.exit(main())
