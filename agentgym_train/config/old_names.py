"""Names of settings in earlier versions, and their names today; until version 1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from agentgym_env.errors import ConfigError

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
"""Keys of the table whose value follows from others, and how they are written."""

REMOVED: Final[Mapping[str, tuple[Any, str]]] = {
    "normalize_per_env": (
        True,
        "advantages are computed for each environment by itself; otherwise every success in an "
        "easy environment would look better than average",
    ),
    "entropy_floor": (None, "entropy_bonus applies at every step"),
    "reset_reference_every": (
        0,
        "the reference of beta is the initial policy; to compare with a later one, start a new run "
        "from its model",
    ),
}
"""Key -> (its default, what holds now). A stored run with the default is read without the key."""

ENGINES: Final[Mapping[str, str]] = {"vllm_server": "vllm"}
"""Types of engines, and their names today."""

_LOSS: Final = ("epsilon", "epsilon_high", "delta")
"""Settings of RL's loss that were in `trainer_args`."""

_AS_TODAY: Final[Mapping[str, tuple[Any, ...]]] = {
    "router_aux_loss_coef": (0, 0.0), "use_bias_correction_kl": (True,), "label_smoothing": (0,),
    "loss_type": ("nll", "chunked_nll", "sigmoid", ["sigmoid"]), "label_smoothing_factor": (0,),
}  # fmt: skip
"""Arguments that `trainer_args` had, and the values with which they do what happens today."""

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "fixed": (), "stepwise": ("every",), "linear": ("every",),
    "adaptive": ("every", "threshold", "patience", "window"),
}  # fmt: skip


def instead_of(values: Mapping[str, Any], valid: Sequence[str]) -> str:
    """What to write instead of the keys of an earlier version; empty if there are none.

    `valid` are the keys of today where these are.
    """
    old = [name for name in values if name in MOVED.keys() | REMOVED.keys() and name not in valid]
    if not old:
        return ""
    here = [name for name in old if MOVED.get(name, "algorithm").partition(".")[0] in valid]
    gone = [f"leave out {n}: {REMOVED[n][1]}" for n in here if n in REMOVED]
    moved = [name for name in here if name in MOVED]
    try:
        new = upgraded({name: v for name, v in values.items() if name not in REMOVED})
    except ConfigError:
        new = dict(values)
    changed = {key: v for key, v in new.items() if key not in values or values[key] != v}
    written = [f"`{key}: {_as_yaml(value)}`" for key, value in changed.items()]
    names = {MOVED[name].partition(".")[0] for name in moved} - changed.keys()
    written += [f"`{_EXAMPLES.get(name, name)}`" for name in sorted(names)]
    if written:
        gone.insert(0, f"{', '.join(moved)}: write {', '.join(written)} instead")
    return f"of an earlier version: {'; '.join(gone)}" if gone else ""


def _as_yaml(value: Any) -> str:
    """A value as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a stored run with today's names; those of today keep their meaning.

    Raises `ConfigError` for a setting that was removed, unless it had its default.
    """
    new = {key: value for key, value in values.items() if key not in MOVED.keys() | REMOVED.keys()}
    for key, (default, reason) in REMOVED.items():
        if values.get(key, default) != default:
            raise ConfigError(f"{key} was removed: {reason}")
    for key, value in values.items():
        name, _, rest = MOVED.get(key, "").partition(".")
        if name in ("eval", "limits") or (name == "trainer_args" and rest and value):
            new[name] = {**_mapping(name, new.get(name)), rest: value}
        elif name and not rest and name not in _EXAMPLES:
            new[name] = value
    _upgrade_types(new, values)
    _upgrade_loss(new)
    _upgrade_filling(new, values)
    if isinstance(new.get("envs"), list):
        new["envs"] = [upgraded(e) if isinstance(e, Mapping) else e for e in new["envs"]]
    return new


def _upgrade_types(new: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Join the type of a setting with what were keys of their own."""
    kinds = (
        ("algorithm", "algorithm_args", "grpo"), ("engine", "engine_args", "hf"),
        ("agent", "gateway", "plain"),
    )  # fmt: skip
    for key, further, default in kinds:
        fields = _mapping(further, old.get(further))
        kind = new.get(key, default if fields else None)
        if isinstance(kind, str):
            kind = ENGINES.get(kind, kind) if key == "engine" else kind
            new[key] = {"type": kind, **fields} if fields else kind
    contrast = [old.get(key) == "contrast" for key in ("task_sampling", "env_sampling")]
    if any(contrast):
        new["sampler"] = {"type": "contrast", "tasks": contrast[0], "envs": contrast[1]}
    envs = new.get("envs")
    if "horizon" in new:
        new["horizon"] = _schedule(new["horizon"], old, several=bool(envs))
    if isinstance(envs, list):
        new["envs"] = [
            {**e, "horizon": _schedule(e["horizon"], old, several=True)}
            if isinstance(e, Mapping) and e.get("horizon")
            else e
            for e in envs
        ]
    correction = old.get("importance_sampling_correction", old.get("engine_correction"))
    if correction is not None:
        cap = old.get("importance_sampling_cap", old.get("engine_correction_max", 3.0))
        own = {} if correction == "off" else {"cap": cap}
        if correction == "geometric":
            own["band"] = old.get("importance_sampling_band", 1.05)
        new["importance_sampling"] = {"type": correction, **own}


def _upgrade_loss(new: dict[str, Any]) -> None:
    """Move settings of the loss from `trainer_args` to the algorithm; `bnpo` was `grpo`."""
    arguments, loss = new.get("trainer_args"), {}
    if isinstance(arguments, Mapping):
        loss = {name: arguments[name] for name in _LOSS if name in arguments}
        new["trainer_args"] = {
            name: value
            for name, value in arguments.items()
            if name not in loss and value not in _AS_TODAY.get(name, ())
        }
    setting = new.get("algorithm", "grpo")
    if loss or setting == "bnpo":
        if isinstance(setting, str):
            setting = {"type": "grpo" if setting == "bnpo" else setting}
        if isinstance(setting, Mapping):
            new["algorithm"] = {**setting, "loss": loss} if loss else setting["type"]


def _upgrade_filling(new: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Write how a batch is filled with today's two keys."""
    if "resampling_ratio" in old:
        budget = old["resampling_ratio"]
        new["admission"] = {"type": "informative", "budget": budget} if budget else "all"
    age = old.get("async_steps", old.get("steps_ahead"))
    if old.get("oversampling_ratio", old.get("oversample")):
        carries = old.get("unfinished_groups", old.get("stragglers")) == "carry"
        age = old.get("max_staleness", 4) if carries else age or 1
    if age is not None and "max_policy_age" not in old:
        new["max_policy_age"] = age


def _schedule(turns: Any, old: Mapping[str, Any], *, several: bool) -> Any:
    """A horizon's turns with the keys of the run's schedule.

    One of `several` environments with one number had a fixed horizon under any of our schedules.
    """
    stages = [turns] if isinstance(turns, int) else turns
    if not isinstance(stages, list) or not stages or not any(k.startswith("horizon_") for k in old):
        return turns
    kind = old.get("horizon_schedule")
    if len(stages) == 1 and (kind is None or (several and str(kind) in _FIELDS)):
        return stages
    kind = kind or "stepwise"
    fields = _FIELDS.get(kind, ("every",)) if isinstance(kind, str) else ()
    own = {f: old[f"horizon_{f}"] for f in fields if f"horizon_{f}" in old}
    return {"type": kind, "turns": stages, **own}


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"{name} must be a mapping, got {value!r:.80}")
    return value or {}
