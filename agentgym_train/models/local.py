"""Lists locally available models: in folders, packages and the hub's cache. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from agentgym_train.config.files import local_path, starters
from agentgym_train.models.folders import (
    ADAPTERS,
    WEIGHTS,
    WHOLE,
    carried,
    damage_of,
    has_adapters,
    is_model,
    json_object,
)

_DEPTH: Final = 5
_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})
Kind = Literal["whole", "adapters", "gguf"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A locally available model."""

    name: str
    """Its name for a config's `model`, or for `--policy hf:NAME`."""
    kind: Kind
    about: str
    """Its architecture, or the base model of adapters."""
    size_bytes: int
    """Size of the weights."""
    where: str
    """`folder`, `package` or `cache`."""
    damage: str = ""
    """What is wrong with its files; empty if nothing is."""


def find_local_models(folders: Sequence[Path]) -> list[LocalModel]:
    """All models in the folders and their subfolders, installed packages and the hub's cache."""
    found: dict[str, LocalModel] = {}
    for model in (*_in_folders(folders), *_in_packages(), *_in_cache()):
        found.setdefault(model.name, model)
    return list(found.values())


def _in_folders(folders: Iterable[Path]) -> Iterator[LocalModel]:
    for folder in folders:
        yield from _below(folder, _DEPTH)


def _below(folder: Path, depth: int) -> Iterator[LocalModel]:
    if is_model(folder):
        yield _of_folder(str(folder), folder, "folder")
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # not readable, or removed meanwhile
        return
    for path in inside:
        if path.name.startswith(".") or path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir() and depth > 0:
            yield from _below(path, depth - 1)
        elif path.suffix == ".gguf" and path.is_file():
            yield LocalModel(str(path), "gguf", path.stem, path.stat().st_size, "folder")


def _in_packages() -> Iterator[LocalModel]:
    for name in starters():
        if is_model(local_path(name)):
            yield _of_folder(name, local_path(name), "package")
    for name, file in carried():
        yield LocalModel(name, "gguf", file.stem, file.stat().st_size, "package")


def _in_cache() -> Iterator[LocalModel]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda r: r.repo_id):
        newest = max(repository.revisions, key=lambda r: r.last_modified, default=None)
        if repository.repo_type != "model" or newest is None:
            continue
        if is_model(newest.snapshot_path):
            yield _of_folder(repository.repo_id, newest.snapshot_path, "cache")
        for file in sorted(newest.snapshot_path.rglob("*.gguf")):
            name = f"{repository.repo_id}/{file.relative_to(newest.snapshot_path)}"
            yield LocalModel(name, "gguf", file.stem, file.stat().st_size, "cache")


def _of_folder(name: str, folder: Path, where: str) -> LocalModel:
    weights = [file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file()]
    size = sum(file.stat().st_size for file in weights)
    if has_adapters(folder):
        return LocalModel(name, "adapters", f"of {_base(folder)}", size, where, damage_of(folder))
    return LocalModel(name, "whole", _architecture(folder), size, where, damage_of(folder))


def _base(folder: Path) -> str:
    return str(json_object(folder / ADAPTERS).get("base_model_name_or_path") or "?")


def _architecture(folder: Path) -> str:
    names: Any = json_object(folder / WHOLE).get("architectures")
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "?"
