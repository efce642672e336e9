"""AgentEvol (arXiv:2406.04151): explore, select the good episodes, fine-tune on them, and repeat.

```
RUN/iteration-K/explored/ENV/    the episodes of iteration K, by the policy of iteration K - 1
RUN/iteration-K/explored.json    written when its exploration is complete
RUN/iteration-K/metrics.jsonl    the steps of its fine-tuning; checkpoints/ until it is complete
RUN/iteration-K/model/           the policy that came out of it
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from accelerate.utils.memory import clear_device_cache
from rich.console import Console

from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.collection import CollectConfig
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.trust import resume_command
from agentgym_train.config.worlds import World, file_name
from agentgym_train.data.collect import (
    FilteredEpisodes,
    collected,
    filter_episodes,
    missing,
    opened,
    play,
    starts_of,
)
from agentgym_train.data.datasets import (
    SFTDataset,
    check_turns,
    describe_broken,
    read_demonstrations,
)
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.evaluation.report import Reports
from agentgym_train.models.adapters import keep_base
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import load_config, load_policy, load_tokenizer, quiet_libraries
from agentgym_train.models.model_card import finish_model_folder
from agentgym_train.models.positions import positions_of, within
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.chat import chat_of
from agentgym_train.rollout.policy import Policy, make_policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.run import (
    Method,
    evaluate_worlds,
    new_folder,
    notifier,
    place_model,
    train,
)
from agentgym_train.runs.summary import conclude_evolution
from agentgym_train.runs.watchdog import watching_processes
from agentgym_train.training.checkpoints import last_checkpoint
from agentgym_train.training.sft import AgentSFTTrainer
from agentgym_train.training.trackers import Trackers


@dataclass(frozen=True, slots=True)
class ExplorationResult:
    """The result of exploring one environment in one iteration."""

    selected: list[Trajectory]
    played: int
    success: float
    """Success rate of all played episodes."""

    @classmethod
    def of(
        cls, config: AgentEvolConfig, world: World, episodes: Sequence[Trajectory]
    ) -> ExplorationResult:
        """Select the good episodes, at most `per_task` of each task."""
        selected: list[Trajectory] = []
        of_task: Counter[str] = Counter()
        for episode in filter_episodes(episodes, config.keep_of(world)).selected:
            of_task[episode.task] += 1
            if not config.per_task or of_task[episode.task] <= config.per_task:
                selected.append(episode)
        success = fmean(t.success for t in episodes) if episodes else 0.0
        return cls(selected, len(episodes), success)


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
    results: Sequence[Sequence[ExplorationResult]],
) -> list[Trajectory]:
    """The episodes that an iteration learns from; `results` are by iteration, then environment.

    Episodes with the same task and actions are used once.
    """
    chosen = [] if config.merge == "none" and results else list(demonstrations)
    newest = results if config.merge == "all" else results[-1:]
    chosen += [t for iteration in newest for result in iteration for t in result.selected]
    first: dict[tuple[str, str, tuple[str, ...]], Trajectory] = {}
    for episode in chosen:
        actions = tuple(turn.action for turn in episode.turns)
        first.setdefault((episode.env, episode.task, actions), episode)
    return list(first.values())


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


def start(
    learning: Method, config: AgentEvolConfig, console: Console, worlds: Worlds, processes: int = 1
) -> int:
    """Start a new run and move an earlier one in its folder aside. Returns the exit status.

    `learning` is the method by which an iteration learns.
    """
    quiet_libraries()
    join(processes)
    learning.check(config)
    config = within(config, positions_of(load_config(config.model)))
    # An unavailable model or an unusable chat template fails before a folder is created.
    chat_of(config, load_tokenizer(config.model), "")
    demonstrations = _demonstrations(config, console)
    path = Path(config.output_dir)
    on_main_process(lambda: new_folder(config, path, console))
    return _Run(learning, config, RunStore.open(path), console, worlds, demonstrations).run()


def resume(
    learning: Method,
    path: Path,
    config: AgentEvolConfig,
    console: Console,
    worlds: Worlds,
    processes: int = 1,
) -> int:
    """Resume an interrupted run where it stopped. Returns the exit status."""
    quiet_libraries()
    join(processes)
    config = within(config, positions_of(load_config(config.model)))
    demonstrations = _demonstrations(config, console)
    return _Run(learning, config, RunStore.open(path), console, worlds, demonstrations).run()


def _demonstrations(config: AgentEvolConfig, console: Console) -> list[Trajectory]:
    if not config.data:
        return []
    read, reading = read_demonstrations(config.data)
    found = select_demonstrations(config, read.selected)
    found.left_out += read.left_out
    episode_tokenizer = EpisodeTokenizer(
        load_tokenizer(config.model), config, instructions=config.instructions
    )
    tokenized = ((episode, episode_tokenizer.rows(episode)) for episode in found.selected)
    check_turns(tokenized, config.turn_max_tokens)
    reasons = f" (left out: {found.reasons()})" if found.left_out else ""
    notify = notifier(console)
    for message in (
        f"{len(found.selected)} demonstrations{reasons}.",
        *describe_broken(reading.broken),
    ):
        notify(message)
    return found.selected


def explored_episodes(folder: Path) -> list[Trajectory]:
    """The episodes that all processes explored in one environment, in the order of the starts."""
    parts = sorted(folder.glob("process-*"))
    found = [episode for part in parts for episode in collected(RunStore.open(part))[0]]
    return sorted(found, key=lambda t: (t.group, t.sample))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, new or resumed."""

    learning: Method
    config: AgentEvolConfig
    store: RunStore
    console: Console
    worlds: Worlds
    demonstrations: list[Trajectory]

    def run(self) -> int:
        """Run all iterations and write the summary. Returns the exit status."""
        config = self.config
        again = resume_command(self.store.path, config.as_dict())
        try:
            with watching_processes(f"Resume with: {again}"):
                self._iterate()
        except KeyboardInterrupt:
            self.console.print(f"Interrupted. Resume with: [bold]{again}[/]", soft_wrap=True)
            return INTERRUPTED
        if PartialState().is_main_process:
            model = self._folder(config.iterations) / "model"
            shutil.copytree(model, self.store.path / "model", dirs_exist_ok=True)
            conclude_evolution(config, self.store, self.console)
        return 0

    def _iterate(self) -> None:
        """Explore, learn and evaluate in turn; what is finished is kept."""
        config = self.config
        self._evaluate_base()
        results: list[list[ExplorationResult]] = []
        # Without demonstrations there is nothing to learn from before the first exploration.
        for iteration in range(0 if self.demonstrations else 1, config.iterations + 1):
            store = self._iteration_store(iteration)
            if iteration:
                results.append(self._explore(store, iteration))
            if not self._exists(store.path / "iteration.json"):
                rows = self._learn(store, iteration, merged(config, self.demonstrations, results))
                reports = self._evaluate(store, iteration)
                envs = [world.env for world in config.worlds]
                explored = dict(zip(envs, results[-1], strict=True)) if results else {}
                self._finish(store, iteration_row(iteration, reports, explored, rows, store))

    def _folder(self, iteration: int) -> Path:
        return self.store.path / f"iteration-{iteration}"

    def _exists(self, path: Path) -> bool:
        """Whether the first process sees a file or folder: another may see it a moment later."""
        return gathered(path.exists())[0]

    def _iteration_store(self, iteration: int) -> RunStore:
        store = RunStore(self._folder(iteration))

        def create() -> None:
            (store.path / "trajectories").mkdir(parents=True, exist_ok=True)
            run = {"config": self.config.as_dict(), "iteration": iteration}
            store.write_json("run.json", run)

        if not self._exists(store.path / "run.json"):
            on_main_process(create)
        return store

    def _finish(self, store: RunStore, row: Mapping[str, Any]) -> None:
        def write() -> None:
            self.store.append_metrics(row)
            store.write_json("iteration.json", row)

        on_main_process(write)

    def _model_before(self, iteration: int) -> str:
        """The policy that an iteration explores with."""
        before = self._folder(iteration - 1) / "model"
        return str(before) if iteration and before.is_dir() else self.config.model

    @contextmanager
    def _policy(self, model: str) -> Iterator[Policy]:
        """A policy from disk with its engine; both are released at the end."""
        config = replace(self.config, model=model)
        policy = make_policy(config)
        policy.model.to(PartialState().device)
        try:
            yield policy
        finally:
            self.worlds.run(policy.close())
            del policy
            clear_device_cache(garbage_collection=True)

    def _explore(self, store: RunStore, iteration: int) -> list[ExplorationResult]:
        """Play the missing episodes of every environment, and select from all of them."""
        folders = [store.path / "explored" / file_name(world.env) for world in self.config.worlds]
        if not self._exists(store.path / "explored.json"):
            self.console.rule(f"iteration {iteration}: explore")
            with self._policy(self._model_before(iteration)) as policy:
                self.worlds.run(policy.engine.update_weights(policy.model, iteration))
                for folder, world, rollout_runner in zip(
                    folders, self.config.worlds, self.worlds, strict=True
                ):
                    self._play(rollout_runner, policy, world, iteration, folder)
            on_main_process(lambda: store.write_json("explored.json", {"iteration": iteration}))
        return [
            ExplorationResult.of(self.config, world, explored_episodes(folder))
            for folder, world in zip(folders, self.config.worlds, strict=True)
        ]

    def _play(
        self,
        rollout_runner: RolloutRunner,
        policy: Policy,
        world: World,
        iteration: int,
        folder: Path,
    ) -> None:
        """Play this process's share of the missing episodes in one environment.

        Lost episodes are left out of the iteration; raises `ConfigError` if all of them were lost.
        """
        state = PartialState()
        settings = self._collection(world, iteration, folder / f"process-{state.process_index}")
        remaining = missing(starts_of(settings, rollout_runner.tasks), explored_episodes(folder))
        share = remaining[state.process_index :: state.num_processes]
        # All processes have read the same episodes before one of them writes.
        gathered(None)
        if not share:
            return
        policy = policy.in_environment(rollout_runner.card, world.instruction)
        actors = policy.actors(self.config.temperature)
        store = opened(settings)
        lost = play(
            store, rollout_runner, actors, share, settings, policy.instruction, self.console
        )
        if len(lost) == len(share):
            raise ConfigError(
                f"all {len(lost)} episodes of {world.env} were lost; the first error: "
                f"{lost[0].error}"
            )

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

    def _learn(self, store: RunStore, iteration: int, episodes: list[Trajectory]) -> int:
        """Fine-tune the policy on the episodes; returns the number of rows."""
        config = self.config
        base = config.model if config.from_base else self._model_before(iteration)
        model, tokenizer = load_policy(base)
        repeated = weighted(config, episodes, config.seed)
        data = SFTDataset.of(config, tokenizer, FilteredEpisodes(selected=repeated), [])
        folder = store.path
        if self._exists(folder / "model"):
            return len(data.rows)
        self.console.rule(f"iteration {iteration}: learn")
        notify = notifier(self.console)
        for message in data.sentences():
            notify(message)
        settings = config.sft_config(base, str(folder))
        place_model(model, config, PartialState().device)
        if config.lora is not None:
            keep_base(model, tokenizer, base, folder)
        trainer = AgentSFTTrainer(model, tokenizer, data.rows, settings, store.checkpoints)
        checkpoint = gathered(last_checkpoint(store.checkpoints))[0]
        with Trackers(trainer, settings, store, {}), closing(trainer):
            train(trainer, checkpoint, self.learning, settings, store, self.console)
        partial = folder / "model.partial"
        trainer.save_model(str(partial))
        on_main_process(lambda: finish_model_folder(partial, settings))
        on_main_process(lambda: partial.replace(folder / "model"))
        if PartialState().is_main_process:
            shutil.rmtree(store.checkpoints, ignore_errors=True)
        return len(data.rows)

    def _evaluate_base(self) -> None:
        """Evaluate the policy before it learns anything."""
        if self.config.eval.before:
            self._reports(self.config.model, self.store, "eval_before", 0)

    def _evaluate(self, store: RunStore, iteration: int) -> Reports:
        if not self.config.eval.after:
            return {}
        return self._reports(str(store.path / "model"), store, "eval", iteration)

    def _reports(self, model: str, store: RunStore, name: str, version: int) -> Reports:
        """Evaluate a policy, which is loaded unless the reports of all environments are stored."""
        loaded: list[Policy] = []
        with ExitStack() as stack:

            def ready() -> Policy:
                if not loaded:
                    loaded.append(stack.enter_context(self._policy(model)))
                self.worlds.run(loaded[0].engine.update_weights(loaded[0].model, version))
                return loaded[0]

            return evaluate_worlds(self.config, self.worlds, ready, store, self.console, name)


def iteration_row(
    iteration: int,
    reports: Reports,
    explored: Mapping[str, ExplorationResult],
    rows: int,
    store: RunStore,
) -> dict[str, Any]:
    """The metrics of one iteration; `reports` and `explored` are by environment."""
    steps, _ = store.metrics()
    row: dict[str, Any] = {"step": iteration}
    if reports:
        row["success"] = fmean(report.success for report in reports.values())
    if len(reports) > 1:
        row |= {f"success/{env}": report.success for env, report in reports.items()}
    row |= _exploration_metrics(list(explored.values()))
    for env, result in explored.items() if len(explored) > 1 else ():
        row |= {f"{name}/{env}": value for name, value in _exploration_metrics([result]).items()}
    return row | {
        "rows": rows,
        "optimizer_steps": len(steps),
        "loss": steps[-1]["loss"] if steps else 0.0,
        "train_seconds": round(sum(line["seconds"] for line in steps), 1),
    }


def _exploration_metrics(explored: Sequence[ExplorationResult]) -> dict[str, float]:
    played = sum(result.played for result in explored)
    return {
        "explored": played,
        "explored_success": sum(r.success * r.played for r in explored) / played if played else 0.0,
        "kept": sum(len(result.selected) for result in explored),
    }
