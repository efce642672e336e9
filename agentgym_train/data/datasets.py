"""The datasets of SFT and DPO: episodes of run folders and files, filtered and tokenized.

A collection gives what it was told to keep; any other run its episodes but those of evaluations,
whose tasks are held out; a file, whatever format it is in, all that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import BrokenLine, RunStore
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.config.base import RunConfig
from agentgym_train.config.methods import SFTConfig
from agentgym_train.config.values import EpisodeFilter
from agentgym_train.data.collect import (
    FilteredEpisodes,
    collect_config_of,
    collected,
    filter_episodes,
)
from agentgym_train.data.formats import Reading, read_episodes
from agentgym_train.data.tokenize import Replay, training_row

_HELD_OUT = "eval"

"""How the files of evaluations begin."""


def read_demonstrations(
    sources: Iterable[Path | str],
    keep: EpisodeFilter | None = None,
    *,
    pairs: bool = False,
) -> tuple[FilteredEpisodes, Reading]:
    """(what is kept, all that was read with the lines that could not be).

    For `pairs` a collection gives what failed too, and repetitions, as long as its length is right:
    a pair has two sides.
    Raises `ConfigError` where a source holds no episode at all.
    """
    read, chosen, sifted = Reading(), [], FilteredEpisodes()
    for source in (Path(name).expanduser() for name in sources):
        found = _read(source)
        if not found.trajectories:
            raise ConfigError(_nothing_in(source, found))
        read.add(found)
        first = filter_episodes(found.trajectories, _own_rule(source, pairs))
        chosen += first.kept
        sifted.left_out += first.left_out
    last = filter_episodes(chosen, keep or EpisodeFilter())
    sifted.kept = last.kept
    sifted.left_out += last.left_out
    return sifted, read


def _read(source: Path) -> Reading:
    if source.is_file():
        return read_episodes(source)
    store = RunStore.open(source)
    if collect_config_of(source) is not None:
        return Reading(*collected(store))
    reading = Reading()
    for file in sorted((source / "trajectories").glob("*.jsonl")):
        if not file.name.startswith(_HELD_OUT):
            reading.add(Reading(*store.trajectories(file.stem)))
    return reading


def _own_rule(source: Path, pairs: bool) -> EpisodeFilter:
    """What a source was told to keep."""
    config = None if source.is_file() else collect_config_of(source)
    if config is None:
        return EpisodeFilter(min_turns=0)
    if pairs:
        return replace(config.keep, success=False, min_reward=None, unique=False)
    return config.keep


def _nothing_in(source: Path, found: Reading) -> str:
    if not found.broken:
        return f"there is no episode in {source}"
    first = found.broken[0]
    return (
        f"there is no episode in {source} that can be read; line {first.line} of {first.path}: "
        f"{first.reason}"
    )


_MOST_TOLD = 5

"""Broken lines that are named one by one."""


@dataclass(frozen=True, slots=True)
class SFTDataset:
    """The rows that SFT learns from, and how they came about."""

    rows: list[dict[str, list[int]]]
    """`input_ids` and `labels`; see `replay.training_row`."""
    sifted: FilteredEpisodes
    broken: list[BrokenLine]
    too_long: int
    """Episodes with a context of more than `max_tokens`; they are left out, never cut."""
    max_tokens: int

    @classmethod
    def read(cls, config: SFTConfig, tokenizer: Any) -> SFTDataset:
        """The rows of a config's data."""
        sifted, reading = read_demonstrations(config.data, config.keep)
        return cls.of(config, tokenizer, sifted, reading.broken)

    @classmethod
    def of(
        cls, config: RunConfig, tokenizer: Any, sifted: FilteredEpisodes, broken: list[BrokenLine]
    ) -> SFTDataset:
        """The rows of chosen episodes."""
        fitting, too_long = replayed(sifted.kept, replay_of(config, tokenizer), config)
        rows = [training_row(row) for rows in fitting for row in rows if any(row.loss_mask)]
        made = cls(rows, sifted, broken, too_long, config.max_tokens)
        check_rows(rows, " ".join(made.sentences()))
        return made

    def sentences(self) -> list[str]:
        """What the user is told of the data."""
        trained = sum(label >= 0 for row in self.rows for label in row["labels"])
        reasons = f" (left out: {self.sifted.reasons()})" if self.sifted.left_out else ""
        said = [
            f"Learning from {len(self.sifted.kept)} episodes{reasons}: {len(self.rows)} rows, "
            f"{trained:,} trained tokens of {sum(len(r['input_ids']) for r in self.rows):,}."
        ]
        if self.too_long:
            said.append(
                f"{self.too_long} episodes are longer than max_tokens {self.max_tokens} and are "
                "left out."
            )
        return [*said, *told_of(self.broken)]


def check_rows(rows: Sequence[Any], told: str = "") -> None:
    """Raise `ConfigError` where there is nothing to learn from."""
    if not rows:
        raise ConfigError(
            "there is no episode to learn from; name other data, or loosen what is chosen: "
            f"success, min_reward, max_turns, max_tokens. {told}".strip()
        )


def replay_of(config: RunConfig, tokenizer: Any) -> Replay:
    """What makes rows of episodes, under the config's way of talking to the policy."""
    return Replay(tokenizer, config)


def replayed(
    episodes: Iterable[Trajectory], replay: Replay, config: RunConfig
) -> tuple[list[list[Tokens]], int]:
    """(the rows of each episode that fits, how many have a context of more than `max_tokens`)."""
    every = [replay.rows(episode) for episode in episodes]
    fitting = [
        rows
        for rows in every
        if all(len(row.prompt_ids) + len(row.completion_ids) <= config.max_tokens for row in rows)
    ]
    return fitting, len(every) - len(fitting)


def told_of(broken: list[BrokenLine]) -> list[str]:
    """What the user is told of lines that could not be read; the rest of a file is used."""
    told = [
        f"{line.path}:{line.line} can not be read and is left out: {line.reason}"
        for line in broken[:_MOST_TOLD]
    ]
    more = len(broken) - len(told)
    return [*told, f"{more} more lines can not be read."] if more else told
