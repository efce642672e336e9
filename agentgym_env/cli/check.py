"""`agentgym check`: the conformance suite for one environment, a line per rule."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import EnvId, EnvKwargs, check_ending, json_object
from agentgym_env.conformance import RULES, Finding, check_environment
from agentgym_env.conformance.attackers import model_attacker
from agentgym_env.conformance.exploit import EPISODES, AttackReport, Exploit, attack_environment
from agentgym_env.errors import BadRequest
from agentgym_env.printable import one_line
from agentgym_env.registry import full_id


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
    exploit: Annotated[
        bool, typer.Option("--exploit", help="Attack the rewards instead of checking the rules.")
    ] = False,
    episodes: Annotated[
        int, typer.Option(help="Number of episodes of all attackers together.", min=1)
    ] = EPISODES,
    exploit_model: Annotated[
        str,
        typer.Option(
            metavar="openai:MODEL@URL",
            help="A language model to attack with too, at an OpenAI-compatible endpoint.",
        ),
    ] = "",
    exploit_out: Annotated[
        Path | None, typer.Option(help="File for the findings with their episodes (JSON Lines).")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the API key of the endpoint.")
    ] = "OPENAI_API_KEY",
) -> None:
    """Run the conformance checks of an environment, or attack its rewards.

    The exit status is 1 if a check fails or an attack succeeds. Warnings do not count as failures.
    """
    kwargs = json_object("--env-kwargs", env_kwargs)
    # Log messages about the invalid actions would hide the results.
    logging.getLogger("agentgym_servers").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    if exploit_out is not None:
        if not (exploit or exploit_model):
            raise BadRequest("--exploit-out needs --exploit")
        check_ending("--exploit-out", exploit_out, ".jsonl")
        if not exploit_out.absolute().parent.is_dir():
            raise BadRequest(f"--exploit-out: there is no folder {exploit_out.absolute().parent}")
    if exploit or exploit_model:
        model = (
            model_attacker(exploit_model, os.environ.get(api_key_env)) if exploit_model else None
        )
        reports = attack_environment(
            full_id(env_id),
            kwargs,
            episodes=episodes,
            tasks_per_split=_number_of_tasks(tasks),
            sessions=sessions,
            time_limit_s=time_limit,
            model=model,
        )
        sys.exit(_print_attacks(console, reports, exploit_out))
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


def _print_attacks(console: Console, reports: Iterator[AttackReport], out: Path | None) -> int:
    """Print a line per attacker, and its first findings with their episodes; the exit status."""
    found: list[Exploit] = []
    total = 0
    for report in reports:
        total += report.found
        found += report.exploits
        if out is not None:  # after each attacker, since a later one may fail
            out.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in found))
        mark = Text("FAIL", "bold red") if report.found else Text("ok  ", "green")
        if not report.episodes:
            mark = Text("n/a ", "yellow")
        console.print(mark, Text(_attack_line(report)), soft_wrap=True)
        for exploit in report.exploits[:_EPISODES_SHOWN]:
            console.print(Text(_episode_text(exploit)), soft_wrap=True)
    if total:
        console.print(f"[bold red]{total} episodes with findings[/]")
    return int(total > 0)


_EPISODES_SHOWN = 3
_TURNS_SHOWN = 12
_REWARDED_SHOWN = 6


def _attack_line(report: AttackReport) -> str:
    if not report.episodes:
        return f"{report.attacker}: no episode; it has nothing to try here, or time is up"
    rate = report.episodes / report.seconds if report.seconds else 0.0
    highest = "none" if report.highest == -math.inf else f"{report.highest:g}"
    return (
        f"{report.attacker}: {report.episodes:,} episodes, {report.turns:,} turns, {rate:,.0f} "
        f"episodes/s; base rate {report.base_rate:.4f}, highest return without success "
        f"{highest}; {report.found:,} findings"
    )


def _episode_text(exploit: Exploit) -> str:
    """A finding, and of its episode the turns that were rewarded first, and the last ones."""
    # The action that raised has no reward.
    turns = list(enumerate(zip_longest(exploit.actions, exploit.rewards), 1))
    rewarded = [turn for turn, (_, reward) in turns if reward is not None and reward > 0]
    chosen = set(rewarded[:_REWARDED_SHOWN])
    last = len(turns)
    while last and len(chosen) < _TURNS_SHOWN:
        chosen.add(last)
        last -= 1
    lines, before = [], 0
    for turn, (action, reward) in turns:
        if turn in chosen:
            if turn > before + 1:
                lines.append(f"       ... {turn - before - 1} turns")
            paid = "no reply" if reward is None else f"reward {reward:g}"
            lines.append(f"       turn {turn}, {paid}: {one_line(action, 160)}")
            before = turn
    head = f"     {exploit.kind}: task {exploit.task!r}, seed {exploit.seed}: {exploit.detail}"
    return "\n".join([one_line(head), *lines])


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
