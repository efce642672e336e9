"""Collects episodes of a policy from its settings to its summary; resumable at every episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.markup import escape

from agentgym_env.errors import BadRequest
from agentgym_env.run_lock import folder_lock
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.attempt import EpisodeStart
from agentgym_train.collection import (
    WITHOUT_WORDS,
    CollectConfig,
    check_settings,
    collected,
    missing,
    opened,
    play,
    starts_of,
)
from agentgym_train.collector import Collector
from agentgym_train.keep import sift
from agentgym_train.token_count import token_counter
from agentgym_train.who_plays import WhoPlays

INTERRUPTED: Final = 130
"""Exit status of what Ctrl-C stopped, by the shell's convention."""


def collect(
    config: CollectConfig,
    console: Console,
    *,
    concurrency: int = 256,
    api_key: str | None = None,
) -> int:
    """Play what is not there yet and sum up what is. Returns the exit status.

    Raises `BadRequest` for what cannot be done, before anything is played, and when every episode
    was lost; `FolderInUse` while another process writes to the folder.
    """
    with folder_lock(Path(config.output_dir), "--out"):
        return _collect(config, console, concurrency, api_key)


def _collect(config: CollectConfig, console: Console, concurrency: int, api_key: str | None) -> int:
    who = WhoPlays(
        config.policy,
        config.temperature,
        config.action_format,
        config.agent,
        config.turn_max_tokens,
        config.max_tokens,
        api_key=api_key,
    )
    _check_counting(config)
    with Collector(
        config.env, config.servers, env_kwargs=config.env_kwargs, concurrency=concurrency
    ) as collector:
        config = replace(config, env=collector.env_id)
        starts = starts_of(config, collector.tasks)
        check_settings(config)
        left = _left(config, starts, console)
        told = collector.card.instruction if config.instruction is None else config.instruction
        lost: list[Trajectory] = []
        try:
            if left:
                with who.players(told, collector.run) as players:
                    # By now whatever could be refused has been.
                    store = opened(config)
                    lost = play(store, collector, players, left, config, told, console)
        except KeyboardInterrupt:
            _close(config, starts, lost, console)
            console.print("Stopped; the same command goes on.")
            return INTERRUPTED
    _close(config, starts, lost, console)
    used = who.used()
    if used:
        console.print("Used: " + ", ".join(f"{value:,} {name}" for name, value in used.items()))
    return 1 if lost else 0


def _check_counting(config: CollectConfig) -> None:
    """Raise before anything is played when the tokens could not be counted at the end."""
    keep = config.keep
    if keep.most_tokens is None:
        return
    if keep.tokenizer is not None:
        token_counter(keep.tokenizer)
    elif config.policy in WITHOUT_WORDS or config.policy.startswith("openai:"):
        raise BadRequest(
            f"{config.policy} samples no token ids that --most-tokens could count; name the model "
            "whose tokenizer is to count with --tokenizer"
        )


def _left(
    config: CollectConfig, starts: Sequence[EpisodeStart], console: Console
) -> list[EpisodeStart]:
    """The starts that are to be played, with a word on what is there."""
    there, broken = collected(RunStore(Path(config.output_dir)))
    for line in broken:
        console.print(
            f"[yellow]{line.path}, line {line.line} cannot be read ({line.reason}); its episode "
            "is played again.[/]",
            soft_wrap=True,
        )
    left = missing(starts, there)
    if there:
        console.print(f"{len(there)} episodes are there; {len(left)} are to be played.")
    return left


def _close(
    config: CollectConfig,
    starts: Sequence[EpisodeStart],
    lost: Sequence[Trajectory],
    console: Console,
) -> None:
    """Write summary.json, and say what is there, what of it is kept and what to do with it."""
    there, _ = collected(RunStore(Path(config.output_dir)))
    if not there:
        if lost:
            raise BadRequest(f"all {len(lost)} episodes were lost; the first to: {lost[0].error}")
        return
    store = opened(config)
    sifted = sift(there, config.keep)
    figures = {
        "episodes": len(there),
        "success": fmean(t.success for t in there),
        "turns": fmean(len(t.turns) for t in there),
        "kept": len(sifted.kept),
        "left_out": dict(sifted.left_out),
        "to_play": len(missing(starts, there)),
    }
    store.write_json("summary.json", figures)
    reasons = f" (left out: {sifted.reasons()})" if sifted.left_out else ""
    console.print(
        f"{store.path} holds {len(there)} episodes: success {figures['success']:.2f}, "
        f"{figures['turns']:.1f} turns on average. Kept: {len(sifted.kept)}{reasons}.",
        soft_wrap=True,
    )
    if lost:
        console.print(
            f"[yellow]{len(lost)} episodes were lost, the first to: {escape(str(lost[0].error))} "
            "The same command plays them again.[/]",
            soft_wrap=True,
        )
    else:
        console.print(
            f"What next: agentgym export {store.path} --format messages --out FILE, or a training "
            f"config with `method: sft` and `data: [{store.path}]`",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
