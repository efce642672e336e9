"""`agentgym audit`: checks that a model is trained on exactly the tokens that it samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from agentgym_env.cli.options import check_ending, with_option_groups
from agentgym_env.errors import ConfigError
from agentgym_env.trust import Trust
from agentgym_train.config.files import local_path
from agentgym_train.config.options import SettingsOptions
from agentgym_train.config.policy import AuditSettings

_OPTIONS: Final = SettingsOptions(
    AuditSettings,
    without=("model", "compute_dtype", "engine", "agent", "trainer_args"),
    defaults={
        "seed": "the run's, or 0", "temperature": "the run's, or 1",
        "turn_max_tokens": "the run's, or 64", "max_tokens": "the run's, or 4096",
        "instruction": "the run's", "action_format": "the run's, or plain",
    },
)  # fmt: skip


@with_option_groups
def audit(
    run_or_model: Annotated[
        str,
        typer.Argument(
            help="A run of RL, or a model: a folder, a hub id, pip:PACKAGE, starter:NAME or "
            "FILE.gguf."
        ),
    ],
    given: Annotated[dict[str, Any], _OPTIONS],
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this JSON file.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Number of episodes whose tokens are printed.")
    ] = 1,
    trust: Trust = False,
) -> None:
    """Check that a model is trained on exactly the tokens that it samples.

    The exit status is 1 if a rule fails.
    """
    if json_path is not None:
        check_ending("--json", json_path, ".json")
        if not json_path.absolute().parent.is_dir():
            raise ConfigError(f"the folder {json_path.parent} of {json_path.name} does not exist")
    dtype = AuditSettings(**given).dtype
    given.pop("dtype", None)
    from agentgym_train.models.available import check_available

    if not local_path(run_or_model).is_dir():
        check_available(run_or_model)
    from agentgym_train.audit import audit as check
    from agentgym_train.audit.printing import audit_json, print_finding, print_summary
    from agentgym_train.models.loading import quiet_libraries

    quiet_libraries()
    console = Console(highlight=False)
    subject = check.subject_of(run_or_model, dtype, given, trusted=trust)
    console.print(f"auditing {subject.name} in {dtype}\n", soft_wrap=True, markup=False)
    findings = []
    for finding in check.audit(subject):
        findings.append(finding)
        print_finding(console, finding)
    print_summary(console, subject, findings, show)
    if json_path is not None:
        text = json.dumps(audit_json(subject, findings), indent=2, allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    if any(finding.status == "FAIL" for finding in findings):
        raise typer.Exit(1)
