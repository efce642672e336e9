"""LoRA adapters of a run: their configuration, what they cannot be, and new tokens they train."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import PartialState

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train.config.checks import check_arguments
from agentgym_train.config.files import local_path
from agentgym_train.models.distributed import gathered
from agentgym_train.models.folders import gguf_file, has_adapters

logger = logging.getLogger(__name__)

_DEFAULTS = {"task_type": "CAUSAL_LM", "target_modules": "all-linear"}
"""Adapters on every linear layer but the head match full training best (arXiv:2405.09673)."""

_UNREPEATABLE: Final = ("corda", "eva", "lora_ga", "loftq")
"""Initialisations from data, and one that loading the adapters would not repeat."""

_AT_THE_MODEL: Final = ("true", "gaussian", "orthogonal", "mica")
"""Initialisations after which the policy is the model, and the model without adapters too."""

_NEAR_MEAN = 0.01
"""A token is new if its embedding is this close to the mean of all, as a share of their spread."""

_SPREAD_ROWS = 4096


def lora_config(fields: Mapping[str, Any] | None) -> Any:
    """PEFT's LoraConfig of a run's `lora`; None if it is None."""
    if fields is None:
        return None
    try:
        from peft import LoraConfig
    except ModuleNotFoundError as error:
        raise MissingExtra("lora needs peft: pip install 'agentgym-sdk[train]'") from error
    check_arguments("lora", fields, LoraConfig)
    _check_saved(fields)
    try:
        return LoraConfig(**{**_DEFAULTS, **fields})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"lora has the fields of LoraConfig, such as r, lora_alpha, target_modules: {error}"
        ) from error


def _check_saved(fields: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for adapters that would not be the trained ones once they are loaded."""
    start = _initialisation(fields)
    if start in _UNREPEATABLE or start.startswith("pissa_niter"):
        raise ConfigError(
            f"lora.init_lora_weights {start} is computed from data, which a run does not pass to "
            "PEFT, or cannot be repeated exactly when the adapters are loaded, so that the saved "
            "model would not be the trained one; leave it out, or use pissa or olora"
        )
    for name in ("alora_invocation_tokens", "arrow_config", "lora_bias"):
        if fields.get(name):
            raise ConfigError(
                f"lora.{name} makes adapters that cannot be merged into the model, as every "
                "command does when it loads them; leave it out"
            )


def check_reference(fields: Mapping[str, Any] | None, needed_by: str) -> None:
    """Raise `ConfigError` if the model without these adapters is not the policy at the start.

    PiSSA and OLoRA, for example, move a part of the weights to the adapters.
    """
    if fields is None:
        return
    start = _initialisation(fields)
    if start not in _AT_THE_MODEL:
        fact = f"init_lora_weights {fields['init_lora_weights']}"
    elif fields.get("kasa_config") is not None:
        fact = "kasa_config"
    elif fields.get("bias", "none") != "none":
        fact = f"bias {fields['bias']}"
    else:
        return
    raise ConfigError(
        f"with lora.{fact} the model without adapters is not the policy that training starts from, "
        f"which {needed_by} compares with; leave it out of lora, or train without a reference"
    )


def _initialisation(fields: Mapping[str, Any]) -> str:
    return str(fields.get("init_lora_weights", True)).lower()


def adapters_for(model: Any, tokenizer: Any, fields: Mapping[str, Any] | None) -> Any:
    """`lora_config` for a model, which also trains the embeddings of its new tokens.

    A collective: other processes than the first may not have loaded the weights.
    """
    config = lora_config(fields)
    if config is None:
        return None
    inputs, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is inputs.weight
    names = {module: name for name, module in model.named_modules()}
    if is_tied and _is_target(config, names[inputs]):
        raise ConfigError(
            f"lora.target_modules contains {names[inputs]}, whose weights are the LM head's too, "
            "so that adapters of the one would be merged into both; leave it out, or use "
            f"lora.modules_to_save: [{names[inputs].rpartition('.')[2]}]"
        )
    ids = gathered(new_tokens(model, tokenizer))[0]
    if not ids or config.trainable_token_indices is not None:
        return config
    words = ", ".join(tokenizer.convert_ids_to_tokens(ids))
    parts = [names[inputs]] if is_tied or head is None else [names[inputs], names[head]]
    known = [names[inputs]] if head is None else [names[inputs], names[head]]
    saved = [n for n in known if any(n.endswith(name) for name in config.modules_to_save or ())]
    if set(parts) <= set(saved):
        return config
    adapted = [name for name in known if _is_target(config, name)]
    if saved or adapted:
        short = ", ".join(name.rpartition(".")[2] for name in parts)
        raise ConfigError(
            f"the model has not learned {words} yet, whose embeddings are to be trained, and lora "
            f"names {', '.join([*saved, *adapted])} in modules_to_save or target_modules; set "
            f"modules_to_save: [{short}], or leave them out of both"
        )
    if getattr(head, "bias", None) is not None:
        raise ConfigError(
            f"the model has not learned {words} yet, and PEFT cannot train tokens of an LM head "
            "with a bias; train all weights once (leave out lora)"
        )
    logger.warning("the model has not learned %s yet: their embeddings are trained, too", words)
    config.trainable_token_indices = {names[inputs]: ids}
    if head is not None and not is_tied:
        config.trainable_token_indices[names[head]] = ids
    return config


def _is_target(config: Any, name: str) -> bool:
    """Whether adapters are put on a module that is not linear."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if config.target_modules == "all-linear":
        return False
    return bool(check_target_module_exists(config, name))


@torch.no_grad()
def new_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Ids of the chat's control tokens that the model has not learned yet.

    A token that was added has the mean of all embeddings, or zeros, or shares its embedding.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    control = [
        number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.content in template or number == tokenizer.eos_token_id
    ]
    weight = model.get_input_embeddings().weight
    control = [number for number in control if number < len(weight)]
    if not control or weight.is_meta:
        return []
    mean = weight.float().mean(0)  # (H,)
    some = weight[:: max(1, len(weight) // _SPREAD_ROWS)].float()  # (N, H)
    near = _NEAR_MEAN * (some - mean).norm(dim=1).median()
    own = weight[control].float()  # (C, H)
    apart = torch.cdist(own, own).fill_diagonal_(torch.inf).amin(1)  # (C,)
    untrained = ((own - mean).norm(dim=1) < near) | (own.norm(dim=1) == 0) | (apart == 0)
    return [number for number, new in zip(control, untrained.tolist(), strict=True) if new]


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


def check_trained_tokens(trainer: Any) -> None:
    """Raise `ConfigError` where new tokens cannot be trained with adapters."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "peft_config"):
        return
    from peft.utils.other import TrainableTokensWrapper

    has_tokens = any(isinstance(part, TrainableTokensWrapper) for part in model.modules())
    if has_tokens and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        raise ConfigError(
            "new tokens cannot be trained with adapters and sharded weights, which PEFT does not "
            "support; train all weights once (leave out lora), or use DDP"
        )
