"""Names of settings in earlier versions, and what to write instead; until version 1.0."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

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


def instead_of(names: Iterable[str], valid: Collection[str]) -> str:
    """What to write instead of the keys of an earlier version; empty if there are none.

    `valid` are the keys of today where these are.
    """
    said = []
    for name in names:
        key, _, field = MOVED.get(name, "").partition(".")
        if name not in valid and key in valid:
            written = f"{key}: {{{field}: VALUE}}" if field else f"{key}: VALUE"
            said.append(f"{name}: write `{_EXAMPLES.get(key, written)}` instead")
        elif "algorithm" in valid and name in REMOVED:
            said.append(f"leave out {name}: {REMOVED[name]}")
    return f"of an earlier version: {'; '.join(said)}" if said else ""
