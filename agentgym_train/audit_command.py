"""The command `agentgym audit`; torch loads when it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym_env.errors import BadRequest
from agentgym_env.trust import Trust

_DTYPES = ("float32", "bfloat16", "float16")


def audit(
    run_or_model: Annotated[
        str, typer.Argument(help="A run's folder, a model's folder, or a hub id.")
    ],
    turns: Annotated[int, typer.Option(min=1, help="Turns of every episode.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes sampled from the model.")] = 4,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="Of one log-probability; 1e-4 in float32, 2e-2 in 16 bits."),
    ] = None,
    dtype: Annotated[str, typer.Option(help=", ".join(_DTYPES) + ".")] = "float32",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the findings to this file.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Episodes whose spans are printed.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="Of sampling; the run's own, or 1.")
    ] = None,
    instruction: Annotated[str | None, typer.Option(help="What the policy is told.")] = None,
    action_format: Annotated[str | None, typer.Option(help="plain or react.")] = None,
    keep_reasoning: Annotated[
        bool | None, typer.Option(help="Use a template append-only that drops earlier reasoning.")
    ] = None,
    turn_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a turn; the run's own, or 64.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an episode; the run's own, or 4096.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Prove that what a chat model samples is what it is trained on; exits with 1 on drift."""
    if dtype not in _DTYPES:
        raise BadRequest(f"dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise BadRequest(f"there is no folder {json_path.parent} to write {json_path.name} to")
    from agentgym_train.hub import check_available

    if not Path(run_or_model).is_dir():
        check_available(run_or_model)
    from agentgym_train.audit import check, report
    from agentgym_train.quiet import quiet_libraries

    quiet_libraries()
    console = Console(highlight=False)
    given = {
        "turns": turns,
        "episodes": episodes,
        "tolerance": tolerance,
        "seed": seed,
        "temperature": temperature,
        "instruction": instruction,
        "action_format": action_format,
        "keep_reasoning": keep_reasoning,
        "turn_max_tokens": turn_max_tokens,
        "max_tokens": max_tokens,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    subject = check.subject_of(run_or_model, dtype, changes, trusted=trust)
    console.print(f"auditing {subject.name} in {dtype}\n", soft_wrap=True, markup=False)
    findings = []
    for finding in check.audit(subject):
        findings.append(finding)
        report.print_finding(console, finding)
    report.print_summary(console, subject, findings, show)
    if json_path is not None:
        text = json.dumps(report.as_json(subject, findings), indent=2, allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    if any(finding.status == "FAIL" for finding in findings):
        raise typer.Exit(1)
