"""Small settings with rules of their own: episode filters, pairs, rollout limits and outcomes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

import yaml

from agentgym_env.errors import TEACHES, ConfigError, Outcome, teaches
from agentgym_env.trajectory import Trajectory

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

"""Config keys of earlier versions, and their names today."""


def read_yaml(text: str) -> Any:
    """A YAML text in which 1e-6 is a number, as in YAML 1.2; PyYAML alone reads it as a text."""
    return yaml.load(text, Loader=_Loader)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`key=value`, `--key=value` and `--key value` words, each value read as YAML.

    The later of two words of one key wins. A key may be a path: `trainer_args.epsilon`.
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
            values[path] = read_yaml(value)
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
    """Raise `ConfigError` for an unknown key, with the key that was probably meant.

    `what` says where the keys are, such as " in trainer_args"; it is empty for the config itself.
    """
    valid = sorted(known)
    unknown = sorted(set(names) - set(valid))
    if not unknown:
        return
    renamed = {name: new for name in unknown if (new := RENAMED.get(name)) in valid}
    if renamed:
        raise ConfigError("; ".join(f"{old} was renamed to {new}" for old, new in renamed.items()))
    near = [close[0] for name in unknown if (close := difflib.get_close_matches(name, valid, n=1))]
    hint = f"did you mean {' and '.join(near)}?" if len(near) == len(unknown) else ""
    keys = "key" if len(unknown) == 1 else "keys"
    raise ConfigError(
        f"unknown {keys} {', '.join(unknown)}{what}; "
        + (hint or (f"valid keys: {', '.join(valid)}" if valid else "no keys are allowed here"))
    )


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)

TRUNCATED: Final[frozenset[str]] = frozenset({"horizon", "token_budget"})

"""The endings that cut off an episode which the world would have let go on."""


def trained_outcomes(names: Iterable[str]) -> frozenset[str]:
    """The outcomes whose episodes are in the loss and in their group's baseline.

    Leaving one out, such as `horizon`, drops its episodes from both, as if they had not been
    played. A lost episode can not be chosen: it tells nothing about the policy.
    """
    chosen = frozenset(names)
    unknown = sorted(chosen - set(get_args(Outcome)))
    if unknown:
        raise ConfigError(
            f"no outcome {', '.join(unknown)}; choose from {', '.join(get_args(Outcome))}"
        )
    lost = sorted(chosen - TEACHES)
    if lost:
        raise ConfigError(
            f"{', '.join(lost)} can not train: the episode was lost and its reward is unknown. "
            f"Choose from {', '.join(o for o in get_args(Outcome) if o in TEACHES)}"
        )
    if not chosen:
        raise ConfigError("no outcome trains; name at least one, such as success and failure")
    return chosen


@dataclass(frozen=True, slots=True)
class PairRules:
    """When one episode is preferred to another. A success always is to what is none."""

    shorter: bool = False
    """Of two successes, prefer the one with fewer turns."""
    reward_gap: float | None = None
    """Of two that are no successes, prefer the one whose reward is higher by at least this; of
    two successes as well, before their turns are counted. None leaves rewards aside."""
    most: int | None = 4
    """Most pairs of one start, made of as many different episodes as there are; None for all."""

    def __post_init__(self) -> None:
        if self.reward_gap is not None and not self.reward_gap > 0:
            raise ConfigError(f"reward_gap is above 0, got {self.reward_gap:g}; leave it out for 0")
        if self.most is not None and self.most < 1:
            raise ConfigError(f"most pairs of a start is at least 1, got {self.most}")

    def prefers(self, one: Trajectory, other: Trajectory) -> bool:
        """Whether `one` is the better of two episodes that began alike."""
        if one.success != other.success:
            return one.success
        if self.reward_gap is not None:
            gap = one.reward - other.reward
            if abs(gap) >= self.reward_gap:
                return gap > 0
        return self.shorter and one.success and len(one.turns) < len(other.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """What an episode has to be. The defaults take everything that may teach."""

    success: bool = False
    """Only those that solved their task."""
    min_reward: float | None = None
    """Only those with at least this reward."""
    min_turns: int = 1
    max_turns: int | None = None
    max_episode_tokens: int | None = None
    """Of the whole episode, prompt and observations included; of several contexts the longest."""
    tokenizer: str | None = None
    """Folder or hub id of the model whose tokenizer counts; None counts what was sampled, which
    only a model's own episodes have."""
    unique: bool = False
    """Of those with the same task and the same actions only the first."""

    def __post_init__(self) -> None:
        if self.min_turns < 0:
            raise ConfigError(f"min_turns is at least 0, got {self.min_turns}")
        for name, value in (
            ("max_turns", self.max_turns),
            ("max_episode_tokens", self.max_episode_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, got {value}")
        if self.max_turns is not None and self.max_turns < self.min_turns:
            raise ConfigError(
                f"max_turns {self.max_turns} is below min_turns {self.min_turns}: nothing "
                "could be kept"
            )

    def objection(self, trajectory: Trajectory, count_tokens: CountTokens) -> str | None:
        """Why an episode is left out, whatever other episodes there are; None if it is kept."""
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
    """What episodes may use. 0 stands for no limit."""

    engine_concurrency: int = 0
    """Most turns that are being generated at once."""
    env_concurrency: int = 0
    """Most calls to environments that are under way at once."""
    episode_timeout_s: float = 0.0
    """Longest an episode may take, from its slot on and with all its attempts."""
    retries: int = 2
    """Further attempts at an episode whose world or engine was lost."""
