"""`agentgym envs`: lists the registered environments."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentgym_env.cli.extras import APART, DISTRIBUTION, extra_in
from agentgym_env.errors import AgentGymError
from agentgym_env.printable import UncutTable, one_line
from agentgym_env.registry import EnvEntry, env_class, registered


def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the registered environments.

    Shows the id, the splits with their numbers of tasks, and the extra that is missing, if any.
    `--json` adds the selections, such as the paper's tasks.
    """
    rows = [_describe(entry) for entry in registered()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("id", "splits", "missing")
    extras = set()
    for row in rows:
        splits = ", ".join(f"{name} {size}" for name, size in row["splits"].items())
        missing = row["missing"] or ""
        extra = extra_in(missing)
        if extra is not None:
            extras.add(extra)
            missing = f"extra {extra}"
        table.add_row(*(Text(one_line(cell)) for cell in (row["id"], splits, missing)))
    console = Console()
    console.print(UncutTable(table))
    if apart := extras & APART:
        hint = f"Not into this environment, but into one of their own: {', '.join(sorted(apart))}"
        console.print(f"{hint} (README.md, Install)", markup=False, highlight=False, soft_wrap=True)
    if extras := extras - APART:
        wanted = f"{DISTRIBUTION}[{','.join(sorted(extras))}]"
        hint = f"To install the missing extras: pip install '{wanted}'"
        console.print(hint, markup=False, highlight=False, soft_wrap=True)


def _describe(entry: EnvEntry) -> dict[str, Any]:
    try:
        tasks = env_class(entry.env_id)().tasks
    except Exception as error:
        # Somebody's broken environment must not hide the others.
        known = isinstance(error, AgentGymError)
        missing = str(error) if known else f"{type(error).__name__}: {error}"
        return {"id": entry.env_id, "splits": {}, "selections": {}, "missing": missing}
    sizes = {name: len(ids) for name, ids in tasks.splits.items()}
    selected = {name: len(ids) for name, ids in tasks.selections.items()}
    return {"id": entry.env_id, "splits": sizes, "selections": selected, "missing": None}
