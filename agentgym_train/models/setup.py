"""Sets up a loaded model: its attention kernels, and a chat template where it has none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from agentgym_env.errors import ConfigError

logger = logging.getLogger(__name__)

CHATML: Final = (
    "{% if tools %}<|im_start|>system\nTools:\n{% for t in tools %}{{ t['function'] | tojson }}\n"
    '{% endfor %}To call one, write:\n<tool_call>\n{"name": NAME, "arguments": {...}}\n'
    "</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>\n{\"name\": "
    "\"{{ c['function']['name'] }}\", \"arguments\": {{ c['function']['arguments'] | tojson }}}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The ChatML template with tool calls as Hermes writes them, append-only: it drops nothing."""
TURN_BEGINS: Final = "<|im_start|>"
TURN_ENDS: Final = "<|im_end|>"


def use_attention(model: Any, requested: str | None, computes_in: str) -> None:
    """Set the attention kernels of a model on its device: the requested or the best ones.

    On a GPU in half precision this is FlashAttention, if its package is installed and the model
    supports it: the episodes of a step then share rows without padding. Otherwise the choice of
    transformers remains. A CPU ignores FlashAttention. Raises `ConfigError` for unavailable
    kernels.
    """
    on_gpu = next(model.parameters()).device.type == "cuda"
    chosen = requested if requested is not None else _best_attention(model, on_gpu, computes_in)
    if chosen is None:
        return
    if "flash" in chosen and not on_gpu:
        logger.info("attention %s is for GPUs; this is a CPU", chosen)
        return
    try:
        model.set_attn_implementation(chosen)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(
            f"attention {chosen!r} is not available: {str(error).splitlines()[0][:300]}. "
            "Remove attention to use the best for this machine, or use sdpa or eager"
        ) from error


def uncompiled(model: Any) -> AbstractContextManager[Any]:
    """Context in which the model runs without compiled code."""
    is_compiled = any(part._compiled_call_impl is not None for part in model.modules())
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Context in which the model is in evaluation mode."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def short_text(model: Any, device: torch.device) -> Tensor:
    """(1, 8) token ids, to try a model with."""
    return torch.arange(8, device=device)[None] % model.config.get_text_config().vocab_size


@cache
def warn_of_slow_bfloat16() -> None:
    """Log once that this processor computes bfloat16 by converting it to float32 and back."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    if capabilities and not any("bf16" in name and found for name, found in capabilities.items()):
        logger.warning(
            "this processor has no instructions for bfloat16, in which its matrix products take "
            "several times as long; set compute_dtype: float32 (--compute-dtype float32)"
        )


def speak_chatml(model: Any, tokenizer: Any) -> None:
    """Add this chat template to a model without one, in place.

    Tokens that its vocabulary lacks get embeddings around the mean of the others, which the model
    has not learned yet.
    """
    if getattr(tokenizer, "chat_template", None):
        raise ConfigError("the model has a chat template of its own, and has not learned another")
    missing = [t for t in (TURN_BEGINS, TURN_ENDS) if t not in tokenizer.get_vocab()]
    tokenizer.add_tokens(missing, special_tokens=True)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = CHATML
    tokenizer.eos_token = TURN_ENDS
    for config in (model.config, model.generation_config):
        if config is not None:
            config.eos_token_id = tokenizer.eos_token_id


def _best_attention(model: Any, on_gpu: bool, computes_in: str) -> str | None:
    if not on_gpu or computes_in == "float32" or not model._supports_flash_attn:
        return None
    if is_flash_attn_3_available():
        return "flash_attention_3"
    return "flash_attention_2" if is_flash_attn_2_available() else None
