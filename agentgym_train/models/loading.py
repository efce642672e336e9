"""Loads models: chat templates, attention kernels, LoRA adapters and GGUF files."""

from __future__ import annotations

import copy
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    GenerationConfig,
)
from transformers import logging as hf_logging
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from agentgym_env.errors import AgentGymError, ConfigError, MissingExtra
from agentgym_train.config.files import local_path
from agentgym_train.models.distributed import gathered
from agentgym_train.models.local import (
    GGUFFile,
    base_of,
    check_folder,
    gguf_file,
    has_adapters,
    has_tokenizer,
    hub_options,
)


def keep_base(model: Any, tokenizer: Any, source: str, folder: Path) -> None:
    """Save the base model of new adapters in `folder`/base if no folder or hub id names it.

    This concerns a model that is itself a folder of adapters, because these are merged on loading
    and would be lost, and a GGUF file, which other libraries cannot load. A collective.
    """
    if not has_adapters(local_path(source)) and gguf_file(source) is None:
        return
    base = folder / "base"
    if PartialState().is_main_process and not base.is_dir():
        partial = base.with_name("base.partial")
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.replace(base)
    gathered(None)
    # PEFT writes this name into the config of the adapters.
    model.name_or_path = str(base.absolute())


logger = logging.getLogger(__name__)


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


def _best_attention(model: Any, on_gpu: bool, computes_in: str) -> str | None:
    if not on_gpu or computes_in == "float32" or not model._supports_flash_attn:
        return None
    if is_flash_attn_3_available():
        return "flash_attention_3"
    return "flash_attention_2" if is_flash_attn_2_available() else None


def uncompiled(model: Any) -> AbstractContextManager[Any]:
    """Context in which the model runs without compiled code."""
    is_compiled = any(part._compiled_call_impl is not None for part in model.modules())
    return torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()


@cache
def warn_of_slow_bfloat16() -> None:
    """Log once that this processor computes bfloat16 by converting it to float32 and back."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    if capabilities and not any("bf16" in name and found for name, found in capabilities.items()):
        logger.warning(
            "this processor has no instructions for bfloat16, in which its matrix products take "
            "several times as long; set compute_dtype: float32 (--dtype float32)"
        )


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


def base_model(model: Any) -> Any:
    """The model below its adapters, if it has any."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def checkpoint_weights(model: Any, *, with_adapters: bool = True) -> dict[str, Tensor]:
    """Each weight once, tied ones under their first name, with adapters merged or left out.

    Tensors that need no computation are the model's own.
    """
    is_adapted = hasattr(model, "get_base_model")
    named = dict(_merged(model, with_adapters) if is_adapted else model.named_parameters())
    weights = {name: weight.detach() for name, weight in named.items()}
    # Checkpoints have separate weights where transformers fuses or renames them in memory.
    found: dict[str, Tensor] = revert_weight_conversion(base_model(model), weights)
    return found


TOKENS_WITH_ADAPTERS: Final = (
    "the adapters train tokens, which vLLM's LoRA does not take; set engine_args.adapter_updates "
    "to false"
)


def adapters_of(model: Any) -> tuple[Any, dict[str, Tensor]]:
    """(PEFT's configuration, the weights) of a model's LoRA adapters, as PEFT saves them."""
    from peft import get_peft_model_state_dict

    (name,) = model.active_adapters
    if model.peft_config[name].trainable_token_indices is not None:
        raise ConfigError(TOKENS_WITH_ADAPTERS)
    config = copy.copy(model.peft_config[name])
    config.inference_mode = True
    weights = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return config, {n: weight.detach().cpu().contiguous() for n, weight in weights.items()}


def _merged(model: Any, with_adapters: bool) -> Iterator[tuple[str, Tensor]]:
    """The weights with merged adapters, or without; the model itself does not change."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    base = model.get_base_model()
    adapted = {n: m for n, m in base.named_modules() if isinstance(m, BaseTunerLayer)}
    tokens = {n for n, layer in adapted.items() if isinstance(layer, TrainableTokensLayer)}
    for name, layer in adapted.items():
        if name not in tokens and (
            not isinstance(layer, LoraLayer) or any(layer.use_dora.values())
        ):
            raise ConfigError(
                f"the adapter of {name} is a {type(layer).__name__}, which cannot be merged into "
                "the weights for vLLM; use plain LoRA, or engine: hf"
            )
    if any(isinstance(module, ModulesToSaveWrapper) for module in base.modules()):
        raise ConfigError("vLLM does not support modules_to_save; remove it, or use engine: hf")
    for name, weight in base.named_parameters():
        owner, _, weight_name = name.partition(".base_layer.")
        if owner in tokens:
            if with_adapters:
                weight = adapted[owner].get_merged_weights(adapted[owner].active_adapters)
            yield f"{owner.removesuffix('.token_adapter')}.{weight_name}", weight
        elif weight_name:
            merges = with_adapters and weight_name == "weight"
            for adapter in adapted[owner].active_adapters if merges else ():
                weight = weight + adapted[owner].get_delta_weight(adapter)
            yield f"{owner}.{weight_name}", weight
        elif not any(name.startswith(f"{layer}.") for layer in adapted):
            yield name, weight


_READS: Final = ("GGUFReader", "get_tensor_name_map")

_lock = threading.Lock()


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
    except Exception as error:  # the readers raise errors of any type on invalid files
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, read.config)
    return _without_gguf(read, dtype), tokenizer


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
    except Exception as error:  # the readers raise errors of any type on invalid files
        raise _unreadable(found, error) from error
    _give_roles(tokenizer, config)
    return tokenizer


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


def _check_reader() -> None:
    if find_spec("gguf") is None:
        raise MissingExtra("GGUF files need gguf: pip install 'agentgym-sdk[gguf]'")


def _unreadable(found: GGUFFile, error: Exception) -> ConfigError:
    reason = str(error).strip().partition("\n")[0][:300]
    return ConfigError(
        f"transformers cannot read {found.file} in {found.source}: {reason}. Use a file of another "
        "model or quantization, or the model's own folder or hub id"
    )


def load_policy(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, a hub id or a GGUF file, or a `ConfigError`."""
    check_folder(name)
    kind = getattr(torch, dtype)
    found = gguf_file(name)
    if found is not None:
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
        _check_reader()
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
        options = hub_options(found.source, found.file) if found.on_hub else {}
        return _with_padding(load_gguf_tokenizer(found, options))
    source, options = _source(name)
    with _load_errors(name):
        return _with_padding(_tokenizer(source, options))


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


def quiet_libraries() -> None:
    """Silence the progress bars, advice and future warnings of the training libraries."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for name in ("accelerate", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
