"""`agentgym check`: the conformance suite for one environment, a line per rule."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import EnvId, EnvKwargs, json_object
from agentgym_env.conformance import RULES, check_environment
from agentgym_env.printable import one_line
from agentgym_env.registration import full_id


def check(
    env_id: EnvId,
    env_kwargs: EnvKwargs = "{}",
    tasks: Annotated[int, typer.Option(help="Number of tasks per split.", min=1)] = 6,
    sessions: Annotated[int, typer.Option(help="Number of interleaved sessions.", min=1)] = 64,
) -> None:
    """Run the conformance checks of an environment.

    The exit status is 1 if a check fails.
    """
    kwargs = json_object("--env-kwargs", env_kwargs)
    # Log messages about the invalid actions would hide the results.
    logging.getLogger("agentgym_servers").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    broken = 0
    found = check_environment(full_id(env_id), kwargs, tasks_per_split=tasks, sessions=sessions)
    for finding in found:
        broken += not finding.passed
        mark = Text("ok  ", "green") if finding.passed else Text("FAIL", "bold red")
        mark = mark if finding.applied else Text("n/a ", "yellow")
        console.print(mark, Text(f"{finding.rule}: {one_line(finding.detail)}"), soft_wrap=True)
    if broken:
        console.print(f"[bold red]{broken} of {len(RULES)} checks failed[/]")
        sys.exit(1)
