"""The datasets of SFT and DPO: episodes of run folders and files, filtered and tokenized.

A collection gives the episodes that its filter selects; any other run its episodes except those of
evaluations, whose tasks are held out; a file, in any of our formats, all its episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import BrokenLine, RunStore, readable_files
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.files import user_path
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.data.collect import (
    FilteredEpisodes,
    collect_config_of,
    collected,
    filter_episodes,
)
from agentgym_train.data.formats import Reading, describe_broken, read_episodes
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row

_HELD_OUT = "eval"
"""The prefix of files with the episodes of evaluations."""


def read_demonstrations(
    sources: Iterable[Path | str],
    keep: EpisodeFilter | None = None,
    *,
    pairs: bool = False,
) -> tuple[FilteredEpisodes, Reading]:
    """(the selected episodes, everything that was read, with the broken lines).

    For `pairs`, a collection also gives failures and repetitions of the right length, since a pair
    has two sides. Raises `ConfigError` if a source contains no episode.
    """
    read, chosen, filtered = Reading(), [], FilteredEpisodes()
    for source in map(user_path, sources):
        found, own = _read(source)
        if not found.trajectories:
            raise ConfigError(_nothing_in(source, found))
        read.add(found)
        if pairs:
            own = replace(own, success=False, min_reward=None, unique=False)
        first = filter_episodes(found.trajectories, own)
        chosen += first.selected
        filtered.left_out += first.left_out
    last = filter_episodes(chosen, keep or EpisodeFilter())
    filtered.selected = last.selected
    filtered.left_out += last.left_out
    return filtered, read


def _read(source: Path) -> tuple[Reading, EpisodeFilter]:
    """(what a source contains, the filter that it was collected with)."""
    if source.is_file():
        return read_episodes(source), EpisodeFilter(min_turns=0)
    store = RunStore.open(source)
    collection = collect_config_of(source)
    if collection is not None:
        return Reading(*collected(store)), collection.keep
    files, ignored = readable_files(source, "trajectories")
    reading = Reading(
        broken=[BrokenLine(source / "trajectories", 0, message) for message in ignored]
    )
    for file in files:
        if not file.name.startswith(_HELD_OUT):
            reading.add(Reading(*store.trajectories(file.stem)))
    return reading, EpisodeFilter(min_turns=0)


def _nothing_in(source: Path, found: Reading) -> str:
    if not found.broken:
        evaluations = sorted((source / "trajectories").glob("eval_*.jsonl"))
        hint = f"; name one of its evaluations, such as {evaluations[0]}" if evaluations else ""
        return f"there is no episode in {source}{hint}"
    first = found.broken[0]
    return f"there is no readable episode in {source}; {first.place}: {first.reason}"


@dataclass(frozen=True, slots=True)
class SFTDataset:
    """The rows of SFT, and where they come from."""

    rows: list[dict[str, list[int]]]
    """`input_ids` and `labels`; see `tokenize.training_row`."""
    filtered: FilteredEpisodes
    """Which episodes they are of."""
    broken: list[BrokenLine]
    too_long: int
    """Episodes with a context above `max_tokens`; they are left out, never truncated."""
    max_tokens: int

    @property
    def episodes(self) -> Sequence[Trajectory]:
        """The episodes that are learned from."""
        return self.filtered.selected

    @classmethod
    def read(cls, config: SFTConfig, tokenizer: Any) -> SFTDataset:
        """Read and tokenize the data of a config."""
        filtered, reading = read_demonstrations(config.data, config.keep)
        return cls.from_episodes(
            config, tokenizer, filtered, reading.broken, config.turn_max_tokens
        )

    @classmethod
    def from_episodes(
        cls,
        config: RunConfig,
        tokenizer: Any,
        filtered: FilteredEpisodes,
        broken: list[BrokenLine],
        turn_max_tokens: int | None = None,
    ) -> SFTDataset:
        """Tokenize the selected episodes; raises `ConfigError` if a turn exceeds the limit."""
        episode_tokenizer = EpisodeTokenizer(tokenizer, config, instructions=config.instructions)
        every = [episode_tokenizer.rows(episode) for episode in filtered.selected]
        pairs = zip(filtered.selected, every, strict=True)
        fitting = [(e, rows) for e, rows in pairs if _fits(rows, config.max_tokens)]
        if turn_max_tokens is not None:
            check_turn_lengths(fitting, turn_max_tokens)
        rows = [training_row(row) for _, rows in fitting for row in rows if any(row.loss_mask)]
        too_long = len(every) - len(fitting)
        dataset = cls(rows, filtered, broken, too_long, config.max_tokens)
        check_rows(rows, " ".join(dataset.sentences()))
        return dataset

    def sentences(self) -> list[str]:
        """What is shown about the data."""
        trained = sum(label >= 0 for row in self.rows for label in row["labels"])
        shown = [
            f"Learning from {len(self.filtered.selected)} episodes"
            f"{self.filtered.reasons()}: {len(self.rows)} rows, {trained:,} trained tokens of "
            f"{sum(len(row['input_ids']) for row in self.rows):,}."
        ]
        if self.too_long:
            shown.append(
                f"{self.too_long} episodes are longer than max_tokens {self.max_tokens} and are "
                "left out."
            )
        return [*shown, *describe_broken(self.broken)]


def warnings_of_shown_tasks(
    tasks: TaskSet, eval_split: str, env_id: str, episodes: Iterable[Trajectory]
) -> list[str]:
    """A warning if tasks of the evaluation are learned from, else nothing.

    An environment by `module:Class` may be a variant of a registered one, with the same tasks.
    """
    held_out = set(tasks.split(eval_split))
    shown = {e.task for e in episodes if e.env == env_id or ":" in e.env} & held_out
    if not shown:
        return []
    return [
        f"Warning: {len(shown)} of the {len(held_out)} tasks of eval.split {eval_split!r} are in "
        "the data that is learned from; success on them does not show success on new tasks."
    ]


def _fits(rows: Iterable[Tokens], max_tokens: int) -> bool:
    return all(len(row.prompt_ids) + len(row.completion_ids) <= max_tokens for row in rows)


def check_turn_lengths(
    episodes: Iterable[tuple[Trajectory, Sequence[Tokens]]], turn_max_tokens: int
) -> None:
    """Raise `ConfigError` if the policy could not sample a turn that it is to learn.

    `episodes` have their rows beside them. Turns without loss, which are context, do not count.
    """
    lengths: list[int] = []
    for episode, rows in episodes:
        masks = [
            row.loss_mask[begin:end] for row in rows for begin, end in pairwise([0, *row.turn_ends])
        ]
        # A cut turn was sampled without the end that it has here.
        lengths += [
            sum(mask) - turn.cut
            for turn, mask in zip(episode.turns, masks, strict=True)
            if any(mask)
        ]
    too_long = sum(length > turn_max_tokens for length in lengths)
    if too_long:
        raise ConfigError(
            f"{too_long} of {len(lengths)} demonstrated turns exceed "
            f"turn_max_tokens={turn_max_tokens}; the longest has {max(lengths)}. The policy would "
            f"be cut before their end: set turn_max_tokens: {max(lengths)}"
        )


def check_rows(rows: Sequence[Any], details: str = "") -> None:
    """Raise `ConfigError` if there is nothing to learn from."""
    if not rows:
        raise ConfigError(
            "there is no episode to learn from; name other data, or select more of it: "
            f"success, min_reward, max_turns, max_tokens. {details}".strip()
        )
