"""Parsing of values and keys, and small settings: episode filters, pairs, limits, outcomes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
import yaml

from agentgym_env.errors import TEACHES, ConfigError, Outcome, teaches
from agentgym_env.trajectory import Trajectory

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, by the shell's convention."""

ANOTHER_FOLDER: Final = "output_dir=FOLDER"
"""How to choose another run folder, in a command and in a config in Python."""

RENAMED: Final[Mapping[str, str]] = {
    "steps_ahead": "async_steps",
    "oversample": "oversampling_ratio",
    "stragglers": "unfinished_groups",
    "group_size": "num_generations",
    "kl": "beta",
    "engine_correction": "importance_sampling_correction",
    "engine_correction_max": "importance_sampling_cap",
    "tokens_per_forward": "max_tokens_per_microbatch",
    "trl": "trainer_args",
    "least_reward": "min_reward",
    "least_turns": "min_turns",
    "most_turns": "max_turns",
    "most_tokens": "max_episode_tokens",
    "policy": "model",
}

"""Config keys of earlier versions, and their current names."""


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
    "loss_type": "algorithm",
    "scale_rewards": "algorithm_args: {scale: true} or {scale: false}",
    "importance_sampling_level": "algorithm",
    "use_vllm": "engine",
    "entropy_coef": "entropy_bonus",
    "use_adaptive_entropy": "entropy_floor",
    "sync_ref_model": "reset_reference_every",
    "ref_model_sync_steps": "reset_reference_every",
    "ref_model_mixup_alpha": "reset_reference_every",
    "entropy_coef_min": "entropy_floor",
    "entropy_coef_max": "entropy_floor",
    "entropy_coef_delta": "entropy_floor",
    "entropy_target": "entropy_floor",
    "mask_truncated_completions": "train_outcomes: [success, failure]",
    "chat_template_kwargs": "chat_template_kwargs",
    "vllm_importance_sampling_correction": "importance_sampling_correction",
    "vllm_importance_sampling_mode": "importance_sampling_correction",
    "vllm_importance_sampling_cap": "importance_sampling_cap",
    "vllm_importance_sampling_clip_max": "importance_sampling_cap",
    "vllm_importance_sampling_clip_min": "importance_sampling_band",
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
    "warmup_steps": "warmup_steps",
    "save_steps": "save_every",
    "seed": "seed",
    "data_seed": "seed",
    "output_dir": "output_dir",
    "bf16": "compute_dtype: bfloat16",
    "torch_compile": "compile: true",
    "torch_compile_backend": "compile: true",
    "torch_compile_mode": "compile: true",
    "auto_find_batch_size": "max_tokens_per_microbatch: TOKENS",
}
"""The same of every method."""

_IN_TRAINER_ARGS: Final = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "gradient_checkpointing", "lr_scheduler_kwargs"),
    *("lr_scheduler_type", "max_grad_norm", "optim", "report_to", "weight_decay"),
)
_IN_GRPO_ARGS: Final = ("delta", "epsilon", "epsilon_high", "top_entropy_quantile")
"""Keys of transformers and TRL that users look for among ours."""

STARTER: Final = "starter:"

_PACKAGE: Final = Path(__file__).parents[1]

_STARTERS: Final = (
    (_PACKAGE / "starters",)
    if (_PACKAGE / "starters").is_dir()
    else (_PACKAGE.parent / "examples" / "train", _PACKAGE.parent / "examples")
)
"""Where the configs and policies that come with the package are: in a wheel, or in a clone."""


def local_path(name: str | Path) -> Path:
    """The path that a name refers to; `starter:NAME` is a file or folder of the package.

    Raises `ConfigError` for an unknown starter and where `user_path` does.
    """
    text = str(name)
    if not text.startswith(STARTER):
        return user_path(text)
    wanted = text.removeprefix(STARTER)
    if wanted and ".." not in Path(wanted).parts and not Path(wanted).is_absolute():
        for folder in _STARTERS:
            if checked_path(folder / wanted).exists():
                return folder / wanted
    known = [name for name in starters() if not name.startswith(f"{STARTER}accelerate/")]
    close = difflib.get_close_matches(text[:200], known, n=3, cutoff=0.6)
    shown = text[:200] if wanted else f"{STARTER} without a name"
    raise ConfigError(f"there is no {shown}; choose from {', '.join(close or known)}")


def user_path(name: str | Path) -> Path:
    """The path with `~` replaced; raises `ConfigError` for an unknown user, or a long path."""
    try:
        return checked_path(Path(name).expanduser())
    except RuntimeError as error:
        user = Path(name).parts[0]
        raise ConfigError(
            f"{str(name)[:200]}: no home folder is known for {user[:200]}; write the full path"
        ) from error


def checked_path(path: Path) -> Path:
    """The path; raises `ConfigError` if the system rejects it, such as one that is too long."""
    try:
        path.exists()
    except OSError as error:
        shown = f"{str(path)[:200]}..." if len(str(path)) > 200 else path
        raise ConfigError(f"the path {shown} cannot be used: {error.strerror}") from error
    return path


def starters() -> list[str]:
    """The names of all configs and policies that come with the package."""
    found = {
        f"{STARTER}{path.relative_to(folder).as_posix()}"
        for folder, patterns in zip(
            _STARTERS, (("*/*.yaml", "*/warm_policy"), ("accelerate/*.yaml",)), strict=False
        )
        for pattern in patterns
        for path in folder.glob(pattern)
    }
    return sorted(found)


def read_yaml(text: str) -> Any:
    """Parse YAML 1.2, where 1e-6 is a number and `off` is text; PyYAML alone differs in both."""
    return yaml.load(text, Loader=_Loader)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value`, `--key=value` and `--key value`; values are parsed as YAML.

    If a key is repeated, the last value wins. A key may be a path: `trainer_args.epsilon`.
    """
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        dashed = word.startswith("--")
        key, equals, value = word.removeprefix("--").partition("=")
        if not key or not (dashed or equals):
            raise ConfigError(f"{word!r} is not a setting; write key=value or --key value")
        if not equals:
            if not left:
                raise ConfigError(f"--{key} has no value; write --{key} VALUE")
            value = left.pop(0)
        first, dot, rest = key.partition(".")
        path = first.replace("-", "_") + dot + rest
        values.pop(path, None)
        try:
            # In YAML, text that ends with a colon is a mapping.
            values[path] = value if value.startswith(STARTER) else read_yaml(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key} is not valid YAML: {value!r}") from error
    return values


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the overrides applied; `trainer_args.epsilon` is a key of `trainer_args`."""
    laid = dict(values)
    for path, value in overrides.items():
        first, dot, rest = path.partition(".")
        if not dot:
            laid[first] = value
            continue
        below = laid.get(first)
        if below is not None and not isinstance(below, Mapping):
            raise ConfigError(f"{first} is {below!r} and has no key {rest}; write {first}=VALUE")
        laid[first] = merge(below or {}, {rest: value})
    return laid


def check_keys(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` for unknown keys, with a suggestion.

    `what` is the location of the keys, such as " in trainer_args"; empty for the config itself.
    """
    valid = sorted(known)
    unknown = sorted(set(names) - set(valid))
    if not unknown:
        return
    renamed = {name: new for name in unknown if (new := RENAMED.get(name)) in valid}
    if renamed:
        raise ConfigError("; ".join(f"{old} was renamed to {new}" for old, new in renamed.items()))
    hints = [hint for name in unknown if (hint := _hint_for_trl(name, valid))]
    if hints:
        raise ConfigError(f"unknown key {', '.join(unknown)}{what}: {'; '.join(hints)}")
    near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, valid, n=1))]
    hint = f"did you mean {' and '.join(near)}?" if len(near) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise ConfigError(
        f"unknown {keys} {', '.join(unknown)}{what}; "
        + (hint or (f"valid keys: {', '.join(valid)}" if valid else "no keys are allowed here"))
    )


def _hint_for_trl(name: str, valid: Sequence[str]) -> str:
    """What to write instead of a key of TRL; empty for other names."""
    rl = "minibatches_per_rollout" in valid
    own = SET_BY_RL if rl else SET_BY_DPO if "pairs_per_step" in valid else SET_BY_ROWS
    instead = {**SET_BY_ALL, **own}.get(name, "")
    if instead.partition(":")[0] in valid:
        return f"{name} is TRL's; write {instead}"
    if "trainer_args" in valid and (name in _IN_TRAINER_ARGS or (rl and name in _IN_GRPO_ARGS)):
        return f"write trainer_args: {{{name}: VALUE}}"
    return ""


MINIMUM: Final[Mapping[str, float]] = dict.fromkeys(
    (
        "turn_max_tokens", "max_tokens", "concurrency", "save_every", "eval_samples",
        "SFTConfig.eval_horizon", "DPOConfig.eval_horizon", "AgentEvolConfig.horizon",
        "CollectConfig.horizon", "horizon_every", "horizon_patience", "horizon_window",
        "max_staleness", "importance_sampling_cap", "importance_sampling_band",
        "prompts_per_step", "rows_per_step", "minibatches_per_rollout", "epochs_per_rollout",
        "pairs_per_step", "RLConfig.steps", "iterations", "samples", "max_turns",
        "max_episode_tokens", "most", "max_batch", "tensor_parallel_size", "cpu_cache_gb",
        "max_model_len", "max_num_seqs", "block_size", "nccl_port",
    ),
    1,
) | {"num_generations": 2, "min_reward": -inf, "CollectConfig.n": 1,
     "RLWorld.eval_samples": 0}  # fmt: skip
"""Minimum of numeric fields, by `field` or `Class.field`; 0 for the others."""

ABOVE_ZERO: Final = frozenset(
    {
        "epochs", "weight", "DPOConfig.beta", "reward_gap", "horizon_threshold",
        "gpu_memory_utilization", "request_timeout_s", "value_clip", "critic_learning_rate",
    }
)  # fmt: skip
"""Numeric fields that are above 0."""

MAXIMUM: Final[Mapping[str, float]] = {
    "async_steps": 1,
    "max_lost_rate": 1,
    "horizon_threshold": 1,
    "gpu_memory_utilization": 1,
    "nccl_port": 65535,
    "gamma": 1,
    "seed": 2**32 - 1,
    "lam": 1,
}


def check_arguments(where: str, values: Mapping[str, Any], kind: type) -> None:
    """Raise `ConfigError` for a key that a library lacks, or for a plain value of a wrong type.

    Mappings, lists and enumerations are left to the library.
    """
    hints = get_type_hints(kind)
    check_keys(f" in {where}", values, (f.name for f in fields(kind)))
    plain = {int, float, bool, str, type(None)}
    for name, value in values.items():
        if set(get_args(hints[name]) or (hints[name],)) <= plain:
            try:
                msgspec.convert(value, hints[name])
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where}.{name}: {error}, got {value!r}") from error


def check_types(config: Any) -> None:
    """Raise `ConfigError` for a field of a dataclass whose value has another type than declared.

    A path is accepted for text.
    """
    hints = get_type_hints(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Path):
            value = str(value)
            object.__setattr__(config, f.name, value)
        try:
            msgspec.convert(msgspec.to_builtins(value), hints[f.name])
        except (msgspec.ValidationError, TypeError) as error:
            raise ConfigError(f"{f.name}: {error}") from error


def check_numbers(config: Any) -> None:
    """Raise `ConfigError` for a numeric field of a dataclass that is invalid."""
    for f in fields(config):
        kind, _, optional = str(f.type).partition(" | ")
        value = getattr(config, f.name)
        if kind not in ("int", "float") or (value is None and optional):
            continue
        name = f"{type(config).__name__}.{f.name}"
        if name not in MINIMUM and name not in ABOVE_ZERO:
            name = f.name
        check_number(
            f.name,
            value,
            whole=kind == "int",
            minimum=MINIMUM.get(name, 0),
            above=name in ABOVE_ZERO,
            maximum=MAXIMUM.get(name, inf),
        )


def check_number(
    name: str,
    value: Any,
    *,
    whole: bool = False,
    minimum: float = 0,
    above: bool = False,
    maximum: float = inf,
) -> None:
    """Raise `ConfigError` unless `value` is a finite number within the bounds."""
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{name} is {kind}, got {value!r}")
    if not isfinite(value):
        raise ConfigError(f"{name} is a finite number, got {value}")
    if above and value <= minimum:
        raise ConfigError(f"{name} is above {minimum:g}, got {value:g}")
    if value < minimum:
        raise ConfigError(f"{name} is at least {minimum:g}, got {value}")
    if value > maximum:
        raise ConfigError(f"{name} is at most {maximum}, got {value}")


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:bool"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    list("tTfF"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)

TRUNCATED: Final[frozenset[str]] = frozenset({"horizon", "world_limit", "token_budget"})

"""Outcomes of episodes that were truncated, not terminated by the environment."""


def trained_outcomes(names: Iterable[str]) -> frozenset[str]:
    """The outcomes whose episodes are in the loss and in their group's baseline.

    Without an outcome such as `horizon`, its episodes are excluded from both. Outcomes of lost
    episodes are not allowed, since they contain no information about the policy.
    """
    chosen = frozenset(names)
    unknown = sorted(chosen - set(get_args(Outcome)))
    if unknown:
        raise ConfigError(
            f"unknown outcome {', '.join(unknown)}; choose from {', '.join(get_args(Outcome))}"
        )
    lost = sorted(chosen - TEACHES)
    if lost:
        raise ConfigError(
            f"{', '.join(lost)} cannot be trained on: the episode is lost, its reward unknown. "
            f"Choose from {', '.join(o for o in get_args(Outcome) if o in TEACHES)}"
        )
    if not chosen:
        raise ConfigError("no outcome to train on; name at least one, such as success")
    return chosen


@dataclass(frozen=True, slots=True)
class PairRules:
    """When one episode is preferred to another. A success is always preferred to a failure."""

    shorter: bool = False
    """Of two successes, prefer the one with fewer turns."""
    reward_gap: float | None = None
    """Prefer the episode whose reward is higher by at least this, if both are successes or both
    are not. It takes precedence over `shorter`. None ignores rewards."""
    most: int | None = 4
    """Maximum pairs per start, from as many different episodes as possible; None for all."""

    def __post_init__(self) -> None:
        check_numbers(self)

    def prefers(self, one: Trajectory, other: Trajectory) -> bool:
        """Whether `one` is preferred to `other`; both have the same start."""
        if one.success != other.success:
            return one.success
        if self.reward_gap is not None:
            gap = one.reward - other.reward
            if abs(gap) >= self.reward_gap:
                return gap > 0
        return self.shorter and one.success and len(one.turns) < len(other.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Which episodes to keep. The defaults keep all that are not lost."""

    success: bool = False
    """Keep only successes."""
    min_reward: float | None = None
    """Keep only episodes with at least this reward."""
    min_turns: int = 1
    max_turns: int | None = None
    max_episode_tokens: int | None = None
    """Maximum tokens of an episode's longest context, including prompt and observations."""
    tokenizer: str | None = None
    """Folder or hub id of the model whose tokenizer counts. None counts the stored tokens, which
    only episodes of a local model have."""
    unique: bool = False
    """Keep only the first episode of those with the same task and actions."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.max_turns is not None and self.max_turns < self.min_turns:
            raise ConfigError(
                f"max_turns {self.max_turns} is below min_turns {self.min_turns}: no episode "
                "could be kept"
            )

    def objection(self, trajectory: Trajectory, count_tokens: CountTokens) -> str | None:
        """The reason to drop an episode, apart from `unique`; None if it is kept."""
        turns = len(trajectory.turns)
        if not teaches(trajectory.outcome):
            return "lost"
        if self.success and not trajectory.success:
            return "no success"
        if self.min_reward is not None and trajectory.reward < self.min_reward:
            return f"reward below {self.min_reward:g}"
        if turns < self.min_turns:
            return f"under {self.min_turns} turns"
        if self.max_turns is not None and turns > self.max_turns:
            return f"over {self.max_turns} turns"
        if (
            self.max_episode_tokens is not None
            and count_tokens(trajectory) > self.max_episode_tokens
        ):
            return f"over {self.max_episode_tokens} tokens"
        return None


CountTokens = Callable[[Trajectory], int]


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of concurrency, time and retries. 0 is no limit."""

    engine_concurrency: int = 0
    """Maximum concurrent generations."""
    env_concurrency: int = 0
    """Maximum concurrent calls to environments."""
    episode_timeout_s: float = 0.0
    """Maximum duration of an episode with all its retries, not counting the wait for a slot."""
    retries: int = 2
    """Maximum retries of an episode whose environment or engine was lost."""

    def __post_init__(self) -> None:
        check_numbers(self)
