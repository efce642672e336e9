"""Names of settings in earlier versions, and what to write instead; until version 1.0."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import yaml

MOVED: Final[Mapping[str, str]] = {
    "async_steps": "max_policy_age",
    "steps_ahead": "max_policy_age",
    "oversample": "max_policy_age",
    "oversampling_ratio": "max_policy_age",
    "stragglers": "max_policy_age",
    "unfinished_groups": "max_policy_age",
    "max_staleness": "max_policy_age",
    "resampling_ratio": "admission",
    "group_size": "num_generations",
    "kl": "beta",
    "engine_correction": "importance_sampling",
    "engine_correction_max": "importance_sampling.cap",
    "tokens_per_forward": "max_tokens_per_microbatch",
    "trl": "trainer_args",
    "least_reward": "min_reward",
    "least_turns": "min_turns",
    "most_turns": "max_turns",
    "most_tokens": "max_episode_tokens",
    "policy": "model",
    "algorithm_args": "algorithm",
    "compile": "trainer_args.torch_compile",
    "engine_args": "engine",
    "engine_concurrency": "limits.engine_concurrency",
    "env_concurrency": "limits.env_concurrency",
    "env_sampling": "sampler",
    "episode_timeout_s": "limits.episode_timeout_s",
    "eval_after": "eval.after",
    "eval_before": "eval.before",
    "eval_horizon": "eval.horizon",
    "eval_per_category": "eval.per_category",
    "eval_samples": "eval.samples",
    "eval_split": "eval.split",
    "eval_temperature": "eval.temperature",
    "gateway": "agent",
    "horizon_every": "horizon.every",
    "horizon_patience": "horizon.patience",
    "horizon_schedule": "horizon.type",
    "horizon_threshold": "horizon.threshold",
    "horizon_window": "horizon.window",
    "importance_sampling_band": "importance_sampling.band",
    "importance_sampling_cap": "importance_sampling.cap",
    "importance_sampling_correction": "importance_sampling",
    "max_lost_rate": "limits.max_lost_rate",
    "retries": "limits.retries",
    "task_sampling": "sampler",
    "warmup_steps": "trainer_args.warmup_steps",
}
"""Key -> its name today; `limits.retries` is the key `retries` of the mapping `limits`."""

_EXAMPLES: Final[Mapping[str, str]] = {
    "horizon": "horizon: {type: stepwise, turns: [10, 20, 30], every: 100}",
    "algorithm": "algorithm: {type: ppo, lam: 0.95}",
    "engine": "engine: {type: vllm, servers: [http://host:8000]}",
    "agent": "agent: {type: 'command:PROGRAM', port: 8100}",
    "sampler": "sampler: {type: contrast, tasks: true, envs: true}",
    "importance_sampling": "importance_sampling: {type: geometric, cap: 3, band: 1.05}",
    "admission": "admission: {type: informative, budget: 2}",
    "max_policy_age": "max_policy_age: 1",
}
"""Keys of the table whose value follows from several, and how they are written."""

REMOVED: Final[Mapping[str, str]] = {
    "normalize_per_env": (
        "advantages are computed for each environment by itself; otherwise every success in an "
        "easy environment would look better than average"
    ),
    "entropy_floor": "entropy_bonus applies at every step",
    "reset_reference_every": (
        "the reference of beta is the initial policy; to compare with a later one, start a new run "
        "from its model"
    ),
}
"""Key -> what holds now."""


def instead_of(values: Mapping[str, Any], valid: Collection[str]) -> str:
    """What to write instead of the keys of an earlier version; empty if there are none.

    `valid` are the keys of today where these are.
    """
    old = [name for name in values if name in MOVED and name not in valid]
    moved = [name for name in old if MOVED[name].partition(".")[0] in valid]
    new: dict[str, Any] = {}
    for name in moved:
        key, _, field = MOVED[name].partition(".")
        value = {field: values[name]} if field else values[name]
        both = isinstance(value, Mapping) and isinstance(new.get(key), Mapping)
        new[key] = {**new[key], **value} if both else value
    written = {key: _EXAMPLES.get(key) or _as_yaml({key: value}) for key, value in new.items()}
    said = []
    if moved:
        lines = ", ".join(f"`{line}`" for line in written.values())
        said.append(f"{', '.join(moved)}: write {lines} instead")
    if "algorithm" in valid:
        said += [f"leave out {name}: {REMOVED[name]}" for name in values if name in REMOVED]
    return f"of an earlier version: {'; '.join(said)}" if said else ""


def _as_yaml(value: Any) -> str:
    """A mapping as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1_000, sort_keys=False)
    return text.strip()[1:-1]
