"""Loads models: a folder, a hub id or a GGUF file, with adapters merged."""

from __future__ import annotations

import copy
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import logging as hf_logging

from agentgym_env.errors import AgentGymError, ConfigError, MissingExtra
from agentgym_train.models.available import check_available
from agentgym_train.models.folders import base_of, has_adapters, has_tokenizer

_READS: Final = ("GGUFReader", "get_tensor_name_map")
_ROLES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
_lock = threading.Lock()


def load_policy(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, a hub id or a GGUF file, or a `ConfigError`."""
    source, options = check_available(name)
    kind = getattr(torch, dtype)
    with _loading(name, options):
        tokenizer = _tokenizer(source, options)
        if _is_adapters(source, options):
            model = _with_adapters(Path(source), dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                source, dtype=kind, trust_remote_code=False, **options
            )
    if "gguf_file" in options:
        model = _without_gguf(model, kind)
        model.name_or_path = name  # adapters name it as their base
    return model, tokenizer


def load_config(name: str) -> Any:
    """The config of a model that `load_policy` would load."""
    source, options = check_available(name)
    if _is_adapters(source, options):
        return load_config(base_of(Path(source)))
    with _loading(name, options):
        return AutoConfig.from_pretrained(source, trust_remote_code=False, **options)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that `load_policy` would load."""
    source, options = check_available(name)
    with _loading(name, options):
        return _tokenizer(source, options)


def end_ids(generation_config: Any) -> tuple[int, ...]:
    """The ids that end a turn by a model's generation config: none, one or several."""
    found = getattr(generation_config, "eos_token_id", None)
    several = found if isinstance(found, list | tuple) else [found]
    return tuple(int(number) for number in several if number is not None)


def served_end_ids(source: str) -> tuple[int, ...]:
    """As `end_ids`, of a model that runs elsewhere; empty if its generation config is not here."""
    try:
        return end_ids(GenerationConfig.from_pretrained(source, trust_remote_code=False))
    except (OSError, ValueError):
        return ()


def quiet_libraries() -> None:
    """Silence the progress bars, advice and future warnings of the training libraries."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for name in ("accelerate", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _is_adapters(source: str, options: dict[str, Any]) -> bool:
    return "gguf_file" not in options and has_adapters(Path(source))


@contextmanager
def _loading(name: str, options: dict[str, Any]) -> Iterator[None]:
    """Report what is wrong with a file, folder or repository that contains no usable policy."""
    is_gguf = "gguf_file" in options
    try:
        with _read_once() if is_gguf else nullcontext():
            yield
    except AgentGymError:
        raise
    except Exception as error:  # damaged files make the libraries raise anything
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, OSError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        remedy = (
            ". Use a file of another model or quantization, or the model's own folder or hub id"
            if is_gguf
            else ""
        )
        raise ConfigError(
            f"cannot load {name!r} as a causal language model with its tokenizer: {reason}{remedy}"
        ) from error


@contextmanager
def _read_once() -> Iterator[None]:
    """Cache gguf's reader and map of names within this context.

    transformers opens the file separately for the tokenizer, the config and the weights, and makes
    the map of names once per module, which is half the loading time of a small model.
    """
    import gguf

    with _lock:
        own = {name: getattr(gguf, name) for name in _READS}
        try:
            for name, made in own.items():
                setattr(gguf, name, cache(made))
            yield
        finally:
            for name, made in own.items():
                setattr(gguf, name, made)


def _tokenizer(source: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a model; adapters without one have their base model's."""
    folder = Path(source)
    if _is_adapters(source, options) and not has_tokenizer(folder):
        return load_tokenizer(base_of(folder))
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    if "gguf_file" in options:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
        _give_roles(tokenizer, config)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _give_roles(tokenizer: Any, config: Any) -> None:
    """Give special tokens the roles that the file names, which transformers gets wrong.

    For SmolLM2, it uses the token that begins a turn as the end of a text.
    """
    for role in _ROLES:
        number = getattr(config, f"{role}_id", None)
        if isinstance(number, int) and number < len(tokenizer):
            setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(number))
    # Decoding must return what was encoded, including spaces before a comma.
    tokenizer.clean_up_tokenization_spaces = False


def _without_gguf(read: Any, dtype: Any) -> Any:
    """A new model with the same weights, without the marks of a GGUF file.

    transformers treats the loaded model as quantized although it is dequantized, and would neither
    train nor save it.
    """
    config = copy.deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config).to(dtype)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model.eval()


def _with_adapters(folder: Path, dtype: str) -> Any:
    """The base model of adapters, with the adapters merged."""
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{folder} contains adapters, which need peft: pip install 'agentgym-sdk[train]'"
        ) from error
    # Loaded by `load_policy`, because PEFT may not find the base model.
    model, _ = load_policy(base_of(folder), dtype)
    with_adapters = PeftModel.from_pretrained(model, str(folder), trust_remote_code=False)
    # The merged model has no adapters; all of its weights can be trained.
    return with_adapters.merge_and_unload().requires_grad_(True)
