"""A collection: its folder, and the episodes that its filter selects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agentgym_env.errors import ConfigError
from agentgym_env.run_lock import is_unused
from agentgym_env.run_store import BrokenLine, RunStore, run_metadata
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.collection import CollectConfig
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.data.tokenize import sampled_tokens, token_counter
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy_name import parse_policy

NAME: Final = "collected"
"""The name of the file in `trajectories/`."""

_MAY_CHANGE: Final = frozenset({"n", "samples", "servers", "keep", "output_dir"})


@dataclass(slots=True)
class FilteredEpisodes:
    """The selected episodes, and how many were left out for which reason."""

    selected: list[Trajectory] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def reasons(self) -> str:
        """Such as `12 no success, 3 repeated`; empty if nothing was left out."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())


Key = tuple[str, int, int]


def filter_episodes(trajectories: Iterable[Trajectory], keep: EpisodeFilter) -> FilteredEpisodes:
    """Select episodes; the order is kept."""
    filtered = FilteredEpisodes()
    count_tokens = token_counter(keep.tokenizer) if keep.max_episode_tokens else sampled_tokens
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    for trajectory in trajectories:
        objection = keep.objection(trajectory, count_tokens)
        if objection is None and keep.unique:
            actions = tuple(turn.action for turn in trajectory.turns)
            done = (trajectory.env, trajectory.task, actions)
            objection = "repeated" if done in seen else None
            seen.add(done)
        if objection is None:
            filtered.selected.append(trajectory)
        else:
            filtered.left_out[objection] += 1
    return filtered


def key_of(episode: EpisodeSpec | Trajectory) -> Key:
    """The key of an episode in its collection."""
    return episode.task, episode.seed, episode.sample


def check_settings(config: CollectConfig) -> None:
    """Raise `ConfigError` if the folder contains something else, or episodes of other settings.

    Starts, samples and the filter may change, since the collected episodes remain valid.
    """
    path = Path(config.output_dir)
    if is_unused(path):
        return
    earlier = collect_config_of(path)
    if earlier is None:
        raise ConfigError(f"{path} contains no collection; choose another --out")
    if not collected(RunStore.open(path))[0]:
        return
    weights = (RunStore.open(path).read_json("run.json") or {}).get("weights", {})
    for name, digest in _weights(config).items():
        # Collections of earlier versions have none.
        if weights.get(name, digest) != digest:
            raise ConfigError(
                f"{path} contains episodes of {name} before it was trained further; choose another "
                "--out"
            )
    old, new = earlier.as_dict(), config.as_dict()
    changed = [name for name in new if name not in _MAY_CHANGE and new[name] != old[name]]
    if changed:
        values = "; ".join(f"{name} was {old[name]!r} and is {new[name]!r}" for name in changed)
        raise ConfigError(
            f"{path} contains episodes with other settings: {values[:600]}. Choose another --out, "
            "or use the earlier settings"
        )


def opened(config: CollectConfig) -> RunStore:
    """The run folder of checked settings, new or existing."""
    path = Path(config.output_dir)
    facts = {**run_metadata(config.as_dict()), "weights": _weights(config)}
    if not (path / "run.json").is_file():
        return RunStore.create(path, facts)
    store = RunStore.open(path)
    store.write_json("run.json", facts)
    return store


def collect_config_of(path: Path) -> CollectConfig | None:
    """The settings of a collection; None if the folder is not one."""
    if not (path / "run.json").is_file():
        return None
    config = (RunStore.open(path).read_json("run.json") or {}).get("config")
    if not isinstance(config, dict) or config.get("method") != "collect":
        return None
    try:
        return CollectConfig(**config)
    except ConfigError as error:
        raise ConfigError(f"{path}/run.json is not the config of a collection: {error}") from error


def collected(store: RunStore) -> tuple[list[Trajectory], list[BrokenLine]]:
    """The stored episodes in the order of their starts; of repetitions, the first."""
    found, broken = store.trajectories(NAME)
    first: dict[Key, Trajectory] = {}
    for trajectory in found:
        first.setdefault(key_of(trajectory), trajectory)
    return sorted(first.values(), key=lambda t: (t.group, t.sample)), broken


def _weights(config: CollectConfig) -> dict[str, str]:
    """Policy -> the digest of its weights, of those that are models in a folder."""
    names = {name: parse_policy(name) for name in (config.model, config.mix_policy) if name}
    return {name: digest for name, policy in names.items() if (digest := policy.weights())}
