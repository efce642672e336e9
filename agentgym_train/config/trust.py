"""Which settings of a training run a run folder of somebody else may set without `--trust`.

The fields listed here are harmless whatever their value. Every other field of the configs, and of
the settings within them, needs trust where its value is neither the default nor one that is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

from agentgym_env.trust import KEYS, leaves, names_in
from agentgym_train.config.engines import ENGINES
from agentgym_train.config.read import CONFIGS, DEFAULT
from agentgym_train.rollout.contrast import SAMPLERS
from agentgym_train.rollout.gates import GATES
from agentgym_train.rollout.horizon import SCHEDULES

CONFIG: Final = frozenset(
    {
        # A model's own code never runs, and a resumed run writes to the folder that is named.
        "method", "model", "output_dir", "data",
        "action_format", "beta", "chat_template_kwargs", "compute_dtype",
        "concurrency", "dtype", "entropy_bonus", "epochs", "epochs_per_rollout", "eval",
        "from_base", "importance_sampling", "instruction", "iterations", "keep_reasoning",
        "keep_tokens", "learning_rate", "limits", "max_policy_age", "max_tokens",
        "max_tokens_per_microbatch", "max_turns", "merge", "min_reward", "min_turns",
        "minibatches_per_rollout", "num_generations", "overlong_tokens",
        "packing", "pairs_per_start", "pairs_per_step", "per_task",
        "prompts_per_step", "reward_gap", "rows_per_step",
        "samples", "save_every", "seed", "shorter", "shuffle", "split", "steps", "success",
        "tasks", "temperature", "train_outcomes", "turn_max_tokens",
        "unique", "weight",
    }
)  # fmt: skip
"""The configs of the methods, and the entries of `envs`."""

NESTED: Final[Mapping[str, frozenset[str]]] = {
    "engine": frozenset(
        {
            "max_batch", "settle_ties", "cuda_graphs", "dtype", "tensor_parallel_size",
            "gpu_memory_utilization", "cpu_cache_gb", "max_model_len", "max_num_seqs",
            "block_size", "attention_backend", "enforce_eager", "sleep_level", "transport",
            "adapter_updates", "request_timeout_s", "wait_s",
        }
    ),
    "trainer_args": frozenset(
        {
            "adam_beta1", "adam_beta2", "adam_epsilon", "ddp_broadcast_buffers",
            "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "debug", "full_determinism",
            "gradient_checkpointing", "gradient_checkpointing_kwargs", "log_level",
            "log_level_replica", "lr_scheduler_kwargs", "lr_scheduler_type", "max_grad_norm",
            "neftune_noise_alpha", "optim", "optim_args", "optim_target_modules", "run_name",
            "save_strategy", "save_total_limit", "tf32", "torch_compile", "warmup_steps",
            "weight_decay",
        }
    ),
    "lora": frozenset(
        {
            "alora_invocation_tokens", "alpha_pattern", "bias", "ensure_weight_tying",
            "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
            "layer_replication", "layers_pattern", "layers_to_transform", "lora_alpha",
            "lora_bias", "lora_dropout", "modules_to_save", "qalora_group_size", "r",
            "rank_pattern", "target_modules", "target_parameters", "task_type",
            "trainable_token_indices", "use_dora", "use_qalora", "use_rslora",
        }
    ),
}  # fmt: skip
"""The settings within. `trainer_args` has what TRL's configs take here, `lora` what PEFT's take."""

_KNOWN: Final[Mapping[str, re.Pattern[str]]] = {
    "admission": re.compile("|".join(GATES)),
    "agent": re.compile(r"plain|react|act_only|plan_then_act|reflect|(window|summary)(:\d+)?"),
    "algorithm": re.compile(r"\w+"),
    "attention": re.compile(r"eager|sdpa|flex_attention|flash_attention_[234]"),
    "engine": re.compile("|".join(ENGINES)),
    "horizon": re.compile("|".join(SCHEDULES)),
    "sampler": re.compile("|".join(SAMPLERS)),
    "trainer_args.report_to": re.compile("none|tensorboard"),
}
"""Texts that stand for a part of this package, or for nothing outside of it; of a setting with a
type, the types."""
_OFF: Final = ("false", "none", "", "0", "no", "off")
"""Values of a switch that libraries read as off; some take words."""


def names_in_run(values: Mapping[str, Any], keys: Collection[str] | None = None) -> dict[str, str]:
    """What a stored config sets and only you may set, by place, such as `lora.revision`.

    `keys` are the keys that are looked at, by default all. Keys that no config has are left out:
    making a config of the values rejects them.
    """
    kind = CONFIGS.get(str(values.get("method", DEFAULT)), CONFIGS[DEFAULT])
    known = {f.name for f in fields(kind)}
    found: dict[str, str] = {}
    for key, value in values.items():
        if key in CONFIG or key not in known or (keys is not None and key not in keys):
            continue
        found |= _names_of(key, value, values, kind)
    return found


def names_in_envs(envs: Any, keys: Collection[str] = KEYS) -> dict[str, str]:
    """The same of these keys of the entries of `envs`, by place, such as `envs[0].env`."""
    found: dict[str, str] = {}
    for number, world in enumerate(envs if isinstance(envs, list | tuple) else ()):
        if isinstance(world, Mapping):
            found |= names_in(world, f"envs[{number}].", keys)
            horizon = world.get("horizon")
            if (
                isinstance(horizon, Mapping)
                and "type" in horizon
                and not is_known("horizon", horizon)
            ):
                found |= leaves(f"envs[{number}].horizon.type", horizon["type"])
    return found


def trust_option(settings: Mapping[str, Any]) -> str:
    """The option that a command needs to use these settings from a run folder, or nothing."""
    return " --trust" if names_in_run(settings) else ""


def resume_command(run: Path, settings: Mapping[str, Any]) -> str:
    """The command that resumes a run."""
    return f"agentgym train --resume {run}{trust_option(settings)}"


def is_known(place: str, value: Any) -> bool:
    """Whether a text at a place, or the type of a setting, stands for a part of this package."""
    if isinstance(value, Mapping):
        value = value.get("type")  # without one, a mapping may name a program
    return isinstance(value, str) and _KNOWN[place].fullmatch(value) is not None


def _names_of(key: str, value: Any, values: Mapping[str, Any], kind: type) -> dict[str, str]:
    """The same of one key, which is not harmless."""
    if value is None or value == _defaults(kind).get(key, MISSING):
        return {}
    if key in ("env", "env_kwargs", "servers", "wrappers"):
        return names_in(values, keys=[key])
    if key == "envs":
        return names_in_envs(value)
    if key == "horizon" and (not isinstance(value, Mapping) or "type" not in value):
        return {}
    if key in _KNOWN and is_known(key, value):
        further = key in NESTED and isinstance(value, Mapping)
        return _names_within(key, _without_type(value)) if further else {}
    if key in ("lora", "trainer_args") and isinstance(value, Mapping):
        return _names_within(key, value)
    if key in _KNOWN and key != "agent" and isinstance(value, Mapping):
        return leaves(f"{key}.type", value.get("type", ""))  # its arguments are that code's
    return leaves(key, value)


def _without_type(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if name != "type"}


def _names_within(group: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The same of settings within settings."""
    defaults = _nested_defaults(group)
    found: dict[str, str] = {}
    for key, value in values.items():
        if key in NESTED[group] or value == defaults.get(key, MISSING):
            continue
        place = f"{group}.{key}"
        for at, leaf in leaves(place, value).items():
            # The libraries' switches, but not ours: a host named "no" is a host.
            is_off = group in ("trainer_args", "lora") and leaf.lower() in _OFF
            if not is_off and not (place in _KNOWN and is_known(place, leaf)):
                found[at] = leaf
    return found


def _nested_defaults(group: str) -> dict[str, Any]:
    kinds = ENGINES.values() if group == "engine" else ()
    return {k: v for kind in kinds for k, v in _defaults(kind).items()}


def _defaults(kind: type) -> dict[str, Any]:
    """The defaults of a dataclass, by field."""
    found: dict[str, Any] = {}
    for f in fields(kind):
        if f.default_factory is not MISSING:
            found[f.name] = f.default_factory()
        elif f.default is not MISSING:
            found[f.name] = f.default
    return found
