"""Which arguments of TRL's configs `trainer_args` takes, for each training method.

Every field of `GRPOConfig`, `SFTConfig` and `DPOConfig` is in one of three tables: it has its
documented effect here, or one of our own keys sets it, or it is rejected with the reason.
"""

from __future__ import annotations

import difflib
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
        "project", "push_to_hub", "report_to", "router_aux_loss_coef", "run_name", "save_strategy",
        "save_total_limit", "tf32", "torch_compile", "torch_empty_cache_steps",
        "trackio_bucket_id", "trackio_space_id", "trackio_static_space_id", "warmup_steps",
        "weight_decay",
    }
)  # fmt: skip
_ALLOWED_BY_RL: Final = frozenset(
    {
        "delta", "epsilon", "epsilon_high", "off_policy_mask_threshold", "sapo_temperature_neg",
        "sapo_temperature_pos", "top_entropy_quantile", "use_bias_correction_kl", "vespo_k_neg",
        "vespo_k_pos", "vespo_lambda_neg", "vespo_lambda_pos",
    }
)  # fmt: skip
_ALLOWED_BY_SFT: Final = frozenset(
    {"activation_offloading", "label_smoothing_factor", "loss_type", "neftune_noise_alpha"}
)
_ALLOWED_BY_DPO: Final = frozenset(
    {
        "activation_offloading", "disable_dropout", "discopop_tau", "f_alpha_divergence_coef",
        "f_divergence_type", "label_smoothing", "ld_alpha", "loss_type", "loss_weights",
        "use_weighting",
    }
)  # fmt: skip

ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "rl": _ALLOWED | _ALLOWED_BY_RL,
    "sft": _ALLOWED | _ALLOWED_BY_SFT,
    "dpo": _ALLOWED | _ALLOWED_BY_DPO,
    "evolve": _ALLOWED | _ALLOWED_BY_SFT,
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


_CLIPPED: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

_NEEDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "delta": ("loss_type", _CLIPPED),
    "epsilon": ("loss_type", _CLIPPED),
    "epsilon_high": ("loss_type", (*_CLIPPED, "cispo")),
    "sapo_temperature_neg": ("loss_type", ("sapo",)),
    "sapo_temperature_pos": ("loss_type", ("sapo",)),
    "vespo_k_neg": ("loss_type", ("vespo",)),
    "vespo_k_pos": ("loss_type", ("vespo",)),
    "vespo_lambda_neg": ("loss_type", ("vespo",)),
    "vespo_lambda_pos": ("loss_type", ("vespo",)),
    "label_smoothing_factor": ("loss_type", ("nll", "chunked_nll")),
    "label_smoothing": ("loss_type", ("robust", "exo_pair")),
    "discopop_tau": ("loss_type", ("discopop",)),
    "f_alpha_divergence_coef": ("f_divergence_type", ("alpha_divergence",)),
}
"""Arguments that have an effect only with some values of another one."""

_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "sft": {"loss_type": "nll"},
    "evolve": {"loss_type": "nll"},
    "dpo": {"loss_type": "sigmoid", "f_divergence_type": "reverse_kl"},
}
"""TRL's defaults of those. The algorithm sets RL's loss, so it is checked with that."""

SET_BY: Final[Mapping[str, Mapping[str, str]]] = {
    "rl": {**SET_BY_ALL, **SET_BY_RL},
    "sft": {**SET_BY_ALL, **SET_BY_ROWS, "shuffle_dataset": "shuffle"},
    "dpo": {**SET_BY_ALL, **SET_BY_DPO},
    "evolve": {**SET_BY_ALL, **SET_BY_ROWS},
}
"""By method, the arguments that our own keys set, or all that is to be written instead."""


def _rejected(reason: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


_REJECTED: Final[Mapping[str, str]] = {
    **_rejected(
        "cannot be changed: metrics are written at every step",
        "logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter",
        "log_on_each_node", "include_num_input_tokens_seen", "skip_memory_metrics",
    ),
    **_rejected("has no effect: a run has a progress bar of its own", "disable_tqdm"),
    **_rejected(
        "cannot be changed: the LM head is computed at trained tokens only, without Liger's "
        "kernels",
        "use_liger_kernel", "liger_kernel_config",
    ),
    **_rejected(
        "has no effect: episodes are evaluated, before and after training; see eval",
        "do_eval", "do_predict", "do_train", "eval_strategy", "eval_steps", "eval_delay",
        "eval_on_start", "eval_do_concat_batches", "eval_use_gather_object",
        "eval_accumulation_steps", "eval_packing", "per_device_eval_batch_size",
        "prediction_loss_only", "include_for_metrics", "batch_eval_metrics", "bf16_full_eval",
        "fp16_full_eval", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
    ),
    **_rejected(
        "cannot be changed: a run resumes where it was, by `agentgym train --resume RUN`, from "
        "checkpoints with all that it needs",
        "save_only_model", "save_on_each_node", "enable_jit_checkpoint", "ignore_data_skip",
        "restore_callback_states_from_checkpoint", "resume_from_checkpoint",
    ),
    **_rejected(
        "cannot be used: a run folder contains no secrets; log in with `hf auth login`",
        "hub_token",
    ),
    **_rejected(
        "cannot be used: devices and processes are chosen before TRL is; name a config file of "
        "accelerate with --accelerate, or hide GPUs with CUDA_VISIBLE_DEVICES",
        "use_cpu", "local_rank", "accelerator_config", "parallelism_config", "fsdp", "fsdp_config",
        "deepspeed", "ddp_backend", "ddp_timeout", "ddp_static_graph",
    ),
    **_rejected(
        "cannot be changed: the loss is a mean over all processes", "average_tokens_across_devices"
    ),
    **_rejected(
        "cannot be used: float16 cannot be trained; set compute_dtype to bfloat16 or float32",
        "fp16",
    ),
    **_rejected(
        "cannot be used: the model is loaded already; see model, dtype, compute_dtype and "
        "attention. Code of its own never runs",
        "model_init_kwargs", "trust_remote_code", "use_cache", "eos_token", "pad_token",
        "chat_template_path",
    ),
    **_rejected(
        "has no effect: rows are ids in memory, in the order and the micro-batches of the run",
        "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
        "dataloader_persistent_workers", "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context", "dataloader_in_order", "remove_unused_columns",
        "label_names", "length_column_name", "train_sampling_strategy", "shuffle_dataset",
        "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "truncation_mode",
        "pad_to_multiple_of", "packing_strategy", "padding_free", "completion_only_loss",
        "assistant_only_loss",
    ),
}  # fmt: skip

_REJECTED_BY_RL: Final[Mapping[str, str]] = {
    **_rejected(
        "has no effect: episodes are sampled by the engine, with temperature alone; see engine",
        "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs",
        "cache_implementation", "use_transformers_continuous_batching", "use_transformers_paged",
        "transformers_continuous_batching_config", "max_tool_calling_iterations", "vllm_mode",
        "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_structured_outputs_regex",
        "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
        "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length",
        "vllm_tensor_parallel_size", "ds3_gather_for_generation", "num_generations_eval",
    ),
    **_rejected(
        "has no effect: rewards are the environment's; scale them with wrappers",
        "reward_weights", "multi_objective_aggregation",
    ),
    **_rejected(
        "has no effect: `agentgym view` shows the episodes; see keep_tokens",
        "log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts",
        "log_completions_hub_repo",
    ),
    **_rejected(
        "cannot be used: engine and trainer would compute different policies",
        "neftune_noise_alpha", "disable_dropout", "cast_lm_head_to_fp32",
    ),
    **_rejected(
        "cannot be used: the reference of beta is the initial policy",
        "sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha",
    ),
    **_rejected(
        "cannot be used: entropy_bonus is constant",
        "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta",
        "entropy_target",
    ),
    **_rejected(
        "has no effect: RL has no labels; see entropy_bonus and beta", "label_smoothing_factor"
    ),
}  # fmt: skip

_REJECTED_BY_DPO: Final[Mapping[str, str]] = {
    **_rejected("has no effect: write label_smoothing instead", "label_smoothing_factor"),
    **_rejected(
        "cannot be used: the policy would be compared with a reference without the noise",
        "neftune_noise_alpha",
    ),
    **_rejected(
        "cannot be used: checkpoints contain no reference, so a resumed run would have another one",
        "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps",
    ),
    **_rejected(
        "cannot be used: the reference is asked with each micro-batch; with lora it needs no copy "
        "of the model",
        "precompute_ref_log_probs", "precompute_ref_batch_size",
    ),
}  # fmt: skip

REJECTED: Final[Mapping[str, Mapping[str, str]]] = {
    "rl": {**_REJECTED, **_REJECTED_BY_RL},
    "sft": _REJECTED,
    "dpo": {**_REJECTED, **_REJECTED_BY_DPO},
    "evolve": _REJECTED,
}
"""By method, what cannot be set, and why."""


def check_trainer_args(method: str, trainer_args: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an argument that is unknown, set by a key of ours, or not usable.

    Knows nothing about TRL: the types of values are checked when it is loaded.
    """
    allowed, ours, rejected = ALLOWED[method], SET_BY[method], REJECTED[method]
    known = {*allowed, *ours, *rejected}
    unknown = [name for name in trainer_args if name not in known]
    # A near miss may be explained further once it is spelled correctly; no list has such names.
    are_near = all(difflib.get_close_matches(name, known, n=1) for name in unknown)
    check_keys(" in trainer_args", unknown, known if are_near else allowed)
    for name, value in trainer_args.items():
        if name in ours:
            key, colon, _ = ours[name].partition(":")
            instead = ours[name] if colon else f"{key}: VALUE"
            raise ConfigError(f"trainer_args.{name} is set by {key}; write {instead} instead")
        if name in rejected:
            raise ConfigError(f"trainer_args.{name} {rejected[name]}")
        if value not in _FEW_VALUES.get(name, (value,)):
            raise ConfigError(
                f"trainer_args.{name} must be one of {', '.join(_FEW_VALUES[name])}, got {value!r}"
            )
    trackers_of(trainer_args)
    if method in _DEFAULTS:
        check_needs(trainer_args, _DEFAULTS[method])


def check_needs(trainer_args: Mapping[str, Any], defaults: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an argument without effect beside the others.

    `defaults` are the values of those that are not given, such as the loss of RL's algorithm.
    """
    for name in trainer_args:
        other, values = _NEEDS.get(name, ("", ()))
        found = trainer_args.get(other, defaults.get(other))
        chosen = found if isinstance(found, list) else [found]
        if other and not any(value in values for value in chosen):
            raise ConfigError(
                f"trainer_args.{name} has no effect with the {other} {found}; it belongs to "
                f"{', '.join(values)}"
            )
