"""Loads GGUF files as models that can be trained and saved."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.models.folders import GGUFFile

_READS: Final = ("GGUFReader", "get_tensor_name_map")
_ROLES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
_lock = threading.Lock()


def load_gguf(found: GGUFFile, dtype: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, tokenizer); raises `ConfigError` where transformers cannot read the file."""
    check_reader()
    options = {"gguf_file": found.file, **options}
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(
                found.source, trust_remote_code=False, **options
            )
            read = AutoModelForCausalLM.from_pretrained(
                found.source, dtype=dtype, trust_remote_code=False, **options
            )
    except Exception as error:  # the readers raise errors of any type on invalid files
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, read.config)
    return _without_gguf(read, dtype), tokenizer


def load_gguf_tokenizer(found: GGUFFile, options: dict[str, Any]) -> Any:
    """The tokenizer alone."""
    check_reader()
    options = {"gguf_file": found.file, **options}
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(
                found.source, trust_remote_code=False, **options
            )
            config = AutoConfig.from_pretrained(found.source, trust_remote_code=False, **options)
    except Exception as error:  # the readers raise errors of any type on invalid files
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, config)
    return tokenizer


@contextmanager
def read_once() -> Iterator[None]:
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


def check_reader() -> None:
    """Raise `MissingExtra` if GGUF files cannot be read here."""
    if find_spec("gguf") is None:
        raise MissingExtra("GGUF files need gguf: pip install 'agentgym-sdk[gguf]'")


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


def _unreadable(found: GGUFFile, error: Exception) -> ConfigError:
    reason = str(error).strip().partition("\n")[0][:300]
    return ConfigError(
        f"transformers cannot read {found.file} in {found.source}: {reason}. Use a file of another "
        "model or quantization, or the model's own folder or hub id"
    )
