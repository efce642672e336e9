"""Models from GGUF files: dequantized, and from then on as trainable and saveable as any other."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any, Final

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_train.gguf_files import GGUFFile
from agentgym_train.gguf_reading import read_once

_ROLES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_gguf(found: GGUFFile, dtype: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, tokenizer); raises `BadRequest` where transformers cannot read the file."""
    _check_reader()
    options = {"gguf_file": found.file, **options}
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(
                found.source, trust_remote_code=False, **options
            )
            read = AutoModelForCausalLM.from_pretrained(
                found.source, dtype=dtype, trust_remote_code=False, **options
            )
    except Exception as error:  # whatever its readers come upon in bytes of somebody else's
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, read.config)
    return _made_anew(read, dtype), tokenizer


def load_gguf_tokenizer(found: GGUFFile, options: dict[str, Any]) -> Any:
    """The tokenizer alone."""
    _check_reader()
    options = {"gguf_file": found.file, **options}
    try:
        with read_once():
            tokenizer = AutoTokenizer.from_pretrained(
                found.source, trust_remote_code=False, **options
            )
            config = AutoConfig.from_pretrained(found.source, trust_remote_code=False, **options)
    except Exception as error:  # whatever its readers come upon in bytes of somebody else's
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, config)
    return tokenizer


def _made_anew(read: Any, dtype: Any) -> Any:
    """The same weights in a model without a trace of the file.

    transformers holds what it read for quantized, which it is no more: as it is, the model could
    neither be trained nor saved.
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

    Of SmolLM2's it makes the token that begins a turn the one that ends a text.
    """
    for role in _ROLES:
        number = getattr(config, f"{role}_id", None)
        if isinstance(number, int) and number < len(tokenizer):
            setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(number))
    # To decode is to give back what was encoded, spaces before a comma included.
    tokenizer.clean_up_tokenization_spaces = False


def _check_reader() -> None:
    if find_spec("gguf") is None:
        raise MissingExtra("GGUF files need gguf: pip install 'agentgym-sdk[gguf]'")


def _unreadable(found: GGUFFile, error: Exception) -> BadRequest:
    reason = str(error).strip().partition("\n")[0][:300]
    return BadRequest(
        f"transformers cannot read {found.file} in {found.source}: {reason}. Use a file of another "
        "model or quantization, or the model's own folder or hub id"
    )
