"""Collection: episodes of a policy, kept one by one as they end, so that nothing is played twice.

```
OUT/run.json                        what was asked for
OUT/trajectories/collected.jsonl    every episode that was played to its end, in order of ending
OUT/summary.json                    what is there and what of it is kept
```
What is to be kept is applied when the run is read: an episode that is no demonstration today may
be the rejected side of a pair tomorrow.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from rich.console import Console

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import BadRequest
from agentgym_env.failures import teaches
from agentgym_env.run_lock import is_unused
from agentgym_env.run_store import BrokenLine, RunStore
from agentgym_env.task_set import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_train.agents import format_of
from agentgym_train.attempt import EpisodeStart
from agentgym_train.collector import Collector
from agentgym_train.keep import Keep
from agentgym_train.players import PlayerFactory, draw_seed
from agentgym_train.progress import progress_bar
from agentgym_train.rollout_bar import TrafficText
from agentgym_train.run_facts import run_facts

NAME: Final = "collected"
"""Of the file in `trajectories/`."""
_MAY_CHANGE: Final = frozenset({"n", "samples", "servers", "keep", "output_dir"})
WITHOUT_WORDS: Final = frozenset({"expert", "random"})
"""Policies that give an action and no text around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """What is to be collected."""

    env: str
    policy: str
    output_dir: str
    split: str = "train"
    n: int | None = None
    """Starts, each a task with a seed: the split's tasks in a random order, then all again with
    other seeds, and so on. None takes each task once."""
    samples: int = 1
    """Episodes of each start."""
    horizon: int = 50
    seed: int = 0
    temperature: float = 1.0
    instruction: str | None = None
    action_format: str = "plain"
    agent: str = "plain"
    turn_max_tokens: int = 512
    max_tokens: int = 8192
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    keep: Keep = field(default_factory=Keep)
    method: Literal["collect"] = "collect"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)


Key = tuple[str, int, int]


def key_of(episode: EpisodeStart | Trajectory) -> Key:
    """What tells the episodes of a collection apart."""
    return episode.task, episode.seed, episode.sample


def starts_of(config: CollectConfig, tasks: TaskSet) -> list[EpisodeStart]:
    """Every episode that is asked for. Fewer starts are the first of more."""
    ids = tasks.split(config.split)
    count = len(ids) if config.n is None else config.n
    chosen: list[tuple[str, int]] = []
    for turn in range(-(-count // len(ids))):
        order = list(ids)
        random.Random(f"collect/{config.seed}/{turn}").shuffle(order)
        chosen += [(task, draw_seed("collect", config.seed, task, turn)) for task in order]
    return [
        EpisodeStart(
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
    """Raise `BadRequest` where the folder holds something else, or episodes of other settings.

    Starts, samples and what is kept may change, since all that was played stays good.
    """
    path = Path(config.output_dir)
    if is_unused(path):
        return
    earlier = collect_config_of(path)
    if earlier is None:
        raise BadRequest(f"{path} holds something else than a collection; name another --out")
    if not collected(RunStore.open(path))[0]:
        return
    old, new = earlier.as_dict(), config.as_dict()
    changed = [name for name in new if name not in _MAY_CHANGE and new[name] != old[name]]
    if changed:
        told = "; ".join(f"{name} was {old[name]!r} and is {new[name]!r}" for name in changed)
        raise BadRequest(
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
        raise BadRequest(f"{path}/run.json is not what a collection writes: {error}") from error


def collected(store: RunStore) -> tuple[list[Trajectory], list[BrokenLine]]:
    """The episodes that are there, in the order of their starts; of one played twice the first."""
    found, broken = store.trajectories(NAME)
    first: dict[Key, Trajectory] = {}
    for trajectory in found:
        first.setdefault(key_of(trajectory), trajectory)
    return sorted(first.values(), key=lambda t: (t.group, t.sample)), broken


def play(
    store: RunStore,
    collector: Collector,
    new_player: PlayerFactory,
    starts: Sequence[EpisodeStart],
    config: CollectConfig,
    told: str,
    console: Console,
) -> list[Trajectory]:
    """Play episodes and keep each as it ends; those that were lost are given back instead.

    Kept with them is all that the policy was told: the instruction and the action format's own.
    """
    form = format_of(config.agent, config.action_format)
    lost: dict[Key, Trajectory] = {}
    with progress_bar(console) as progress:
        live = TrafficText(collector.traffic) if progress.console.is_terminal else ""
        bar = progress.add_task("collecting", total=len(starts), figures=live)

        def keep(trajectory: Trajectory) -> None:
            if teaches(trajectory.outcome):
                lost.pop(key_of(trajectory), None)
                store.append_trajectories(NAME, [_in_words(trajectory, form)])
                progress.advance(bar)
            else:
                lost[key_of(trajectory)] = trajectory

        collector.collect(
            new_player,
            starts,
            config.horizon,
            instruction="\n\n".join(part for part in (told, form.instructions) if part),
            on_episode=keep,
        )
        progress.update(bar, figures="")
    return list(lost.values())


def missing(starts: Iterable[EpisodeStart], there: Iterable[Trajectory]) -> list[EpisodeStart]:
    """The starts of which no episode is there."""
    done = {key_of(trajectory) for trajectory in there}
    return [start for start in starts if key_of(start) not in done]


def _in_words(trajectory: Trajectory, form: ActionFormat) -> Trajectory:
    """The episode as one would write it who has to put actions into words."""
    if trajectory.policy not in WITHOUT_WORDS:
        return trajectory
    turns = [msgspec.structs.replace(t, response=form.render(t.action)) for t in trajectory.turns]
    return msgspec.structs.replace(trajectory, turns=turns)
