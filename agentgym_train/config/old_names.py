"""Names of settings in earlier versions, and what to write instead; until version 1.0."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

_ADAPTIVE: Final = "horizon: {type: adaptive, turns: [5, 10], %s: VALUE}"

MOVED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "async_steps", "steps_ahead", "oversample", "oversampling_ratio", "stragglers",
            "unfinished_groups", "max_staleness",
        ),
        "max_policy_age: 1",
    ),
    "resampling_ratio": "admission: {type: informative, budget: VALUE}",
    "group_size": "num_generations",
    "kl": "beta",
    "engine_correction": "importance_sampling: token",
    "engine_correction_max": "importance_sampling: {type: token, cap: VALUE}",
    "importance_sampling_band": "importance_sampling: {type: geometric, band: VALUE}",
    "importance_sampling_cap": "importance_sampling: {type: token, cap: VALUE}",
    "importance_sampling_correction": "importance_sampling",
    "tokens_per_forward": "max_tokens_per_microbatch",
    "trl": "trainer_args",
    "least_reward": "min_reward",
    "least_turns": "min_turns",
    "most_turns": "max_turns",
    "most_tokens": "max_episode_tokens",
    "policy": "model",
    "algorithm_args": "algorithm: {type: ppo, lam: 0.95}",
    "compile": "trainer_args.torch_compile",
    "engine_args": "engine: {type: NAME, FIELD: VALUE}",
    "engine_concurrency": "limits.engine_concurrency",
    "env_concurrency": "limits.env_concurrency",
    "env_sampling": "sampler: {type: contrast, envs: true}",
    "episode_timeout_s": "limits.episode_timeout_s",
    "eval_after": "eval.after",
    "eval_before": "eval.before",
    "eval_horizon": "eval.horizon",
    "eval_per_category": "eval.per_category",
    "eval_samples": "eval.samples",
    "eval_split": "eval.split",
    "eval_temperature": "eval.temperature",
    "gateway": "agent: {type: 'command:PROGRAM', port: 8100}",
    "horizon_every": "horizon: {type: stepwise, turns: [10, 20, 30], every: VALUE}",
    "horizon_patience": _ADAPTIVE % "patience",
    "horizon_schedule": "horizon: {type: VALUE, turns: [5, 10]}",
    "horizon_threshold": _ADAPTIVE % "threshold",
    "horizon_window": _ADAPTIVE % "window",
    "max_lost_rate": "limits.max_lost_rate",
    "retries": "limits.retries",
    "task_sampling": "sampler",
    "warmup_steps": "trainer_args.warmup_steps",
}  # fmt: skip
"""Key -> what to write today: its name, such as `limits.retries`, the key `retries` of the mapping
`limits`; or, with a colon, all of it."""

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
        today = MOVED.get(name, "")
        key, _, field = today.partition(":")[0].partition(".")
        if name not in valid and key in valid:
            written = f"{key}: {{{field}: VALUE}}" if field else f"{key}: VALUE"
            said.append(f"{name}: write `{today if ':' in today else written}` instead")
        elif "algorithm" in valid and name in REMOVED:
            said.append(f"leave out {name}: {REMOVED[name]}")
    return f"of an earlier version: {'; '.join(said)}" if said else ""
