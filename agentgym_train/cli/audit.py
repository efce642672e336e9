"""`agentgym audit`: checks that a model is trained on exactly the tokens that it samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym_env.cli.options import check_ending, choice_option, json_object
from agentgym_env.errors import ConfigError
from agentgym_env.trust import Trust
from agentgym_train.config.files import local_path
from agentgym_train.config.options import ChatTemplateKwargs, Instruction

_DTYPES = ("float32", "bfloat16", "float16")


def audit(
    run_or_model: Annotated[
        str, typer.Argument(help="A run's folder, a model's folder, or a hub id.")
    ],
    turns: Annotated[int, typer.Option(min=1, help="Turns per episode.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes sampled from the model.")] = 4,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Tolerance per log-probability. Default: 1e-4 in float32, 2e-2 in 16 bits.",
        ),
    ] = None,
    dtype: Annotated[str, choice_option(_DTYPES, "Data type of the weights")] = "float32",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this JSON file.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Number of episodes whose tokens are printed.")
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed for sampling. Default: the run's, or 0.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="Sampling temperature. Default: the run's, or 1.")
    ] = None,
    instruction: Instruction = None,
    action_format: Annotated[str | None, typer.Option(help="plain, react or act.")] = None,
    chat_template_kwargs: ChatTemplateKwargs = "{}",
    keep_reasoning: Annotated[
        bool | None,
        typer.Option(help="Keep earlier reasoning where the chat template would drop it."),
    ] = None,
    turn_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens per turn. Default: the run's, or 64.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens per episode. Default: the run's, or 4096."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Check that a model is trained on exactly the tokens that it samples.

    The exit status is 1 if a rule fails.
    """
    if json_path is not None:
        check_ending("--json", json_path, ".json")
        if not json_path.absolute().parent.is_dir():
            raise ConfigError(f"the folder {json_path.parent} of {json_path.name} does not exist")
    from agentgym_train.models.hub import check_available

    if not local_path(run_or_model).is_dir():
        check_available(run_or_model)
    from agentgym_train.audit import audit as check
    from agentgym_train.models.loading import quiet_libraries

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
        "chat_template_kwargs": json_object("--chat-template-kwargs", chat_template_kwargs) or None,
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
        check.print_finding(console, finding)
    check.print_summary(console, subject, findings, show)
    if json_path is not None:
        text = json.dumps(check.as_json(subject, findings), indent=2, allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    if any(finding.status == "FAIL" for finding in findings):
        raise typer.Exit(1)
