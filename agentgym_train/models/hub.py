"""Models of the hub: whether one is available from it or its cache. Loads no torch."""

from __future__ import annotations

from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_train.config.files import local_path
from agentgym_train.models.folders import check_folder, gguf_file

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
