"""Which arguments of transformers `trainer_args` takes.

They are those of the optimizer, its schedule, memory, checkpoints, trackers and uploads. Episodes,
rows and losses are not TRL's, so its other arguments have no effect and are rejected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import check_keys
from agentgym_train.config.trl_keys import SET_BY_ALL, SET_BY_DPO, SET_BY_RL, SET_BY_ROWS

_ALLOWED: Final = frozenset(
    {
        "adam_beta1", "adam_beta2", "adam_epsilon", "ddp_broadcast_buffers", "ddp_bucket_cap_mb",
        "ddp_find_unused_parameters", "debug", "full_determinism", "gradient_checkpointing",
        "gradient_checkpointing_kwargs", "hub_always_push", "hub_model_id", "hub_private_repo",
        "hub_revision", "hub_strategy", "log_level", "log_level_replica", "lr_scheduler_kwargs",
        "lr_scheduler_type", "max_grad_norm", "optim", "optim_args", "optim_target_modules",
        "project", "push_to_hub", "report_to", "run_name", "save_strategy", "save_total_limit",
        "tf32", "torch_compile", "trackio_bucket_id", "trackio_space_id",
        "trackio_static_space_id", "warmup_steps", "weight_decay",
    }
)  # fmt: skip
_ALLOWED_BY_SFT: Final = _ALLOWED | {"neftune_noise_alpha"}

ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "rl": _ALLOWED,
    "sft": _ALLOWED_BY_SFT,
    "dpo": _ALLOWED,
    "evolve": _ALLOWED_BY_SFT,
}
"""By method, what may be set."""

_FEW_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "save_strategy": ("steps", "no"),
    "lr_scheduler_type": (
        "linear", "cosine", "cosine_with_restarts", "polynomial", "constant",
        "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr",
        "cosine_warmup_with_min_lr", "warmup_stable_decay",
    ),
}  # fmt: skip
"""Values that a run supports; the others need evaluations by transformers, which it has not."""

TRACKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Values of `report_to` for which there is an extra of that name, and the packages of which one is
needed."""
OTHER_TRACKERS: Final[Mapping[str, str]] = {
    "none": "", "all": "", "azure_ml": "azureml", "clearml": "clearml", "codecarbon": "codecarbon",
    "comet_ml": "comet_ml", "dagshub": "dagshub", "dvclive": "dvclive", "flyte": "flytekit",
    "kubeflow": "", "mlflow": "mlflow", "neptune": "neptune", "swanlab": "swanlab",
}  # fmt: skip
"""The other values that transformers knows, and the module that each needs."""


SET_BY: Final[Mapping[str, Mapping[str, str]]] = {
    "rl": {**SET_BY_ALL, **SET_BY_RL},
    "sft": {**SET_BY_ALL, **SET_BY_ROWS, "shuffle_dataset": "shuffle"},
    "dpo": {**SET_BY_ALL, **SET_BY_DPO},
    "evolve": {**SET_BY_ALL, **SET_BY_ROWS},
}
"""By method, the arguments that our own keys set, or all that is to be written instead."""

_NO_EFFECT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("deepspeed", "fsdp", "fsdp_config", "accelerator_config", "use_cpu"),
        "is chosen before TRL is; name a config file of accelerate with --accelerate, or hide GPUs "
        "with CUDA_VISIBLE_DEVICES",
    ),
    "hub_token": "would be stored in the run folder; log in with `hf auth login`",
    **dict.fromkeys(
        ("logging_steps", "logging_strategy"), "cannot change: metrics are written at every step"
    ),
    **dict.fromkeys(
        ("eval_strategy", "eval_steps"),
        "has no effect: episodes are evaluated before and after training; see eval",
    ),
    "router_aux_loss_coef": "has no effect: no load-balancing loss is added",
}
_REMOVED: Final = re.compile(
    r"(sapo|vespo)_\w+|off_policy_mask_threshold|top_entropy_quantile|use_bias_correction_kl"
    r"|label_smoothing\w*|loss_(type|weights)|ld_alpha|use_weighting|discopop_tau|f_\w*divergence\w*"
    r"|activation_offloading|torch_empty_cache_steps"
)
"""What is asked for most, and why it cannot be set."""


def trackers_of(trainer_args: Mapping[str, Any]) -> list[str]:
    """The names in `report_to`; raises `ConfigError` for one that transformers does not know."""
    given = trainer_args.get("report_to")
    given = [] if given in (None, "") else given
    names = given if isinstance(given, list) else [given]
    known = (*TRACKERS, *OTHER_TRACKERS)
    for name in names:
        if not isinstance(name, str) or name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise ConfigError(f"trainer_args.report_to has no tracker {name!r:.80}; {hint}")
    return names


def check_trainer_args(method: str, trainer_args: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an argument that is unknown, set by a key of ours, or not usable.

    Knows nothing about TRL: the types of values are checked when it is loaded.
    """
    allowed, ours = ALLOWED[method], SET_BY[method]
    for name, value in trainer_args.items():
        if name in ours:
            key, colon, _ = ours[name].partition(":")
            instead = ours[name] if colon else f"{key}: VALUE"
            raise ConfigError(f"trainer_args.{name} is set by {key}; write {instead} instead")
        if _REMOVED.fullmatch(name):
            raise ConfigError(
                f"trainer_args.{name} was removed: the loss is not TRL's any more. See Algorithms "
                "in docs/training.md for RL's; SFT and DPO have one each"
            )
        if name in _NO_EFFECT:
            raise ConfigError(f"trainer_args.{name} {_NO_EFFECT[name]}")
        if name in allowed and value not in _FEW_VALUES.get(name, (value,)):
            raise ConfigError(
                f"trainer_args.{name} must be one of {', '.join(_FEW_VALUES[name])}, got {value!r}"
            )
    unknown, known = [name for name in trainer_args if name not in allowed], {*allowed, *ours}
    # A near miss may be of a key of ours; no list has those.
    are_near = all(difflib.get_close_matches(name, known, n=1) for name in unknown)
    check_keys(" in trainer_args", unknown, known if are_near else allowed)
    trackers_of(trainer_args)
