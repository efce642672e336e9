"""AgentEvol (arXiv:2406.04151): a loop over exploring, selecting the good episodes, and SFT.

```
RUN/iteration-K/explored/ENV/    collections: the episodes of the policy of iteration K - 1
RUN/iteration-K/explored.json    written when all of them are complete
RUN/iteration-K/                 the SFT run on the selected ones, with its evaluation and model
RUN/iteration-K/iteration.json   its metrics, written when the iteration is complete
RUN/metrics.jsonl                one line per iteration
RUN/model/                       the policy of the last iteration
```
Each stage reads only files of the stages before it. An interrupted run therefore resumes in the
stage where it stopped and produces what the uninterrupted run would have produced.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from rich.console import Console

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.collection import CollectConfig
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.worlds import World, env_file_name
from agentgym_train.data.collect import (
    FilteredEpisodes,
    collected,
    collection_starts,
    filter_episodes,
    missing_starts,
    opened,
    play_starts,
)
from agentgym_train.data.datasets import SFTDataset, describe_broken, read_demonstrations
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import load_config, load_tokenizer, quiet_libraries
from agentgym_train.models.model_card import find_base_again, model_card
from agentgym_train.models.positions import positions_of, within
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.chat import chat_of
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.run import (
    Method,
    Notify,
    Run,
    interruptible,
    load_policy_for,
    new_folder,
    notifier,
)
from agentgym_train.runs.summary import conclude_evolution
from agentgym_train.training.checkpoints import last_checkpoint
from agentgym_train.training.sft import AgentSFTTrainer


def run_agent_evol(
    learning: Method,
    config: AgentEvolConfig,
    console: Console,
    worlds: Worlds,
    processes: int = 1,
    *,
    resumes: bool = False,
) -> int:
    """Start a run, or resume an interrupted one where it stopped. Returns the exit status.

    `learning` is the method by which an iteration learns. A new run moves an earlier one in its
    folder aside.
    """
    quiet_libraries()
    join(processes)
    learning.check(config)
    config = within(config, positions_of(load_config(config.model)))
    # An unavailable model or an unusable chat template fails before a folder is created.
    tokenizer = load_tokenizer(config.model)
    chat_of(config, tokenizer, "")
    demonstrations = _demonstrations(config, tokenizer, notifier(console))
    path = Path(config.output_dir)
    if not resumes:
        on_main_process(lambda: new_folder(config, path, console))
    store = RunStore.open(path)
    evolution = AgentEvol(learning, config, store, console, worlds, demonstrations)
    status = interruptible(evolution.iterate, config, console)
    if not status and PartialState().is_main_process:
        model = evolution.folder(config.iterations) / "model"
        shutil.copytree(model, path / "model", dirs_exist_ok=True)
        find_base_again(path / "model", before=model)
        card = model_card(path / "model", config)
        (path / "model" / "README.md").write_text(card, encoding="utf-8")
        conclude_evolution(config, store, console)
    return status


@dataclass(frozen=True, slots=True)
class AgentEvol:
    """One run, new or resumed."""

    learning: Method
    config: AgentEvolConfig
    store: RunStore
    console: Console
    worlds: Worlds
    demonstrations: list[Trajectory]

    def iterate(self) -> None:
        """Explore, select and learn in turn; what is finished is kept."""
        selected: list[list[Trajectory]] = []
        # Without demonstrations there is nothing to learn from before the first exploration.
        first = 0 if self.demonstrations else 1
        for iteration in range(first, self.config.iterations + 1):
            store = self._store(iteration)
            explored = self._explore(store, iteration) if iteration else {}
            found = zip(self.config.worlds, explored.values(), strict=False)
            chosen = {world.env: select(self.config, world, own) for world, own in found}
            if iteration:
                selected.append([episode for own in chosen.values() for episode in own])
            if not self._exists(store.path / "iteration.json"):
                episodes = merged(self.config, self.demonstrations, selected)
                rows = self._learn(store, iteration, episodes, is_first=iteration == first)
                metrics = exploration_metrics(explored, chosen)
                self._finish(store, {"step": iteration, **metrics, "rows": rows})

    def folder(self, iteration: int) -> Path:
        """The folder of an iteration."""
        return self.store.path / f"iteration-{iteration}"

    def _exists(self, path: Path) -> bool:
        """Whether the first process sees a file or folder: another may see it a moment later."""
        return gathered(path.exists())[0]

    def _store(self, iteration: int) -> RunStore:
        """The run folder of an iteration, which is created if it is missing."""
        store = RunStore(self.folder(iteration))

        def create() -> None:
            (store.path / "trajectories").mkdir(parents=True, exist_ok=True)
            store.write_json("run.json", {"config": self.config.as_dict(), "iteration": iteration})

        if not self._exists(store.path / "run.json"):
            on_main_process(create)
        return store

    def _model_before(self, iteration: int) -> str:
        """The policy that an iteration explores with."""
        before = self.folder(iteration - 1) / "model"
        return str(before) if iteration and before.is_dir() else self.config.model

    def _close(self, policy: Policy) -> None:
        """Release a policy and its engine."""
        self.worlds.run(policy.close())
        clear_device_cache(garbage_collection=True)

    def _explore(self, store: RunStore, iteration: int) -> dict[str, list[Trajectory]]:
        """Play the missing episodes of every environment; returns all of them by environment."""
        worlds = self.config.worlds
        folders = [store.path / "explored" / env_file_name(world.env) for world in worlds]
        if not self._exists(store.path / "explored.json"):
            self.console.rule(f"iteration {iteration}: explore")
            config = replace(self.config, model=self._model_before(iteration))
            policy = load_policy_for(config, self.worlds, PartialState().device)
            try:
                self.worlds.run(policy.engine.update_weights(policy.model, iteration))
                for folder, world, runner in zip(folders, worlds, self.worlds, strict=True):
                    lost = self._play(runner, policy, world, iteration, folder)
                    _check_explored(world, folder, gathered(lost))
            finally:
                self._close(policy)
            on_main_process(lambda: store.write_json("explored.json", {"iteration": iteration}))
        found = zip(worlds, folders, strict=True)
        return {world.env: explored_episodes(folder) for world, folder in found}

    def _play(
        self, runner: RolloutRunner, policy: Policy, world: World, iteration: int, folder: Path
    ) -> list[str | None]:
        """Play this process's share of the missing episodes in one environment.

        Returns the errors of the lost episodes, which are left out of the iteration.
        """
        state = PartialState()
        settings = self._collection(world, iteration, folder / f"process-{state.process_index}")
        remaining = missing_starts(
            collection_starts(settings, runner.tasks), explored_episodes(folder)
        )
        share = remaining[state.process_index :: state.num_processes]
        # All processes have read the same episodes before one of them writes.
        gathered(None)
        if not share:
            return []
        own = policy.in_environment(runner.card, world.instruction)
        actors = own.actors(self.config.temperature)
        lost = play_starts(
            opened(settings), runner, actors, share, settings, own.instruction, self.console
        )
        return [episode.error for episode in lost]

    def _collection(self, world: World, iteration: int, folder: Path) -> CollectConfig:
        """An exploration as a collection, whose starts depend on seed and iteration alone."""
        config = self.config
        policy = {f.name: getattr(config, f.name) for f in fields(PolicyConfig)}
        policy |= {"model": f"iteration {iteration - 1}", "instruction": world.instruction}
        return CollectConfig(
            **policy,
            env=world.env,
            output_dir=str(folder),
            split=world.split,
            n=world.tasks or None,
            samples=config.samples,
            horizon=world.stages[0],
            seed=draw_seed("evolve", config.seed, iteration) % 2**32,
            env_kwargs=world.env_kwargs,
        )

    def _learn(
        self, store: RunStore, iteration: int, episodes: list[Trajectory], *, is_first: bool
    ) -> int:
        """The SFT run of an iteration, new or resumed; returns the number of its rows."""
        base = self.config.model if self.config.from_base else self._model_before(iteration)
        settings = self.config.sft_config(base, str(store.path), evaluates_before=is_first)
        self.console.rule(f"iteration {iteration}: learn")
        policy = load_policy_for(settings, self.worlds, PartialState().device)
        try:
            found = FilteredEpisodes(weighted(self.config, episodes, self.config.seed))
            data = SFTDataset.from_episodes(settings, policy.tokenizer, found, [])
            for message in data.sentences():
                notifier(self.console)(message)
            part = Run(
                settings, self.learning, store, self.console, self.worlds, policy, is_part=True
            )
            part.play(
                lambda store: AgentSFTTrainer(
                    policy.model, policy.tokenizer, data.rows, settings, store.checkpoints
                ),
                gathered(last_checkpoint(store.checkpoints))[0],
            )
        finally:
            self._close(policy)
        return len(data.rows)

    def _finish(self, store: RunStore, row: dict[str, Any]) -> None:
        """Write the metrics of an iteration, and delete its checkpoints."""

        def write() -> None:
            found = row | learning_metrics(store)
            self.store.append_metrics(found)
            store.write_json("iteration.json", found)
            shutil.rmtree(store.checkpoints, ignore_errors=True)

        on_main_process(write)


def _demonstrations(config: AgentEvolConfig, tokenizer: Any, notify: Notify) -> list[Trajectory]:
    """The selected demonstrations; raises `ConfigError` if the policy could not repeat a turn."""
    if not config.data:
        return []
    read, reading = read_demonstrations(config.data)
    found = select_demonstrations(config, read.selected)
    found.left_out += read.left_out
    if found.selected:
        SFTDataset.from_episodes(config, tokenizer, found, [], config.turn_max_tokens)
    reasons = f" (left out: {found.reasons()})" if found.left_out else ""
    notify(f"{len(found.selected)} demonstrations{reasons}.")
    for message in describe_broken(reading.broken):
        notify(message)
    return found.selected


def explored_episodes(folder: Path) -> list[Trajectory]:
    """The episodes that all processes explored in one environment, in the order of the starts."""
    parts = [part for part in folder.glob("process-*") if (part / "run.json").is_file()]
    found = [episode for part in sorted(parts) for episode in collected(RunStore.open(part))[0]]
    return sorted(found, key=lambda t: (t.group, t.sample))


def _check_explored(world: World, folder: Path, lost: Sequence[Sequence[str | None]]) -> None:
    """Raise `ConfigError` if every episode of an environment was lost; `lost` are all errors."""
    errors = [error for own in lost for error in own]
    if errors and not explored_episodes(folder):
        raise ConfigError(
            f"all {len(errors)} episodes of {world.env} were lost; the first error: {errors[0]}"
        )


def select(
    config: AgentEvolConfig, world: World, episodes: Sequence[Trajectory]
) -> list[Trajectory]:
    """The good episodes of an environment, at most `per_task` of each task."""
    selected: list[Trajectory] = []
    of_task: Counter[str] = Counter()
    for episode in filter_episodes(episodes, config.keep_of(world)).selected:
        of_task[episode.task] += 1
        if not config.per_task or of_task[episode.task] <= config.per_task:
            selected.append(episode)
    return selected


def select_demonstrations(
    config: AgentEvolConfig, episodes: Sequence[Trajectory]
) -> FilteredEpisodes:
    """Select demonstrations by the rules of their environments, without repetitions.

    Demonstrations of an environment that is not explored must have solved their task.
    """
    rules = {world.env: config.keep_of(world) for world in config.worlds}
    found = FilteredEpisodes()
    for env in dict.fromkeys(episode.env for episode in episodes):
        own = filter_episodes(
            [e for e in episodes if e.env == env], rules.get(env, EpisodeFilter(success=True))
        )
        found.selected += own.selected
        found.left_out += own.left_out
    return found


def merged(
    config: AgentEvolConfig,
    demonstrations: Sequence[Trajectory],
    selected: Sequence[Sequence[Trajectory]],
) -> list[Trajectory]:
    """The episodes that an iteration learns from; `selected` are by iteration.

    Episodes with the same task and actions are used once.
    """
    chosen = [] if config.merge == "none" and selected else list(demonstrations)
    for iteration in selected if config.merge == "all" else selected[-1:]:
        chosen += iteration
    return filter_episodes(chosen, EpisodeFilter(min_turns=0, unique=True)).selected


def weighted(
    config: AgentEvolConfig, episodes: Sequence[Trajectory], seed: int
) -> list[Trajectory]:
    """Repeat each episode according to the weight of its environment; the order is the same."""
    weights = {world.env: world.weight for world in config.worlds}
    repeated: list[Trajectory] = []
    for number, episode in enumerate(episodes):
        whole, part = divmod(weights.get(episode.env, 1.0), 1.0)
        drawn = draw_seed("weight", seed, number) / 2**63 < part
        repeated += [episode] * (int(whole) + drawn)
    return repeated


def exploration_metrics(
    explored: Mapping[str, Sequence[Trajectory]], selected: Mapping[str, Sequence[Trajectory]]
) -> dict[str, float]:
    """How many episodes were explored and kept, in total and, of several, by environment."""

    def metrics(envs: Iterable[str]) -> dict[str, float]:
        played = [episode.success for env in envs for episode in explored[env]]
        kept = sum(len(selected[env]) for env in envs)
        success = fmean(played) if played else 0.0
        return {"explored": len(played), "explored_success": success, "kept": kept}

    row = metrics(list(explored))
    for env in explored if len(explored) > 1 else ():
        row |= {f"{name}/{env}": value for name, value in metrics([env]).items()}
    return row


def learning_metrics(store: RunStore) -> dict[str, float]:
    """The metrics of an iteration's SFT run."""
    steps, _ = store.metrics()
    summary = store.read_json("summary.json") or {}
    row: dict[str, float] = {}
    if summary.get("after"):
        row["success"] = summary["success_after"]
        if "envs" in summary:
            row |= {f"success/{env}": r["success"] for env, r in summary["after"].items()}
    return row | {
        "optimizer_steps": len(steps),
        "loss": steps[-1]["loss"] if steps else 0.0,
        "train_seconds": round(sum(line["seconds"] for line in steps), 1),
    }
