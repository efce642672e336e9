"""Which models are available: from the hub or its cache, in packages and in folders.

Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.config.files import local_path, starters
from agentgym_train.models.folders import (
    ADAPTERS,
    WEIGHTS,
    WHOLE,
    carried,
    check_folder,
    damage_of,
    gguf_file,
    has_adapters,
    is_model,
    read_json_object,
)

_DEPTH: Final = 5
_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist"})
_PATIENCE_S: Final = 10.0

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


def check_available(name: str) -> tuple[str, dict[str, Any]]:
    """The source of a model and further arguments of `from_pretrained`.

    Raises `ConfigError` if it is neither local nor available from the hub or its cache. It loads no
    model library, so that a command can fail before it loads torch.
    """
    check_folder(name)
    found = gguf_file(name)
    if found is None:
        path = local_path(name)
        return (str(path.absolute()), {}) if path.is_dir() else (name, hub_options(name))
    if find_spec("gguf") is None:
        raise MissingExtra("GGUF files need gguf: pip install 'agentgym-sdk[gguf]'")
    further = hub_options(found.source, found.file) if found.on_hub else {}
    return found.source, {"gguf_file": found.file, **further}


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


def find_local_models(folders: Sequence[Path]) -> list[LocalModel]:
    """All models in the folders and their subfolders, installed packages and the hub's cache."""
    found: dict[str, LocalModel] = {}
    for model in (*(m for f in folders for m in _below(f, _DEPTH)), *_in_packages(), *_in_cache()):
        found.setdefault(model.name, model)
    return list(found.values())


def _from_cache(model_id: str, file: str, reason: str) -> dict[str, Any]:
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model_id, file), str):
        return {"local_files_only": True}
    raise ConfigError(
        f"{model_id!r} is not a local folder, not in the cache {constants.HF_HUB_CACHE}, and "
        f"{reason}. To use it offline, run `hf download {model_id}` on a machine with a connection "
        "and copy its cache; or use a local model, which `agentgym models` lists"
    )


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
            yield _of_file(str(path), path, "folder")


def _in_packages() -> Iterator[LocalModel]:
    for name in starters():
        if is_model(local_path(name)):
            yield _of_folder(name, local_path(name), "package")
    for name, file in carried():
        yield _of_file(name, file, "package")


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
            yield _of_file(name, file, "cache")


def _of_file(name: str, file: Path, where: str) -> LocalModel:
    return LocalModel(name, "gguf", file.stem, file.stat().st_size, where)


def _of_folder(name: str, folder: Path, where: str) -> LocalModel:
    weights = [file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file()]
    size = sum(file.stat().st_size for file in weights)
    if has_adapters(folder):
        base = read_json_object(folder / ADAPTERS).get("base_model_name_or_path") or "?"
        return LocalModel(name, "adapters", f"of {base}", size, where, damage_of(folder))
    names = read_json_object(folder / WHOLE).get("architectures")
    about = ", ".join(map(str, names)) if isinstance(names, list) and names else "?"
    return LocalModel(name, "whole", about, size, where, damage_of(folder))
