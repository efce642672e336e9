"""TRL's names for what keys of ours set, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

SET_BY_RL: Final[Mapping[str, str]] = {
    "num_iterations": "epochs_per_rollout",
    "steps_per_generation": "minibatches_per_rollout",
    "generation_batch_size": "prompts_per_step",
    "per_device_train_batch_size": "prompts_per_step",
    "gradient_accumulation_steps": "max_tokens_per_microbatch: TOKENS",
    "num_generations": "num_generations",
    "max_completion_length": "max_tokens",
    "temperature": "temperature",
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "beta": "beta",
    "loss_type": "algorithm: {type: NAME, loss: {mean: VALUE}}",
    "epsilon": "algorithm: {type: NAME, loss: {epsilon: VALUE}}",
    "epsilon_high": "algorithm: {type: NAME, loss: {epsilon_high: VALUE}}",
    "delta": "algorithm: {type: NAME, loss: {delta: VALUE}}",
    "scale_rewards": "algorithm: {type: grpo, scale: true} or {type: grpo, scale: false}",
    "importance_sampling_level": "algorithm: {type: NAME, loss: {ratio: VALUE}}",
    "use_vllm": "engine",
    "entropy_coef": "entropy_bonus",
    "mask_truncated_completions": "train_outcomes: [success, failure]",
    "chat_template_kwargs": "chat_template_kwargs",
    "vllm_importance_sampling_correction": "importance_sampling: token",
    "vllm_importance_sampling_mode": "importance_sampling: token",
    "vllm_importance_sampling_cap": "importance_sampling: {type: token, cap: VALUE}",
    "vllm_importance_sampling_clip_max": "importance_sampling: {type: token, cap: VALUE}",
    "vllm_importance_sampling_clip_min": "importance_sampling: {type: geometric, band: VALUE}",
}
"""TRL's names for what our own keys of RL set, or what to write instead."""

SET_BY_ROWS: Final[Mapping[str, str]] = {
    "packing": "packing",
    "padding_free": "packing",
    "max_length": "max_tokens",
    "per_device_train_batch_size": "rows_per_step",
    "gradient_accumulation_steps": "max_tokens_per_microbatch: TOKENS",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
}
"""The same of SFT and AgentEvol."""

SET_BY_DPO: Final[Mapping[str, str]] = {
    "beta": "beta",
    "max_length": "max_tokens",
    "per_device_train_batch_size": "pairs_per_step",
    "gradient_accumulation_steps": "max_tokens_per_microbatch: TOKENS",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
}
"""The same of DPO."""

SET_BY_ALL: Final[Mapping[str, str]] = {
    "learning_rate": "learning_rate",
    "save_steps": "save_every",
    "seed": "seed",
    "data_seed": "seed",
    "output_dir": "output_dir",
    "bf16": "compute_dtype: bfloat16",
    "fp16": "compute_dtype: bfloat16",
    "torch_compile_backend": "trainer_args: {torch_compile: true}",
    "torch_compile_mode": "trainer_args: {torch_compile: true}",
    "auto_find_batch_size": "max_tokens_per_microbatch: TOKENS",
}
"""The same of every method."""

_IN_TRAINER_ARGS: Final = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "gradient_checkpointing", "lr_scheduler_kwargs"),
    *("lr_scheduler_type", "max_grad_norm", "optim", "report_to", "torch_compile"),
    *("warmup_steps", "weight_decay"),
)
"""Keys of transformers that users look for among ours."""


def hint_for_trl(name: str, valid: Sequence[str]) -> str:
    """What to write instead of a key of TRL; empty for other names."""
    rl = "minibatches_per_rollout" in valid
    own = SET_BY_RL if rl else SET_BY_DPO if "pairs_per_step" in valid else SET_BY_ROWS
    instead = {**SET_BY_ALL, **own}.get(name, "")
    if instead.partition(":")[0] in valid:
        return f"{name} is TRL's; write {instead}"
    if "trainer_args" in valid and name in _IN_TRAINER_ARGS:
        return f"write trainer_args: {{{name}: VALUE}}"
    return ""
