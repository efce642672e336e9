"""Loads models: a folder, a hub id or a GGUF file, with adapters merged."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers import logging as hf_logging

from agentgym_env.errors import AgentGymError, ConfigError, MissingExtra
from agentgym_train.config.files import local_path
from agentgym_train.models.folders import (
    base_of,
    check_folder,
    gguf_file,
    has_adapters,
    has_tokenizer,
)
from agentgym_train.models.hub import hub_options


def load_policy(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, a hub id or a GGUF file, or a `ConfigError`."""
    check_folder(name)
    kind = getattr(torch, dtype)
    found = gguf_file(name)
    if found is not None:
        from agentgym_train.models.gguf_files import load_gguf

        options = hub_options(found.source, found.file) if found.on_hub else {}
        model, tokenizer = load_gguf(found, kind, options)
        model.name_or_path = name  # adapters name it as their base
    else:
        source, options = _source(name)
        with _load_errors(name):
            tokenizer = _tokenizer(source, options)
            if has_adapters(Path(source)):
                model = _with_adapters(Path(source), dtype)
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    source, dtype=kind, trust_remote_code=False, **options
                )
    return model, _with_padding(tokenizer)


def load_config(name: str) -> Any:
    """The config of a model that `load_policy` would load."""
    check_folder(name)
    found = gguf_file(name)
    if found is not None:
        from agentgym_train.models.gguf_files import check_reader

        check_reader()
        source, options = found.source, {"gguf_file": found.file}
        options |= hub_options(found.source, found.file) if found.on_hub else {}
    else:
        source, options = _source(name)
        if has_adapters(Path(source)):
            return load_config(base_of(Path(source)))
    with _load_errors(name):
        return AutoConfig.from_pretrained(source, trust_remote_code=False, **options)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that `load_policy` would load."""
    check_folder(name)
    found = gguf_file(name)
    if found is not None:
        from agentgym_train.models.gguf_files import load_gguf_tokenizer

        options = hub_options(found.source, found.file) if found.on_hub else {}
        return _with_padding(load_gguf_tokenizer(found, options))
    source, options = _source(name)
    with _load_errors(name):
        return _with_padding(_tokenizer(source, options))


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


def _tokenizer(source: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a model; adapters without one have their base model's."""
    folder = Path(source)
    if has_adapters(folder) and not has_tokenizer(folder):
        return load_tokenizer(base_of(folder))
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """The source and further arguments of `from_pretrained`."""
    path = local_path(name)
    return (str(path.absolute()), {}) if path.is_dir() else (name, hub_options(name))


@contextmanager
def _load_errors(name: str) -> Iterator[None]:
    """Report what is wrong with a folder or repository that contains no usable policy."""
    try:
        yield
    except AgentGymError:
        raise
    except Exception as error:  # damaged files make the libraries raise anything
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, OSError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        raise ConfigError(
            f"cannot load {name!r} as a causal language model with its tokenizer: {reason}"
        ) from error


def _with_padding(tokenizer: Any) -> Any:
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


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
