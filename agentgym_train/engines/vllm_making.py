"""Making a vLLM engine of a model that is in memory, and vLLM's sampling parameters."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentgym_env.errors import BadRequest
from agentgym_train.engines import vllm_worker  # noqa: F401  (before vLLM loads a model)
from agentgym_train.engines.protocol import Sampling
from agentgym_train.engines.settings import ColocateSettings
from agentgym_train.engines.vllm_arguments import READER, engine_values, save_architecture

# isort: split
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine


def inner_engine(model: Any, settings: ColocateSettings, max_len: int) -> tuple[LLMEngine, bool]:
    """(vLLM's engine for `model`'s architecture, its weights still to be given; whether it sleeps).

    Only the configuration goes through a folder: the weights are handed over in memory.
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
        # Of several processes each has an engine of its own, in the one group they all are in.
        "distributed_executor_backend": "external_launcher" if several else "uni",
    }
    with tempfile.TemporaryDirectory(prefix="agentgym-vllm-") as folder, _in_this_process():
        save_architecture(model, Path(folder))
        made = LLMEngine.from_engine_args(EngineArgs(model=folder, **(values | settings.extra)))
    return made, sleeps


def sampling_params(sampling: Sampling, prompt_tokens: int, max_len: int) -> SamplingParams:
    """How vLLM samples a turn; raises `BadRequest` when the conversation has no room for it."""
    room = max_len - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"a conversation of {prompt_tokens} tokens leaves no room in vLLM's max_model_len of "
            f"{max_len}; raise max_model_len under engine_args, or lower max_tokens"
        )
    return SamplingParams(
        max_tokens=min(sampling.max_tokens, room),
        temperature=sampling.temperature,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_ids),
        # Only the ids above end a turn, whatever the model's own configuration says.
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Use vLLM as a library: quiet, no process of its own, the trainer's threads as they were."""
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
