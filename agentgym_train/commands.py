"""The command `agentgym train`; torch loads when it is run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym_env.errors import BadRequest
from agentgym_env.run_lock import check_unlocked, folder_lock
from agentgym_env.trust import Trust

ANOTHER_FOLDER = "output_dir=FOLDER"
"""How to choose another run folder."""
TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def train(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="YAML file of values.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="Start the processes of this accelerate config.")
    ] = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Start so many processes: one a GPU, or on CPUs.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a policy by RL, SFT, DPO or AgentEvol, as the file's `method` says.

    Any value of the file can be given as key=value or --key value.
    """
    from agentgym_train.launching import launch_if_asked, obey_cpu, place
    from agentgym_train.methods import read_method_config, runner_of
    from agentgym_train.prepare import is_complete, prepared, resumed_config

    here = place()
    console = Console(quiet=not here.is_first)
    if resume is None and config is not None:
        values, words = read_method_config(config, context.args), [str(config), *context.args]
    elif resume is None:
        raise BadRequest("name a config file, or a run with --resume RUN")
    elif config is not None or context.args:
        word = config if config is not None else context.args[0]
        raise BadRequest(
            f"a resumed run keeps its config; leave out {word}, or start a new run from "
            f"{resume}/config.yaml"
        )
    else:
        values, words = resumed_config(resume, trusted=trust), ["--resume", str(resume)]
        words += ["--trust"] if trust else []
        if is_complete(resume):
            console.print(
                f"{resume} is complete; its figures are in {resume}/summary.json.", soft_wrap=True
            )
            return
    folder = Path(values.output_dir)
    if accelerate is not None or num_processes is not None:
        if accelerate is None:  # An accelerate config may start the second machine of a run.
            check_unlocked(folder, ANOTHER_FOLDER)
        launch_if_asked(values, words, accelerate, num_processes)
    obey_cpu()
    lock = folder_lock(folder, ANOTHER_FOLDER) if here.is_first else nullcontext()
    with lock, prepared(values, here.processes) or nullcontext() as stage:
        runner = runner_of(values)
        if resume is None:
            status = runner.start(values, console, stage, here.processes)
        else:
            status = runner.resume(resume, values, console, stage, here.processes)
    raise typer.Exit(status)


train.context_settings = TAKES_OVERRIDES  # type: ignore[attr-defined]
