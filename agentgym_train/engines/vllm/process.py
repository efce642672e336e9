"""Starts, shares and stops local vLLM servers in separate processes."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, cast

import requests
import torch

from agentgym_env.errors import ConfigError, ServerStartFailed
from agentgym_env.launch import (
    LocalServer,
    SharedServer,
    SharedServers,
    child_environment,
    free_port,
)
from agentgym_env.process_guard import end_group
from agentgym_train.config.engines import ServerSettings, VLLMSettings, engine_settings
from agentgym_train.models.weights import base_model

READER = "agentgym_train.engines.vllm.worker.WeightReader"
"""The worker extension that loads new weights."""

UPDATABLE: Final = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Environment variables of a server whose weights and adapters are updated over HTTP."""

_CPU_BLOCK = 32


def engine_values(
    settings: VLLMSettings, max_len: int | None, memory_share: float
) -> dict[str, Any]:
    """Engine arguments of vLLM for the settings, on this machine's type of device.

    `memory_share` is the default fraction of a GPU's memory.
    """
    on_gpu = torch.cuda.is_available()
    eager = settings.enforce_eager
    values: dict[str, Any] = {
        "dtype": settings.dtype or ("bfloat16" if on_gpu else "float32"),
        "max_model_len": max_len,
        "max_num_seqs": settings.max_num_seqs,
        "enforce_eager": not on_gpu if eager is None else eager,
        "enable_prefix_caching": True,
    }
    if on_gpu:
        values["gpu_memory_utilization"] = settings.gpu_memory_utilization or memory_share
        values["attention_backend"] = settings.attention_backend
        values["block_size"] = settings.block_size
    else:
        values["kv_cache_memory_bytes"] = settings.cpu_cache_gb * 2**30
        values["block_size"] = settings.block_size or _CPU_BLOCK
        # After a part of a prompt, vLLM sets back the request's random generator, which a CPU's
        # cannot do: the server ends with "CPU Generator does not use offset".
        values["enable_chunked_prefill"] = False
    return values


def save_architecture(model: Any, folder: Path) -> None:
    """Write the config.json from which vLLM creates the model."""
    base = base_model(model)
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]
    config.save_pretrained(folder)


START_TIMEOUT_S = 600.0

_GPU_SHARE = 0.9


class LocalVLLM(LocalServer):
    """A reference to a local vLLM server; its process leads the server's process group."""

    def restart(self) -> None:
        """Restart the server at the same address if it died; raises `ServerStartFailed`."""
        cast("_VLLMServer", self._shared).restart()


_SERVERS: Final = SharedServers()


def launch_vllm(
    model: str | Path, settings: ServerSettings | None = None, *, max_tokens: int, **options: Any
) -> LocalVLLM:
    """Start a vLLM server for a model's folder on a free port; raises `ServerStartFailed`.

    Within a process, equal arguments share one server. It stops when its last reference is closed,
    when the process ends, or when the process dies. `options` are vLLM's command-line options.
    """
    settings = settings or ServerSettings()
    values = engine_values(settings, settings.max_model_len or max_tokens, _GPU_SHARE)
    values |= {
        "model": str(model),
        "tensor_parallel_size": settings.tensor_parallel_size,
        **({"weight_transfer_config": {"backend": "nccl"}} if settings.transport == "nccl" else {}),
        **settings.extra,
        **options,
    }
    key = json.dumps([asdict(settings), values], sort_keys=True, default=str)
    return LocalVLLM(lambda: _SERVERS.get((key,), lambda: _VLLMServer(values)), _SERVERS)


def fleet_command(model: str, options: Mapping[str, Any], host: str, port: int) -> list[str]:
    """The command of a server in a fleet (`agentgym up`); `options` are the engine's settings.

    Raises `ConfigError` for an option that the engine does not have.
    """
    settings = engine_settings({"type": "vllm", **options})
    assert isinstance(settings, ServerSettings)
    if settings.servers:
        raise ConfigError("a fleet starts the servers itself; remove servers from options")
    values = engine_values(settings, settings.max_model_len, _GPU_SHARE)
    values |= {
        "model": model,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enable_server_load_tracking": True,
        **({"weight_transfer_config": {"backend": "nccl"}} if settings.transport == "nccl" else {}),
        **settings.extra,
    }
    return _command(host, port, values)


def _command(host: str, port: int, values: dict[str, Any]) -> list[str]:
    return [
        sys.executable, "-P", "-m", "agentgym_train.engines.vllm.process",
        "--host", host, "--port", str(port), *command_line(values),
    ]  # fmt: skip


def launch_for(
    model: Any, settings: ServerSettings, *, max_tokens: int, adapters: bool = False
) -> LocalVLLM:
    """Start a server for the architecture of a loaded model, with dummy weights.

    With `adapters` it takes LoRA adapters as large as the model's.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentgym-vllm-"))
    save_architecture(model, folder)
    options: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True}
    if adapters:
        options |= {"enable_lora": True, "max_lora_rank": _rank_for(model), "max_loras": 1}
    try:
        started = launch_vllm(folder, settings, max_tokens=max_tokens, **options)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # A restarted server reads the folder again, so it exists as long as the server.
    weakref.finalize(started, shutil.rmtree, folder, ignore_errors=True)
    return started


_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's --max-lora-rank."""


def _rank_for(model: Any) -> int:
    """The smallest maximum rank that a server needs for a model's adapters."""
    most = max(max([c.r, *c.rank_pattern.values()]) for c in model.peft_config.values())
    if most > _RANKS[-1]:
        raise ConfigError(
            f"vLLM takes LoRA adapters up to rank {_RANKS[-1]}, got {most}; set "
            "engine.adapter_updates to false"
        )
    return next(rank for rank in _RANKS if rank >= most)


class _VLLMServer(SharedServer):
    """The processes of a vLLM server."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self._port = free_port("127.0.0.1")
        self.address = f"http://127.0.0.1:{self._port}"
        self._values = values
        self._restarting = threading.Lock()
        self._start()

    def restart(self) -> None:
        """Restart the server if it died."""
        with self._restarting:
            if self.process.poll() is not None:
                self.end()
                self._start()

    def end(self) -> None:
        """Kill every process of the server, including orphans."""
        cast("IO[bytes]", self.process.stdin).close()
        end_group(self.process.pid)
        self.process.wait()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            _command("127.0.0.1", self._port, self._values),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment() | UPDATABLE,
            start_new_session=True,
        )
        self.listen(self.process.stdout, logging.DEBUG)
        try:
            self._await_health()
        except BaseException:
            self.end()
            raise

    def _await_health(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.address}/health", timeout=5).ok:
                    return
            time.sleep(0.2)
        status = self.process.poll()
        self.end()
        last = self.last_output()
        fact = f"exited with status {status}" if status is not None else "did not start in time"
        raise ServerStartFailed(f"the local vLLM server {fact}; its last output was:\n{last}")


def command_line(values: dict[str, Any]) -> list[str]:
    """Command-line options of vLLM for these values, and those that the engine requires."""
    needed = {
        "worker_extension_cls": READER,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "no_trust_remote_code": True,
        "disable_uvicorn_access_log": True,
        "disable_log_stats": True,
    }
    words: list[str] = []
    for name, value in {**needed, **values}.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            words += [option, text]
    return words


def _end_with_owner() -> None:
    """Wait until the owner closes the pipe or dies; then kill the process group."""
    # Not sys.stdin: a thread blocked in its buffer makes Python abort at exit.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    if os.getpid() != os.getpgrp():
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    # The console script needs a distribution named vllm; CPU builds have another name.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
