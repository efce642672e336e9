"""Makes the engine that a config names."""

from __future__ import annotations

from typing import Any

from torch import distributed

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import ColocateSettings, EngineSettings, ServerSettings
from agentgym_train.distributed import gathered
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.engines.hf import HFEngine


def make_engine(
    settings: EngineSettings,
    model: Any,
    *,
    pad_id: int,
    max_tokens: int,
    dtype: str | None = None,
) -> GenerationEngine:
    """An engine that samples as `model` does, in conversations of at most `max_tokens`.

    `dtype` is what the trainer's model computes in where the hf engine samples from it.
    Raises `MissingExtra` where vLLM is wanted and not installed. A collective.
    """
    if isinstance(settings, ColocateSettings):
        from agentgym_train.engines.vllm_colocate import VLLMColocateEngine

        return VLLMColocateEngine(model, settings, max_tokens=max_tokens)
    if isinstance(settings, ServerSettings):
        return _server_engine(settings, model, max_tokens)
    return HFEngine(
        model,
        pad_id,
        max_batch=settings.max_batch,
        dtype=dtype,
        settle_ties=settings.settle_ties,
    )


def _server_engine(settings: ServerSettings, model: Any, max_tokens: int) -> GenerationEngine:
    """An engine over the servers that are named, or over one that is started here."""
    from agentgym_train.engines.vllm_server import Member, VLLMServerEngine

    several = distributed.is_available() and distributed.is_initialized()
    if settings.servers:
        members = [Member(address.rstrip("/")) for address in settings.servers]
    elif several and distributed.get_world_size() > 1:
        raise ConfigError(
            f"{distributed.get_world_size()} processes share their vLLM servers; start servers and "
            "name them: engine_args: {servers: [http://host:8000]} (docs/engines.md)"
        )
    else:
        from agentgym_train.engines.vllm_process import launch_for

        local = launch_for(model, settings, max_tokens=max_tokens)
        members = [Member(local.address, local)]
    return VLLMServerEngine(
        members,
        settings,
        max_tokens=max_tokens,
        gathered=gathered,
        is_first=not several or distributed.get_rank() == 0,
    )
