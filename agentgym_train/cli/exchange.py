"""`agentgym export` and `agentgym import`: episodes to and from files of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from agentgym_env.cli.options import check_ending, check_folder_name, with_option_groups
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import BrokenLine
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.options import OLD_FILTERS, OldOptions, SettingsOptions


@with_option_groups
def export(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or files of episodes.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .jsonl, .json or .parquet.")],
    form: Annotated[
        str, typer.Option("--format", help="messages, conversations or trajectories.")
    ] = "messages",
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Include sampled token ids.")
    ] = True,
    *,
    kept: Annotated[dict[str, Any], SettingsOptions(EpisodeFilter)],
    old: Annotated[None, OldOptions(*OLD_FILTERS)],
) -> None:
    """Export episodes to files for training with other libraries."""
    from agentgym_train.data.datasets import read_demonstrations
    from agentgym_train.data.files import ENDINGS, write_rows
    from agentgym_train.data.formats import export_rows, format_named

    console = Console()
    name = format_named(form)
    check_ending("--out", out, *(ENDINGS[:2] if name == "trajectories" else ENDINGS))
    target = out.resolve()
    for source in sources:
        if source.resolve() in (target, *target.parents):
            raise ConfigError(f"--out {out} is a source, or in its folder; choose another file")
    selected, read = read_demonstrations(sources, EpisodeFilter(**kept))
    _report_broken(console, read.broken)
    found = f"{len(selected.selected)} of {len(read.trajectories)} episodes"
    others = selected.reasons()
    if not selected.selected:
        raise ConfigError(f"nothing to export: {found} are selected{others}")
    count = write_rows(out, export_rows(selected.selected, name, tokens=tokens))
    console.print(f"{out}: {count} rows from {found}{others}.", soft_wrap=True)


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JSON, JSON lines or Parquet.")
    ],
    out: Annotated[Path, typer.Option(help="Run folder to create.")],
    form: Annotated[
        str,
        typer.Option(
            "--format", help="messages, conversations or trajectories; auto detects it per row."
        ),
    ] = "auto",
    env: Annotated[str, typer.Option(help="Environment id of rows that do not name one.")] = "",
) -> None:
    """Import episodes from files, including those of AgentGym.

    Writes them to a new run folder.
    """
    from agentgym_env.run_store import RunStore, run_metadata
    from agentgym_train.data.formats import Reading, format_named, read_episodes

    console = Console()
    check_folder_name("--out", out)
    name = None if form == "auto" else format_named(form)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; choose a new folder")
    read = Reading()
    for file in files:
        read.add(read_episodes(file, name, env=env))
    _report_broken(console, read.broken)
    if not read.trajectories:
        first = [f": {line.place}: {line.reason}" for line in read.broken[:1]]
        raise ConfigError(f"no episodes in {', '.join(map(str, files))}{''.join(first)}")
    config = {"method": "import", "files": [str(file) for file in files], "output_dir": str(out)}
    store = RunStore.create(out, run_metadata(config))
    store.append_trajectories("imported", read.trajectories)
    wins = sum(trajectory.success for trajectory in read.trajectories)
    store.write_json("summary.json", {"episodes": len(read.trajectories), "successes": wins})
    console.print(
        f"{out}: {len(read.trajectories)} episodes, {wins} successes"
        + (f"; {len(read.broken)} rows could not be read." if read.broken else "."),
        soft_wrap=True,
    )


def _report_broken(console: Console, broken: list[BrokenLine]) -> None:
    """Report the lines that cannot be read; the others are used."""
    from agentgym_train.data.formats import describe_broken

    for sentence in describe_broken(broken):
        console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)
