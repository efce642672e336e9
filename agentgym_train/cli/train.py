"""`agentgym train`: trains a policy by the method of a config file, or resumes a run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym_env.cli.options import choice_option
from agentgym_env.errors import ConfigError
from agentgym_env.run_lock import check_unlocked, folder_lock
from agentgym_env.trust import Trust
from agentgym_train.config.read import CONFIGS, read_method_config
from agentgym_train.config.run import ANOTHER_FOLDER

_WITHOUT_CONFIG = (
    "pass a config file, or a run with --resume RUN; a config of the package is starter:quickstart"
)

TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def train(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="YAML config file, or starter:NAME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this folder; steps=N trains it further.")
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="Start the processes of this accelerate config file.")
    ] = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Start this many processes: one per GPU, or several on CPUs.")
    ] = None,
    keys: Annotated[
        str | None,
        choice_option([*CONFIGS], "List the keys of a method's config, and exit"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a policy by RL, SFT, DPO or AgentEvol.

    The key `method` of the config file selects the method. Options after CONFIG replace keys of
    the file: `steps=100`, `--steps 100`, or for keys that are true or false `--keep-reasoning` and
    `--no-keep-reasoning`. `--keys rl` lists all keys of RL with their types and defaults.
    """
    from agentgym_train.config.keys import key_lines
    from agentgym_train.runs.launch import launch_if_asked
    from agentgym_train.runs.preflight import lean_imports, obey_cpu, prepared, process_rank
    from agentgym_train.runs.stored import is_complete, resumed_config

    if keys is not None:
        typer.echo("\n".join(key_lines(keys)))
        return
    here = process_rank()
    console = Console(quiet=not here.is_first)
    if resume is None and config is not None:
        if str(config).startswith("-"):
            raise ConfigError(
                f"write the config file before {config}: agentgym train CONFIG {config}"
            )
        values, words = read_method_config(config, context.args), [str(config), *context.args]
    elif resume is None:
        raise ConfigError(_WITHOUT_CONFIG)
    else:
        # The first word is `config` also if it is an option.
        options = [*([] if config is None else [str(config)]), *context.args]
        values = resumed_config(resume, options, trusted=trust)
        words = ["--resume", str(resume), *options, *(["--trust"] if trust else [])]
        if is_complete(values):
            console.print(
                f"{resume} is complete; its results are in {resume}/summary.json.", soft_wrap=True
            )
            return
    folder = Path(values.output_dir)
    if accelerate is not None or num_processes is not None:
        if accelerate is None:  # An accelerate config may start the second machine of a run.
            check_unlocked(folder, ANOTHER_FOLDER)
        launch_if_asked(values, words, accelerate, num_processes)
    obey_cpu()
    lock = folder_lock(folder, ANOTHER_FOLDER) if here.is_first else nullcontext()
    with lock, prepared(values, here.processes) as worlds:
        with lean_imports():
            from agentgym_train.runs import methods
        resumes = resume is not None
        status = methods.run(values, console, worlds, here.processes, resumes=resumes)
    raise typer.Exit(status)


train.context_settings = TAKES_OVERRIDES  # type: ignore[attr-defined]
