"""Settings of the generation engines (`engine_args`), with defaults that suit the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from agentgym_env.errors import ConfigError
from agentgym_train.config.reading import check_keys


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


EngineName = Literal["hf", "vllm_colocate", "vllm_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HFSettings:
    """The transformers engine, which samples from the trainer's own model."""

    max_batch: int = 256
    """Most turns that are sampled side by side."""
    settle_ties: bool = False
    """Whether a choice that rounding may turn is made by a forward pass of its conversation alone.
    In float32 the same turns are then sampled whatever else is in the batch, as evaluations want;
    it takes a pass over the conversation for each token that was nearly another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """How vLLM computes, wherever it runs. Null leaves a value to what suits the device."""

    dtype: str | None = None
    """float32, bfloat16 or float16; null takes float32 on a CPU and bfloat16 on a GPU."""
    tensor_parallel_size: int = 1
    """GPUs that share one copy of the model; above 1 needs the server."""
    gpu_memory_utilization: float | None = None
    """Share of each GPU's memory: null takes 0.3 beside the trainer and 0.9 for a server."""
    cpu_cache_gb: int = 1
    """Memory of the KV cache on a CPU, in GiB."""
    max_model_len: int | None = None
    """Most tokens of a conversation; null takes the run's `max_tokens`."""
    max_num_seqs: int = 256
    """Most turns that are sampled side by side."""
    block_size: int | None = None
    """Tokens a block of the KV cache; a shared prefix counts in whole blocks. Null takes 32 on a
    CPU, where vLLM's own 128 would miss the prefix of most turns."""
    attention_backend: str | None = None
    """On a GPU: FLASH_ATTN, FLASHINFER, TRITON_ATTN, ...; null lets vLLM choose."""
    enforce_eager: bool | None = None
    """Without CUDA graphs and compilation; null is true on a CPU."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's own, by the names of its `EngineArgs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocateSettings(VLLMSettings):
    """vLLM in the trainer's process, on the trainer's device."""

    sleep_level: Literal[0, 1, 2] = 2
    """What is given back on a GPU while the trainer computes: 2 the cache and the weights, 1 the
    cache, with the weights put into main memory, 0 nothing. A CPU gives nothing back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(VLLMSettings):
    """vLLM behind HTTP. The other fields are for a server that the run starts itself."""

    servers: list[str] = field(default_factory=list)
    """Addresses of running servers; none starts one on this machine."""
    transport: Literal["file", "nccl"] = "file"
    """How new weights reach a server: by a file in `weights_dir`, or from GPU to GPU by NCCL."""
    weights_dir: str | None = None
    """Folder that trainer and servers see under one path; null takes the temporary folder."""
    request_timeout_s: float = 600.0
    """Longest wait for one turn; a server that needs longer counts as gone."""
    wait_s: float = 600.0
    """How long a turn waits for a server when none answers, before its episode is lost."""
    nccl_address: str = "127.0.0.1"
    """With `nccl`: this machine's address, as the servers see it."""
    nccl_port: int = 51216
    """With `nccl`: the first of some free ports of this machine, one a server."""


EngineSettings = HFSettings | ColocateSettings | ServerSettings

_SETTINGS: dict[str, type[EngineSettings]] = {
    "hf": HFSettings,
    "vllm_colocate": ColocateSettings,
    "vllm_server": ServerSettings,
}


def engine_settings(engine: EngineName, values: Mapping[str, Any]) -> EngineSettings:
    """The settings of one engine from plain values; raises `ConfigError` for an unknown one."""
    kind = _SETTINGS[engine]
    check_keys(f" under engine_args of {engine}", values, (f.name for f in fields(kind)))
    try:
        settings = msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"engine_args of {engine} do not fit: {error}") from error
    if isinstance(settings, ColocateSettings) and settings.tensor_parallel_size != 1:
        raise ConfigError(
            f"tensor_parallel_size of vllm_colocate is 1, got {settings.tensor_parallel_size}: "
            "each process samples its own episodes at its own pace, and ranks of one model can "
            "not; use engine: vllm_server for a model that one GPU does not hold"
        )
    return settings
