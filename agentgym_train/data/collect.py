"""Collects episodes of a policy; an interrupted collection resumes at every episode."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

import msgspec
from rich.console import Console
from rich.markup import escape

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError, teaches
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_env.run_store import BrokenLine, RunStore, run_facts
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.base import PolicyConfig
from agentgym_train.config.values import EpisodeFilter
from agentgym_train.data.tokenize import sampled_tokens, token_counter
from agentgym_train.rollout.actors import ActorFactory, draw_seed
from agentgym_train.rollout.loop import EpisodeSpec
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.runner import ConcurrencyText, RolloutRunner, progress_bar


@dataclass(slots=True)
class FilteredEpisodes:
    """What was kept, and for what reasons how much was not."""

    kept: list[Trajectory] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def reasons(self) -> str:
        """Such as `12 no success, 3 repeated`; empty where everything was kept."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())


def filter_episodes(trajectories: Iterable[Trajectory], keep: EpisodeFilter) -> FilteredEpisodes:
    """The demonstrations among episodes, in their order."""
    sifted = FilteredEpisodes()
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
            sifted.kept.append(trajectory)
        else:
            sifted.left_out[objection] += 1
    return sifted


NAME: Final = "collected"

"""Of the file in `trajectories/`."""

_MAY_CHANGE: Final = frozenset({"n", "samples", "servers", "keep", "output_dir"})

WITHOUT_WORDS: Final = frozenset({"expert", "random"})

"""Policies that give an action and no text around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig(PolicyConfig):
    """Settings of a collection; `model` is the name of any policy, such as `expert`."""

    env: str
    output_dir: str
    split: str = "train"
    n: int | None = None
    """Starts, each a task with a seed: the split's tasks in a random order, then all again with
    other seeds, and so on. None takes each task once."""
    samples: int = 1
    """Episodes of each start."""
    horizon: int = 50
    seed: int = 0
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    keep: EpisodeFilter = field(default_factory=EpisodeFilter)
    method: Literal["collect"] = "collect"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


Key = tuple[str, int, int]


def key_of(episode: EpisodeSpec | Trajectory) -> Key:
    """What tells the episodes of a collection apart."""
    return episode.task, episode.seed, episode.sample


def starts_of(config: CollectConfig, tasks: TaskSet) -> list[EpisodeSpec]:
    """Every episode that is asked for. Fewer starts are the first of more."""
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


def check_settings(config: CollectConfig) -> None:
    """Raise `ConfigError` where the folder holds something else, or episodes of other settings.

    Starts, samples and what is kept may change, since all that was played stays good.
    """
    path = Path(config.output_dir)
    if is_unused(path):
        return
    earlier = collect_config_of(path)
    if earlier is None:
        raise ConfigError(f"{path} holds something else than a collection; name another --out")
    if not collected(RunStore.open(path))[0]:
        return
    old, new = earlier.as_dict(), config.as_dict()
    changed = [name for name in new if name not in _MAY_CHANGE and new[name] != old[name]]
    if changed:
        told = "; ".join(f"{name} was {old[name]!r} and is {new[name]!r}" for name in changed)
        raise ConfigError(
            f"{path} holds episodes that were collected otherwise: {told[:600]}. Name another "
            "--out, or give the settings of then"
        )


def opened(config: CollectConfig) -> RunStore:
    """The run folder of checked settings, new or gone on with."""
    path, facts = Path(config.output_dir), run_facts(config.as_dict())
    if not (path / "run.json").is_file():
        return RunStore.create(path, facts)
    store = RunStore.open(path)
    store.write_json("run.json", facts)
    return store


def collect_config_of(path: Path) -> CollectConfig | None:
    """The settings of a collection; None where the folder is none."""
    if not (path / "run.json").is_file():
        return None
    config = (RunStore.open(path).read_json("run.json") or {}).get("config")
    if not isinstance(config, dict) or config.get("method") != "collect":
        return None
    try:
        return msgspec.convert(config, CollectConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}/run.json is not what a collection writes: {error}") from error


def collected(store: RunStore) -> tuple[list[Trajectory], list[BrokenLine]]:
    """The episodes that are there, in the order of their starts; of one played twice the first."""
    found, broken = store.trajectories(NAME)
    first: dict[Key, Trajectory] = {}
    for trajectory in found:
        first.setdefault(key_of(trajectory), trajectory)
    return sorted(first.values(), key=lambda t: (t.group, t.sample)), broken


def play(
    store: RunStore,
    rollout_runner: RolloutRunner,
    new_actor: ActorFactory,
    starts: Sequence[EpisodeSpec],
    config: CollectConfig,
    system_prompt: str,
    console: Console,
) -> list[Trajectory]:
    """Play episodes and store each when it ends; returns the lost ones, which are not stored."""
    form = config.form
    lost: dict[Key, Trajectory] = {}
    with progress_bar(console) as progress:
        live = (
            ConcurrencyText(rollout_runner.concurrency_limits)
            if progress.console.is_terminal
            else ""
        )
        bar = progress.add_task("collecting", total=len(starts), figures=live)

        def keep(trajectory: Trajectory) -> None:
            if teaches(trajectory.outcome):
                lost.pop(key_of(trajectory), None)
                store.append_trajectories(NAME, [_in_words(trajectory, form)])
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
        progress.update(bar, figures="")
    return list(lost.values())


def missing(starts: Iterable[EpisodeSpec], there: Iterable[Trajectory]) -> list[EpisodeSpec]:
    """The starts of which no episode is there."""
    done = {key_of(trajectory) for trajectory in there}
    return [start for start in starts if key_of(start) not in done]


def _in_words(trajectory: Trajectory, form: ActionFormat) -> Trajectory:
    """The episode as one would write it who has to put actions into words."""
    if trajectory.policy not in WITHOUT_WORDS:
        return trajectory
    turns = [msgspec.structs.replace(t, response=form.render(t.action)) for t in trajectory.turns]
    return msgspec.structs.replace(trajectory, turns=turns)


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

    Raises `ConfigError` for what cannot be done, before anything is played, and when every episode
    was lost; `FolderInUse` while another process writes to the folder.
    """
    with folder_lock(Path(config.output_dir), "--out"):
        return _collect(config, console, concurrency, api_key)


def _collect(config: CollectConfig, console: Console, concurrency: int, api_key: str | None) -> int:
    spec = PolicySpec(config, api_key=api_key)
    _check_counting(config)
    with RolloutRunner(
        config.env, config.servers, env_kwargs=config.env_kwargs, concurrency=concurrency
    ) as rollout_runner:
        config = replace(config, env=rollout_runner.env_id)
        starts = starts_of(config, rollout_runner.tasks)
        check_settings(config)
        left = _left(config, starts, console)
        env_instruction = rollout_runner.card.instruction
        lost: list[Trajectory] = []
        try:
            if left:
                with spec.actors(env_instruction, rollout_runner.run) as actors:
                    # By now whatever could be refused has been.
                    store = opened(config)
                    prompt = config.system_prompt(env_instruction)
                    lost = play(store, rollout_runner, actors, left, config, prompt, console)
        except KeyboardInterrupt:
            _close(config, starts, lost, console)
            console.print("Stopped; the same command goes on.")
            return INTERRUPTED
    _close(config, starts, lost, console)
    used = spec.used()
    if used:
        console.print("Used: " + ", ".join(f"{value:,} {name}" for name, value in used.items()))
    return 1 if lost else 0


def _check_counting(config: CollectConfig) -> None:
    """Raise before anything is played when the tokens could not be counted at the end."""
    keep = config.keep
    if keep.max_episode_tokens is None:
        return
    if keep.tokenizer is not None:
        token_counter(keep.tokenizer)
    elif config.model in WITHOUT_WORDS or config.model.startswith("openai:"):
        raise ConfigError(
            f"{config.model} reports no token ids, which --max-episode-tokens counts; name a model "
            "whose tokenizer counts them: --tokenizer PATH_OR_ID"
        )


def _left(
    config: CollectConfig, starts: Sequence[EpisodeSpec], console: Console
) -> list[EpisodeSpec]:
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
    starts: Sequence[EpisodeSpec],
    lost: Sequence[Trajectory],
    console: Console,
) -> None:
    """Write summary.json, and say what is there, what of it is kept and what to do with it."""
    there, _ = collected(RunStore(Path(config.output_dir)))
    if not there:
        if lost:
            raise ConfigError(f"all {len(lost)} episodes were lost; the first to: {lost[0].error}")
        return
    store = opened(config)
    sifted = filter_episodes(there, config.keep)
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
