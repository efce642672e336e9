"""Generation engines: token ids in, token ids out. `make_engine` chooses one by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from agentgym_train.config.engines import (
    ColocateSettings,
    EngineSettings,
    HFSettings,
    ServerSettings,
)
from agentgym_train.engines.base import GenerationEngine

_MODULES: Final[Mapping[type[EngineSettings], str]] = {
    HFSettings: "agentgym_train.engines.hf.engine",
    ColocateSettings: "agentgym_train.engines.vllm.colocate",
    ServerSettings: "agentgym_train.engines.vllm.server",
}
"""Settings -> the module with `make_engine(settings, model, ...)`, which is loaded when needed."""


def make_engine(
    settings: EngineSettings,
    model: Any,
    *,
    pad_id: int,
    max_tokens: int,
    dtype: str | None = None,
) -> GenerationEngine:
    """Make an engine for `model` and conversations of at most `max_tokens`.

    `dtype` is the compute data type of the hf engine. Raises `MissingExtra` if vLLM is requested
    but not installed. A collective: every process must call it.
    """
    make = import_module(_MODULES[type(settings)]).make_engine
    engine: GenerationEngine = make(
        settings, model, pad_id=pad_id, max_tokens=max_tokens, dtype=dtype
    )
    return engine
