"""Collects episodes of a policy in a folder, and selects those that its filter keeps.

An interrupted collection resumes at every episode.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.markup import escape

from agentgym_env.errors import INTERRUPTED, ConfigError, teaches
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_env.run_store import BrokenLine, RunStore, run_metadata
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.policy import CollectConfig
from agentgym_train.data.formats import describe_broken
from agentgym_train.data.tokenize import nothing_to_count, sampled_tokens, token_counter
from agentgym_train.rollout.actors import MixedActor, draw_seed
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy_spec import PolicySpec, check_agent, parse_policy
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.run_episode import EpisodeActor, EpisodeActorFactory
from agentgym_train.rollout.runner import RolloutRunner, live_status

NAME: Final = "collected"
"""The name of the file in `trajectories/`."""

_MAY_CHANGE: Final = frozenset({"n", "samples", "servers", "keep", "output_dir"})


@dataclass(slots=True)
class FilteredEpisodes:
    """The selected episodes, and how many were left out for which reason."""

    selected: list[Trajectory] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def reasons(self) -> str:
        """Such as ` (left out: 12 no success, 3 repeated)`; empty if nothing was left out."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        return f" (left out: {reasons})" if reasons else ""


Key = tuple[str, int, int]


def collect(
    config: CollectConfig,
    console: Console | None = None,
    *,
    concurrency: int = 256,
    api_key: str | None = None,
    token: str | None = None,
) -> int:
    """Play the missing episodes and summarize all of them. Returns the exit status.

    `token` is that of `config.servers`; None uses the environment variable `AGENTGYM_TOKEN`.
    Raises `ConfigError` for invalid settings, before anything is played, and if every episode was
    lost; `FolderInUse` while another process writes to the folder.
    """
    if not isinstance(config, CollectConfig):
        raise ConfigError(f"collect needs a CollectConfig; got {str(config)[:80]!r}")
    with folder_lock(Path(config.output_dir), "--out"):
        return _collect(config, console or Console(), concurrency, api_key, token)


def collection_starts(config: CollectConfig, tasks: TaskSet) -> list[EpisodeSpec]:
    """All requested episodes. The starts of a smaller `n` are the first of a larger one."""
    ids = tasks.split(config.split)
    count = len(ids) if config.n is None else config.n
    chosen: list[tuple[str, int]] = []
    for turn in range(-(-count // len(ids))):
        order = list(ids)
        random.Random(f"collect/{config.seed}/{turn}").shuffle(order)
        chosen += [(task, draw_seed("collect", config.seed, task, turn)) for task in order]
    return [
        EpisodeSpec(
            task=task,
            seed=seed,
            sample=sample,
            group=group,
            split=config.split,
            category=tasks.category(task),
        )
        for group, (task, seed) in enumerate(chosen[:count])
        for sample in range(config.samples)
    ]


def play_starts(
    store: RunStore,
    rollout_runner: RolloutRunner,
    new_actor: EpisodeActorFactory,
    starts: Sequence[EpisodeSpec],
    config: CollectConfig,
    system_prompt: str,
    console: Console,
) -> list[Trajectory]:
    """Play episodes and store each when it ends; returns the lost ones, which are not stored."""
    lost: dict[Key, Trajectory] = {}
    with progress_bar(console) as progress:
        live = live_status(rollout_runner, progress)
        bar = progress.add_task("collecting", total=len(starts), status=live)

        def keep(trajectory: Trajectory) -> None:
            if teaches(trajectory.outcome):
                lost.pop(key_of(trajectory), None)
                store.append_trajectories(NAME, [trajectory])
                progress.advance(bar)
            else:
                lost[key_of(trajectory)] = trajectory

        rollout_runner.collect(
            new_actor,
            starts,
            config.horizon,
            instruction=system_prompt,
            on_episode=keep,
        )
        progress.update(bar, status="")
    return list(lost.values())


def missing_starts(
    starts: Iterable[EpisodeSpec], stored: Iterable[Trajectory]
) -> list[EpisodeSpec]:
    """The starts without a stored episode."""
    done = {key_of(trajectory) for trajectory in stored}
    return [start for start in starts if key_of(start) not in done]


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


def _collect(
    config: CollectConfig,
    console: Console,
    concurrency: int,
    api_key: str | None,
    token: str | None,
) -> int:
    spec = PolicySpec(config, api_key=api_key)
    other = _mixed_in(config, api_key)
    check_agent(config.agent, [found.name for found in (spec, other) if found is not None])
    if config.keep.max_episode_tokens is not None:
        token_counter(config.keep.tokenizer)
        if config.keep.tokenizer is None and (other is not None or not spec.name.reports_ids):
            raise ConfigError(nothing_to_count(config.model))
    with RolloutRunner(
        config.env,
        config.servers,
        token=token,
        env_kwargs=config.env_kwargs,
        wrappers=config.wrappers,
        concurrency=concurrency,
    ) as rollout_runner:
        config = replace(config, env=rollout_runner.env_id)
        starts = collection_starts(config, rollout_runner.tasks)
        check_settings(config)
        left = _left(config, starts, console)
        env_instruction = rollout_runner.card.instruction
        lost: list[Trajectory] = []
        try:
            if left:
                with ExitStack() as stack:
                    make = (env_instruction, rollout_runner.run, rollout_runner.card.tools)
                    actors = stack.enter_context(spec.actors(*make))
                    if other is not None:
                        second = stack.enter_context(other.actors(*make))
                        actors = partial(_mixed, actors, second, config)
                    # Invalid settings have been rejected by now.
                    store = opened(config)
                    prompt = config.system_prompt(env_instruction)
                    lost = play_starts(store, rollout_runner, actors, left, config, prompt, console)
        except KeyboardInterrupt:
            _close(config, starts, lost, console)
            console.print("Interrupted; the same command resumes.")
            return INTERRUPTED
    _close(config, starts, lost, console)
    used = Counter(spec.used()) + Counter(other.used() if other else {})
    if used:
        console.print("Used: " + ", ".join(f"{value:,} {name}" for name, value in used.items()))
    return 1 if lost else 0


def _mixed_in(config: CollectConfig, api_key: str | None) -> PolicySpec | None:
    """The policy that takes some of the turns."""
    if not config.mix_policy:
        if config.mix_loss:
            raise ConfigError("--mix-loss needs --mix-policy")
        return None
    if not 0 < config.mix_rate < 1:
        raise ConfigError(f"--mix-rate is a probability between 0 and 1, got {config.mix_rate:g}")
    return PolicySpec(replace(config, model=config.mix_policy), api_key=api_key)


def _mixed(
    main: EpisodeActorFactory, other: EpisodeActorFactory, config: CollectConfig
) -> MixedActor:
    """An actor of two policies."""
    first, second = main(), other()
    if isinstance(first, EpisodeActor) or isinstance(second, EpisodeActor):
        raise ConfigError("a black-box agent takes every turn itself; leave out --mix-policy")
    rate, form = config.mix_rate, config.form
    return MixedActor(first, second, rate, form, trained=config.mix_loss)


def _left(
    config: CollectConfig, starts: Sequence[EpisodeSpec], console: Console
) -> list[EpisodeSpec]:
    """The starts that are still to be played; shows how many are stored."""
    stored, broken = collected(RunStore(Path(config.output_dir)))
    for sentence in describe_broken(broken):
        console.print(sentence, style="yellow", soft_wrap=True, markup=False)
    left = missing_starts(starts, stored)
    if stored:
        console.print(f"{len(stored)} episodes are stored; {len(left)} remain to be played.")
    return left


def _close(
    config: CollectConfig,
    starts: Sequence[EpisodeSpec],
    lost: Sequence[Trajectory],
    console: Console,
) -> None:
    """Write summary.json, and show how many episodes are stored and selected, and what is next."""
    stored, _ = collected(RunStore(Path(config.output_dir)))
    if not stored:
        if lost:
            raise ConfigError(
                f"all {len(lost)} episodes were lost; the first error: {lost[0].error}"
            )
        return
    store = opened(config)
    filtered = filter_episodes(stored, config.keep)
    figures = {
        "episodes": len(stored),
        "success": fmean(t.success for t in stored),
        "turns": fmean(len(t.turns) for t in stored),
        "kept": len(filtered.selected),
        "left_out": dict(filtered.left_out),
        "to_play": len(missing_starts(starts, stored)),
    }
    store.write_json("summary.json", figures)
    console.print(
        f"{store.path} contains {len(stored)} episodes: success {figures['success']:.2f}, "
        f"{figures['turns']:.1f} turns on average. Selected: {len(filtered.selected)}"
        f"{filtered.reasons()}.",
        soft_wrap=True,
    )
    if lost:
        console.print(
            f"[yellow]{len(lost)} episodes were lost, the first because: "
            f"{escape(str(lost[0].error))} The same command plays them again.[/]",
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


def _weights(config: CollectConfig) -> dict[str, str]:
    """Policy -> the digest of its weights, of those that are models in a folder."""
    names = {name: parse_policy(name) for name in (config.model, config.mix_policy) if name}
    return {name: digest for name, policy in names.items() if (digest := policy.weights())}
