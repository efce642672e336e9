"""Settings of the generation engines (`engine`), with defaults that suit the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import (
    AboveZero,
    NonNegative,
    Positive,
    Settings,
    ShareAboveZero,
    Typed,
    chosen,
    type_and_fields,
)


def check_address(url: str, api_key: str | None, fitting: str) -> None:
    """Raise `ConfigError` for what is no address, or would send a key in the clear.

    `fitting` says what an address looks like here.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{fitting}, got {url!r}")
    local = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
    if api_key and parts.scheme == "http" and not local:
        raise ConfigError(
            f"the key would go to {parts.hostname} in the clear; use https, or unset the key's "
            "variable for an endpoint that needs none"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HFSettings(Settings):
    """The transformers engine, which samples from the trainer's own model."""

    max_batch: Positive = 256
    """Maximum number of turns that are sampled in one batch."""
    settle_ties: bool | None = None
    """Decide near ties by a forward pass of the conversation alone. In float32 the sampled turns
    then do not depend on the rest of the batch; each near tie costs a pass. Null does so in
    `agentgym eval` and `collect`, and not in training."""
    cuda_graphs: bool = False
    """On a GPU, replay each decode step as a CUDA graph, which small models need to be fast. Where
    a step cannot be captured, or differs, a warning is logged and the engine samples without. A CPU
    runs the same steps, without graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings(Settings):
    """How vLLM computes, wherever it runs. Null uses the default of the device."""

    dtype: str | None = None
    """float32, bfloat16 or float16; null uses float32 on a CPU and bfloat16 on a GPU."""
    tensor_parallel_size: Positive = 1
    """GPUs that share one copy of the model; above 1 needs the server."""
    gpu_memory_utilization: ShareAboveZero | None = None
    """Share of each GPU's memory; null uses 0.3 beside the trainer and 0.9 for a server."""
    cpu_cache_gb: Positive = 1
    """Memory of the KV cache on a CPU, in GiB."""
    max_model_len: Positive | None = None
    """Maximum tokens of a conversation; null uses the run's `max_tokens`."""
    max_num_seqs: Positive = 256
    """Maximum number of turns that are sampled in one batch."""
    block_size: Positive | None = None
    """Tokens per block of the KV cache; shared prefixes count in whole blocks. Null uses 32 on a
    CPU, where vLLM's default of 128 would miss the prefix of most turns."""
    attention_backend: str | None = None
    """On a GPU: FLASH_ATTN, FLASHINFER, TRITON_ATTN, ...; null lets vLLM choose."""
    enforce_eager: bool | None = None
    """Disable CUDA graphs and compilation; null is true on a CPU."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM, by the names of its `EngineArgs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocateSettings(VLLMSettings):
    """vLLM in the trainer's process, on the trainer's device."""

    sleep_level: Literal[0, 1, 2] = 2
    """What vLLM frees on a GPU while the trainer computes: 2 the cache and the weights, 1 the
    cache, with the weights moved to main memory, 0 nothing. Ignored on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(VLLMSettings):
    """vLLM behind HTTP. The fields of VLLMSettings are for a server that the run starts."""

    servers: list[str] = field(default_factory=list)
    """Addresses of running servers, or that of a fleet (`ray://NAME`). Empty starts a server on
    this machine."""
    transport: Literal["file", "nccl"] = "file"
    """How new weights reach a server: by a file in `weights_dir`, or between GPUs by NCCL."""
    weights_dir: str | None = None
    """Folder with the same path for trainer and servers; null uses the temporary folder."""
    adapter_updates: bool | None = None
    """With `lora`, send the base weights once and then only the adapters, with which the server
    samples. Null does so on a server with a GPU that the run starts; other servers need
    `--enable-lora`."""
    request_timeout_s: AboveZero = 600.0
    """Timeout of one turn in seconds; a server that exceeds it counts as gone."""
    wait_s: NonNegative = 600.0
    """Time in seconds that a turn waits for a server before its episode is lost."""
    nccl_address: str = "127.0.0.1"
    """With `nccl`: this machine's address, as the servers see it."""
    nccl_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 51216
    """With `nccl`: the first of several free ports of this machine, one per server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEngine:
    """An engine of the user's, made by `Class(model, tokenizer, max_tokens=N, **fields)`."""

    name: str
    """`package.module:Class`, a `GenerationEngine`."""
    fields: dict[str, Any]


EngineSettings = HFSettings | ColocateSettings | ServerSettings | OwnEngine

ENGINES: Final[Mapping[str, type[HFSettings | ColocateSettings | ServerSettings]]] = {
    "hf": HFSettings,
    "vllm": ServerSettings,
    "vllm_colocate": ColocateSettings,
}
"""Type of an engine -> its settings."""


def engine_settings(engine: Typed) -> EngineSettings:
    """The settings that a config's `engine` describes; raises `ConfigError` for invalid ones."""
    kind, values = type_and_fields(engine)
    if ":" in kind:
        return OwnEngine(name=kind, fields=values)
    if kind == "vllm_server":
        raise ConfigError("the engine vllm_server was renamed to vllm")
    settings = chosen("engine", engine, ENGINES, ", or write package.module:Class")
    if isinstance(settings, ColocateSettings) and settings.tensor_parallel_size != 1:
        raise ConfigError(
            f"tensor_parallel_size of vllm_colocate is 1, got {settings.tensor_parallel_size}: "
            "each process samples its own episodes independently; for a model that is too "
            "large for one GPU use engine: vllm"
        )
    return settings
