"""A model's weights, with its LoRA adapters merged, left out or alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from agentgym_env.errors import ConfigError

TOKENS_WITH_ADAPTERS: Final = (
    "the adapters train tokens, which vLLM's LoRA does not take; set engine.adapter_updates "
    "to false"
)


def base_model(model: Any) -> Any:
    """The model below its adapters, if it has any."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def head_of(model: Any) -> Any:
    """The LM head below the wrapper that trains some of its tokens."""
    head = model.get_output_embeddings()
    adapter = getattr(head, "token_adapter", None)
    return head if adapter is None else adapter.get_base_layer()


@contextmanager
def merged_tokens(model: Any) -> Iterator[None]:
    """Within, the embeddings contain the trained tokens: PEFT copies them all in each pass."""
    layers = [m.token_adapter for m in model.modules() if hasattr(m, "token_adapter")]
    layers = [layer for layer in layers if not layer.merged and not layer.disable_adapters]
    try:
        for layer in layers:
            for name in layer.active_adapters:
                _put(layer, name, layer.trainable_tokens_delta[name])
                layer.merged_adapters.append(name)
        yield
    finally:
        for layer in layers:
            while layer.merged_adapters:
                name = layer.merged_adapters.pop()
                _put(layer, name, layer.trainable_tokens_original[name])


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


@torch.no_grad()
def _put(layer: Any, name: str, rows: Tensor) -> None:
    # In place: a new tensor of inference mode could not be trained afterwards.
    weight = layer.get_base_layer().weight.data
    weight[torch.tensor(layer.token_indices[name], device=weight.device)] = rows.to(weight)
