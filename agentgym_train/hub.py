"""The hub: whether a model can be had from it or from its cache here; refused at once if not.

Left to themselves the libraries ask an unreachable hub six times for each file, a minute and a half
in all, even when everything is in the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, try_to_load_from_cache

# HTTPError is httpx's up to huggingface_hub 1.x, and httpx2's since.
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from agentgym_env.errors import BadRequest
from agentgym_train.gguf_files import gguf_file
from agentgym_train.model_folders import check_folder

_PATIENCE_S = 10.0


def check_available(name: str) -> None:
    """Raise `BadRequest` if a model is neither local nor available from the hub or its cache.

    It loads no model library, so that a command can fail before it loads torch.
    """
    check_folder(name)
    found = gguf_file(name)
    if found is not None and found.on_hub:
        hub_options(found.source, found.file)
    elif found is None and not Path(name).expanduser().is_dir():
        hub_options(name)


def hub_options(model_id: str, file: str = "config.json") -> dict[str, Any]:
    """What `from_pretrained` is to be told to find a model; raises `BadRequest` with what to do."""
    try:
        HfApi().model_info(model_id, timeout=_PATIENCE_S)
    except HFValidationError as error:
        raise BadRequest(
            f"{model_id!r} is neither a folder here nor an id of the hub, such as "
            "HuggingFaceTB/SmolLM2-135M-Instruct; `agentgym models` lists what is at hand"
        ) from error
    except GatedRepoError as error:
        raise BadRequest(
            f"{model_id} is gated: accept its terms on {constants.ENDPOINT}/{model_id}, then "
            "`hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise BadRequest(
            f"{model_id!r} is no folder here, and the hub has no such model, or it is private: "
            "check the name, or `hf auth login`. `agentgym models` lists what is at hand"
        ) from error
    except OfflineModeIsEnabled:
        return _from_cache(model_id, file, "HF_HUB_OFFLINE is set")
    except (HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        return _from_cache(model_id, file, f"{constants.ENDPOINT} cannot be reached ({reason})")
    return {}


def _from_cache(model_id: str, file: str, reason: str) -> dict[str, Any]:
    if isinstance(try_to_load_from_cache(model_id, file), str):
        return {"local_files_only": True}
    raise BadRequest(
        f"{model_id!r} is no folder here, it is not in the cache {constants.HF_HUB_CACHE}, and "
        f"{reason}. Offline: run `hf download {model_id}` where there is a connection and copy "
        "its folder, or that cache, here; or take a model at hand, which `agentgym models` lists"
    )
