"""Which arguments of TRL's configs `trainer_args` takes, and which are keys of ours.

`trainer_args` takes those of the optimizer, its schedule, memory, checkpoints, trackers and
uploads. Episodes, rows and losses are not TRL's, so its other arguments are rejected.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Final

from agentgym_env.errors import ConfigError

LOCAL: Final = frozenset(
    {
        "adam_beta1", "adam_beta2", "adam_epsilon", "ddp_broadcast_buffers", "ddp_bucket_cap_mb",
        "ddp_find_unused_parameters", "debug", "full_determinism", "gradient_checkpointing",
        "gradient_checkpointing_kwargs", "log_level", "log_level_replica", "lr_scheduler_kwargs",
        "lr_scheduler_type", "max_grad_norm", "neftune_noise_alpha", "optim", "optim_args",
        "optim_target_modules", "run_name", "save_strategy", "save_total_limit", "tf32",
        "torch_compile", "warmup_steps", "weight_decay",
    }
)  # fmt: skip
"""What may be set, and sends nothing to other machines."""
ALLOWED: Final = LOCAL | {
    "hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy",
    "project", "push_to_hub", "report_to", "trackio_bucket_id", "trackio_space_id",
    "trackio_static_space_id",
}  # fmt: skip
"""What may be set."""

_OF_ROWS: Final = frozenset({"neftune_noise_alpha"})
"""What SFT and AgentEvol alone take."""

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

_MICROBATCH: Final = ("max_tokens_per_microbatch: TOKENS",)
_STEP: Final = ("prompts_per_step", "rows_per_step", "pairs_per_step")

OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto_find_batch_size": _MICROBATCH,
    "bf16": ("compute_dtype: bfloat16",),
    "data_seed": ("seed",),
    "delta": ("algorithm: {type: NAME, loss: {delta: VALUE}}",),
    "entropy_coef": ("entropy_bonus",),
    "epsilon": ("algorithm: {type: NAME, loss: {epsilon: VALUE}}",),
    "epsilon_high": ("algorithm: {type: NAME, loss: {epsilon_high: VALUE}}",),
    "fp16": ("compute_dtype: bfloat16",),
    "generation_batch_size": ("prompts_per_step",),
    "gradient_accumulation_steps": _MICROBATCH,
    "importance_sampling_level": ("algorithm: {type: NAME, loss: {ratio: VALUE}}",),
    "loss_type": ("algorithm: {type: NAME, loss: {mean: VALUE}}",),
    "mask_truncated_completions": ("train_outcomes: [success, failure]",),
    "max_completion_length": ("max_tokens",),
    "max_length": ("max_tokens",),
    "max_steps": ("steps",),
    "num_iterations": ("epochs_per_rollout",),
    "num_train_epochs": ("epochs", "steps"),
    "padding_free": ("packing",),
    "per_device_train_batch_size": _STEP,
    "save_steps": ("save_every",),
    "scale_rewards": ("algorithm: {type: grpo, scale: true} or {type: grpo, scale: false}",),
    "shuffle_dataset": ("shuffle",),
    "steps_per_generation": ("minibatches_per_rollout",),
    "use_vllm": ("engine",),
    "vllm_importance_sampling_cap": ("importance_sampling: {type: token, cap: VALUE}",),
    "vllm_importance_sampling_correction": ("importance_sampling: token",),
    "vllm_importance_sampling_mode": ("importance_sampling: token",),
}
"""TRL's argument, unless ours has its name -> what to write instead; of several, the first whose
key the method has."""

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
}
"""What is asked for most of the others, and why it cannot be set."""


def allowed_in(method: str) -> frozenset[str]:
    """What a method takes."""
    return ALLOWED if method in ("sft", "evolve") else ALLOWED - _OF_ROWS


def own_key(name: str, keys: Collection[str]) -> str:
    """What to write instead of an argument of TRL's that one of these keys sets, or nothing."""
    texts = (name, *OURS.get(name, ()))
    return next((text for text in texts if text.partition(":")[0] in keys), "")


def hint_for_trl(name: str, keys: Collection[str]) -> str:
    """What to write instead of a key that is TRL's; empty for other names."""
    if instead := own_key(name, keys):
        return f"{name} is TRL's; write {instead}"
    if "trainer_args" in keys and name in ALLOWED:
        return f"write trainer_args: {{{name}: VALUE}}"
    return ""


def check_argument(name: str, value: Any, keys: Collection[str]) -> None:
    """Raise `ConfigError` for an argument that has no effect or a key of ours, or a wrong value.

    Knows nothing about TRL: the types of values are checked when it is loaded.
    """
    if instead := own_key(name, keys):
        key, colon, _ = instead.partition(":")
        written = instead if colon else f"{key}: VALUE"
        raise ConfigError(f"trainer_args.{name} is set by {key}; write {written} instead")
    if name in _NO_EFFECT:
        raise ConfigError(f"trainer_args.{name} {_NO_EFFECT[name]}")
    if value not in _FEW_VALUES.get(name, (value,)):
        raise ConfigError(
            f"trainer_args.{name} must be one of {', '.join(_FEW_VALUES[name])}, got {value!r}"
        )


def trackers_of(trainer_args: Mapping[str, Any]) -> list[str]:
    """The names in `report_to`; raises `ConfigError` for one that transformers does not know."""
    given = trainer_args.get("report_to")
    names = given if isinstance(given, list) else [] if given in (None, "") else [given]
    known = (*TRACKERS, *OTHER_TRACKERS)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"
            raise ConfigError(f"trainer_args.report_to has no tracker {name!r:.80}; {hint}")
    return names
