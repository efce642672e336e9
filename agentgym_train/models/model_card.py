"""What a saved model needs to be used elsewhere: its card, and where its base model is."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_train.config.checks import type_of
from agentgym_train.config.files import STARTER, local_path
from agentgym_train.config.run import RunConfig
from agentgym_train.models.folders import (
    ADAPTERS,
    BASE_FOLDER,
    has_adapters,
    is_model,
    read_json_object,
)

_HUB_ID: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def finish_model_folder(folder: Path, config: RunConfig) -> None:
    """Write the model card of a saved model, and for adapters the place of their base model.

    The card replaces that of PEFT, which names a local folder as a model of the hub.
    """
    if not is_model(folder):
        return
    if has_adapters(folder):
        _write_base_folder(folder, config.model)
    (folder / "README.md").write_text(model_card(folder, config), encoding="utf-8")


class FinishedCheckpoints(TrainerCallback):
    """Finishes the folder of each checkpoint; TRL's card, which is next to them, is replaced."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the files of a checkpoint."""
        if not state.is_world_process_zero:
            return
        parent = Path(str(args.output_dir))
        folder = parent / f"checkpoint-{state.global_step}"
        finish_model_folder(folder, self._config)
        (parent / "README.md").write_text(model_card(folder, self._config), encoding="utf-8")


def model_card(folder: Path, config: RunConfig) -> str:
    """The text of a model card: what the model was trained from, in what, and how."""
    model = config.model
    on_hub = _HUB_ID.fullmatch(model) is not None and not local_path(model).is_dir()
    is_local = is_model(local_path(model)) or model.startswith("pip:") or model.endswith(".gguf")
    if on_hub:
        base = f"[{model}](https://huggingface.co/{model})"
    else:
        base = f"`{model}`" if is_local else "a model that was created in Python"
    metadata = {
        **({"base_model": model} if on_hub else {}),
        "library_name": "peft" if config.lora is not None else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["agentgym-sdk", config.method],
    }
    what = "LoRA adapters trained" if config.lora is not None else "Trained"
    method = type_of(getattr(config, "algorithm", config.method))
    method = f"`{method}`" if ":" in method else method.upper()
    envs = [world.env for world in config.worlds]
    in_env = f" on {', '.join(f'`{env}`' for env in envs)}" if envs else ""
    return (
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\n"
        f"# {folder.absolute().parent.name}/{folder.name}\n\n"
        f"{what} with {method}{in_env} by agentgym-sdk {version('agentgym-sdk')}, starting from "
        f"{base}. All settings are in `config.yaml` of the run, and the results in its "
        "`summary.json`.\n"
    )


def _write_base_folder(folder: Path, model: str) -> None:
    """Write the path from the adapters to their base model, if that is a folder.

    PEFT's own file has the absolute path, which other libraries need. This one still leads to the
    base model after both folders were moved.
    """
    base = read_json_object(folder / ADAPTERS).get("base_model_name_or_path")
    if not base or not Path(base).is_absolute():
        return
    if model.startswith(STARTER) and local_path(model).absolute() == Path(base):
        place = model
    elif is_model(Path(base)):
        place = Path(os.path.relpath(base, folder.absolute())).as_posix()
    else:
        return  # the run was moved, and the file is of its first place
    (folder / BASE_FOLDER).write_text(f"{place}\n", encoding="utf-8")
