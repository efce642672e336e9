"""Loads models: chat templates, attention kernels, LoRA adapters and GGUF files."""

from __future__ import annotations

import copy
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)
from transformers import logging as hf_logging
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.models.distributed import gathered
from agentgym_train.models.local import (
    GGUFFile,
    base_of,
    check_folder,
    gguf_file,
    has_adapters,
    hub_options,
)


def keep_base(model: Any, tokenizer: Any, source: str, folder: Path) -> None:
    """Keep the model below new adapters, in `folder`/base, where no folder or hub id names it.

    One that is itself adapters of another was merged when it was loaded; adapters on it would name
    what was below the first ones, and those would be lost. One from a GGUF file other libraries
    would not find. A collective.
    """
    if not has_adapters(Path(source).expanduser()) and gguf_file(source) is None:
        return
    base = folder / "base"
    if PartialState().is_main_process and not base.is_dir():
        partial = base.with_name("base.partial")
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.replace(base)
    gathered(None)
    # What PEFT writes into the adapters' config.
    model.name_or_path = str(base)


logger = logging.getLogger(__name__)


def use_attention(model: Any, wanted: str | None, computes_in: str) -> None:
    """Set the kernels of a model that is on its device: the wanted ones, or those that suit it.

    On a GPU in half precision FlashAttention suits, where its package is and the model knows it: a
    step's episodes then share rows without padding. Elsewhere transformers' own choice stays, and a
    wanted FlashAttention is passed over on a CPU. Raises `ConfigError` for what is not to be had.
    """
    on_gpu = next(model.parameters()).device.type == "cuda"
    chosen = wanted if wanted is not None else _suits(model, on_gpu, computes_in)
    if chosen is None:
        return
    if "flash" in chosen and not on_gpu:
        logger.info("attention %s is for GPUs; this is a CPU", chosen)
        return
    try:
        model.set_attn_implementation(chosen)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigError(
            f"attention {chosen!r} is not to be had here: {str(error).splitlines()[0][:300]}. "
            "Leave attention out for what suits the machine, or take sdpa or eager"
        ) from error


def _suits(model: Any, on_gpu: bool, computes_in: str) -> str | None:
    if not on_gpu or computes_in == "float32" or not model._supports_flash_attn:
        return None
    if is_flash_attn_3_available():
        return "flash_attention_3"
    return "flash_attention_2" if is_flash_attn_2_available() else None


CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

"""The ChatML layout, append-only: nothing is trimmed, nothing is dropped."""

TURN_BEGINS: Final = "<|im_start|>"

TURN_ENDS: Final = "<|im_end|>"


def speak_chatml(model: Any, tokenizer: Any) -> None:
    """Give a model without a chat template this one, in place.

    Tokens that its vocabulary lacks get embeddings drawn around the mean of the others; what they
    mean the model has yet to learn.
    """
    if getattr(tokenizer, "chat_template", None):
        raise ConfigError("the model has a chat template of its own; it would not know another")
    missing = [t for t in (TURN_BEGINS, TURN_ENDS) if t not in tokenizer.get_vocab()]
    tokenizer.add_tokens(missing, special_tokens=True)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = CHATML
    tokenizer.eos_token = TURN_ENDS
    for config in (model.config, model.generation_config):
        if config is not None:
            config.eos_token_id = tokenizer.eos_token_id


def base_model(model: Any) -> Any:
    """The model without the adapters around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def checkpoint_weights(model: Any) -> dict[str, Tensor]:
    """Each weight once, tied ones under their first name; adapters are in the weights they adapt.

    The tensors are the model's own wherever nothing had to be computed.
    """
    named = dict(_merged(model) if hasattr(model, "get_base_model") else model.named_parameters())
    weights = {name: weight.detach() for name, weight in named.items()}
    # What transformers fuses or renames in memory, a checkpoint holds apart.
    found: dict[str, Tensor] = revert_weight_conversion(base_model(model), weights)
    return found


def _merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights of the adapted model with the adapters in them; the model stays as it is."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    base = model.get_base_model()
    adapted = {n: m for n, m in base.named_modules() if isinstance(m, BaseTunerLayer)}
    for name, layer in adapted.items():
        if not isinstance(layer, LoraLayer) or any(layer.use_dora.values()):
            raise ConfigError(
                f"the adapter of {name} is a {type(layer).__name__} that can not be added to its "
                "weights for vLLM; use plain LoRA, or engine: hf"
            )
    if any(isinstance(module, ModulesToSaveWrapper) for module in base.modules()):
        raise ConfigError("vLLM can not be given modules_to_save; leave it out, or use engine: hf")
    for name, weight in base.named_parameters():
        owner, _, rest = name.partition(".base_layer.")
        if rest:
            deltas = adapted[owner].active_adapters if rest == "weight" else ()
            for adapter in deltas:
                weight = weight + adapted[owner].get_delta_weight(adapter)
            yield f"{owner}.{rest}", weight
        elif not any(name.startswith(f"{layer}.") for layer in adapted):
            yield name, weight


_READS: Final = ("GGUFReader", "get_tensor_name_map")

_lock = threading.Lock()


@contextmanager
def read_once() -> Iterator[None]:
    """Keep what gguf made of a file until the end.

    transformers opens the file anew for the tokenizer, the config and the weights, each time with
    all the tokens in Python, and makes the map of names once for each of the model's modules: half
    the time that a small model takes to load.
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


_ROLES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_gguf(found: GGUFFile, dtype: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """(model, tokenizer); raises `ConfigError` where transformers cannot read the file."""
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


def _unreadable(found: GGUFFile, error: Exception) -> ConfigError:
    reason = str(error).strip().partition("\n")[0][:300]
    return ConfigError(
        f"transformers cannot read {found.file} in {found.source}: {reason}. Use a file of another "
        "model or quantization, or the model's own folder or hub id"
    )


_DEFAULTS = {"task_type": "CAUSAL_LM", "target_modules": "all-linear"}

"""Adapters on every linear layer but the head: what full training is matched by
(arXiv:2405.09673)."""


def lora_config(fields: Mapping[str, Any] | None) -> Any:
    """PEFT's LoraConfig of a run's `lora`, None where there is none."""
    if fields is None:
        return None
    try:
        from peft import LoraConfig
    except ModuleNotFoundError as error:
        raise MissingExtra("lora needs peft: pip install 'agentgym-sdk[train]'") from error
    try:
        return LoraConfig(**{**_DEFAULTS, **fields})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"lora holds LoraConfig's fields, such as r, lora_alpha and target_modules: {error}"
        ) from error


def load_policy(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, a hub id or a GGUF file (see `gguf_files`).

    Raises `ConfigError` with what to do.
    """
    check_folder(name)
    kind = getattr(torch, dtype)
    found = gguf_file(name)
    if found is not None:
        options = hub_options(found.source, found.file) if found.on_hub else {}
        model, tokenizer = load_gguf(found, kind, options)
        model.name_or_path = name  # what adapters name as theirs
    else:
        source, options = _source(name)
        with _told_apart(name):
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
            if has_adapters(Path(source)):
                model = _with_adapters(Path(source), dtype)
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    source, dtype=kind, trust_remote_code=False, **options
                )
    return model, _with_padding(tokenizer)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model that `load_policy` would load."""
    check_folder(name)
    found = gguf_file(name)
    if found is not None:
        options = hub_options(found.source, found.file) if found.on_hub else {}
        return _with_padding(load_gguf_tokenizer(found, options))
    source, options = _source(name)
    with _told_apart(name):
        return _with_padding(
            AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        )


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """Where `from_pretrained` is to look, and what else it is told."""
    path = Path(name).expanduser()
    return (str(path), {}) if path.is_dir() else (name, hub_options(name))


@contextmanager
def _told_apart(name: str) -> Iterator[None]:
    """Say what is wrong with a folder or repository in which there is something, but no policy."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(
            f"cannot load {name!r} as a causal language model with its tokenizer: {reason}"
        ) from error


def _with_padding(tokenizer: Any) -> Any:
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _with_adapters(folder: Path, dtype: str) -> Any:
    """The model that adapters were trained on, with them in its weights."""
    try:
        from peft import PeftModel
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{folder} holds adapters, which need peft: pip install 'agentgym-sdk[train]'"
        ) from error
    # By our own road, since adapters may be of a model that PEFT would not find.
    model, _ = load_policy(base_of(folder), dtype)
    with_adapters = PeftModel.from_pretrained(model, str(folder), trust_remote_code=False)
    # Adapters were what trained; now it is a model like any other.
    return with_adapters.merge_and_unload().requires_grad_(True)


def quiet_libraries() -> None:
    """Silence the libraries of training: bars of their own, advice, future warnings."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for name in ("accelerate", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
