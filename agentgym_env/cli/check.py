"""`agentgym check`: the conformance suite for one environment, a line per rule."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import EnvId, EnvKwargs, json_object
from agentgym_env.conformance import RULES, Finding, check_environment
from agentgym_env.errors import BadRequest
from agentgym_env.printable import one_line
from agentgym_env.registration import full_id


def check(
    env_id: EnvId,
    env_kwargs: EnvKwargs = "{}",
    tasks: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="Number of tasks per split. Default: 64 for the expert, 6 for other rules.",
        ),
    ] = "",
    sessions: Annotated[int, typer.Option(help="Number of interleaved sessions.", min=1)] = 64,
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which no further rule is checked.", min=1)
    ] = 300.0,
    max_observation: Annotated[
        int, typer.Option(help="Characters of an observation above which to warn.", min=1)
    ] = 32_000,
    max_step_time: Annotated[
        float, typer.Option(help="Seconds of a step above which to warn.", min=0)
    ] = 2.0,
) -> None:
    """Run the conformance checks of an environment.

    The exit status is 1 if a check fails. Warnings do not count as failures.
    """
    kwargs = json_object("--env-kwargs", env_kwargs)
    # Log messages about the invalid actions would hide the results.
    logging.getLogger("agentgym_servers").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    findings = check_environment(
        full_id(env_id),
        kwargs,
        tasks_per_split=_number_of_tasks(tasks),
        sessions=sessions,
        time_limit_s=time_limit,
        max_observation=max_observation,
        max_step_s=max_step_time,
    )
    broken = warned = 0
    for finding in findings:
        broken += not finding.passed
        warned += finding.warning
        console.print(_mark(finding), Text(_line(finding)), soft_wrap=True)
    if warned:
        console.print(f"[yellow]{warned} of {len(RULES)} checks warn[/]")
    if broken:
        console.print(f"[bold red]{broken} of {len(RULES)} checks failed[/]")
        sys.exit(1)


def _number_of_tasks(text: str) -> int | Literal["all"] | None:
    if not text:
        return None
    if text == "all":
        return "all"
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise BadRequest(f"--tasks must be a positive number or 'all', got {text!r}")
    return int(text[:9])


def _mark(finding: Finding) -> Text:
    if finding.warning:
        return Text("warn", "yellow")
    if not finding.applied:
        return Text("n/a ", "yellow")
    return Text("ok  ", "green") if finding.passed else Text("FAIL", "bold red")


def _line(finding: Finding) -> str:
    action = f"action {finding.action!r}" if finding.action is not None else None
    cause = "; ".join(filter(None, (finding.place, action)))
    text = f"{finding.rule}: {one_line(finding.detail)}"
    return f"{text} [{one_line(cause)}]" if cause else text
