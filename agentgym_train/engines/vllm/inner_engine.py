"""vLLM's own engine as a library in this process, made for a model's architecture."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import ColocateSettings
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.vllm.process import READER, engine_values, save_architecture


def inner_engine(model: Any, settings: ColocateSettings, max_len: int) -> tuple[LLMEngine, bool]:
    """(vLLM's engine for `model`'s architecture with dummy weights, whether it can sleep).

    Only the configuration is written to a folder; the weights are passed in memory.
    """
    on_gpu = torch.cuda.is_available()
    sleeps = on_gpu and settings.sleep_level > 0
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    values = engine_values(settings, max_len, memory_share=0.3)
    values |= {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_sleep_mode": sleeps,
        "worker_extension_cls": READER,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "trust_remote_code": False,
        "disable_log_stats": True,
        # Each of several processes has its own engine, in the existing process group.
        "distributed_executor_backend": "external_launcher" if several else "uni",
    }
    with tempfile.TemporaryDirectory(prefix="agentgym-vllm-") as folder, _in_this_process():
        save_architecture(model, Path(folder))
        made = LLMEngine.from_engine_args(EngineArgs(model=folder, **(values | settings.extra)))
    return made, sleeps


def sampling_params(sampling: Sampling, prompt_tokens: int, max_len: int) -> SamplingParams:
    """Sampling parameters of a turn for vLLM; raises `ConfigError` if the context is full."""
    room = max_len - prompt_tokens
    if room < 1:
        raise ConfigError(
            f"a conversation of {prompt_tokens} tokens exceeds vLLM's max_model_len of {max_len}; "
            "raise engine.max_model_len, or lower max_tokens"
        )
    return SamplingParams(
        max_tokens=min(sampling.max_tokens, room),
        temperature=sampling.temperature,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_ids),
        # Only the ids above end a turn, regardless of the model's generation config.
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Use vLLM as a library: no extra process, few logs, and the trainer's thread settings."""
    level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": level,
    }
    before = {name: os.environ.get(name) for name in wanted}
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    os.environ.update(wanted)
    logging.getLogger("vllm").setLevel(level.upper())
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
