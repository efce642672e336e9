"""AgentEvol: collect episodes, keep the good ones, imitate them, and start again.

```
RUN/iteration-K/explored/ENV/    what iteration K played, with the policy of K - 1
RUN/iteration-K/metrics.jsonl    its learning, with checkpoints/ until it is through
RUN/iteration-K/model/           what it learned
RUN/iteration-K/iteration.json   its figures; the iteration is done
RUN/metrics.jsonl                one line an iteration
RUN/model/                       the last iteration's policy
```
Each stage reads what the one before wrote and nothing else, so a run that is killed anywhere goes
on to what the unbroken one would have become.
"""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from rich.table import Table

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import trust_option
from agentgym_train.config.base import PolicyConfig
from agentgym_train.config.methods import AgentEvolConfig, World
from agentgym_train.config.values import EpisodeFilter
from agentgym_train.data.collect import (
    CollectConfig,
    FilteredEpisodes,
    collected,
    filter_episodes,
    missing,
    opened,
    play,
    starts_of,
)
from agentgym_train.data.datasets import SFTDataset, read_demonstrations, told_of
from agentgym_train.distributed import gathered, join
from agentgym_train.evaluation.evaluate import EvalReport, evaluate
from agentgym_train.models import keep_base, load_policy, load_tokenizer, quiet_libraries
from agentgym_train.rollout.actors import ActorFactory, draw_seed
from agentgym_train.rollout.chat import chat_of
from agentgym_train.rollout.policy import Policy, make_policy
from agentgym_train.rollout.runner import RolloutRunner, Worlds
from agentgym_train.run import INTERRUPTED, new_folder, say_on, train
from agentgym_train.trainers.callbacks import last_checkpoint
from agentgym_train.trainers.sft import METHOD, AgentSFTTrainer, check_sft


@dataclass(frozen=True, slots=True)
class Exploration:
    """What one iteration plays in one environment."""

    config: AgentEvolConfig
    world: World
    iteration: int
    folder: Path

    def settings(self, rank: int = 0) -> CollectConfig:
        """As a collection: the tasks, worlds and draws depend on seed and iteration alone."""
        config, world = self.config, self.world
        return CollectConfig(
            env=world.env,
            **{f.name: getattr(config, f.name) for f in fields(PolicyConfig) if f.name != "model"},
            model=f"iteration {self.iteration - 1}",
            output_dir=str(self.folder / f"process-{rank}"),
            split=world.split,
            n=world.tasks or None,
            samples=config.samples,
            horizon=world.horizon,
            seed=draw_seed("evolve", config.seed, self.iteration),
            env_kwargs=world.env_kwargs,
        )

    def episodes(self) -> list[Trajectory]:
        """What all processes have played so far, in the order of the starts."""
        found: list[Trajectory] = []
        for part in sorted(self.folder.glob("process-*")):
            found += collected(RunStore.open(part))[0]
        return sorted(found, key=lambda t: (t.group, t.sample))

    def play(
        self,
        rollout_runner: RolloutRunner,
        actors: ActorFactory,
        told: str,
        console: Console,
        *,
        rank: int,
        processes: int,
        there: Sequence[Trajectory],
    ) -> None:
        """Play this process's share of what is not there yet.

        What was lost is left out of the iteration; raises `ConfigError` if that was everything.
        """
        settings = self.settings(rank)
        left = missing(starts_of(settings, rollout_runner.tasks), there)[rank::processes]
        if not left:
            return
        store = opened(settings)
        lost = play(store, rollout_runner, actors, left, settings, told, console)
        if len(lost) == len(left):
            raise ConfigError(
                f"all {len(lost)} episodes of {self.world.env} were lost; the first to: "
                f"{lost[0].error}"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """What an exploration came to."""

    kept: list[Trajectory]
    played: int
    success: float
    """Of all that were played."""

    @classmethod
    def of(cls, config: AgentEvolConfig, world: World, episodes: Sequence[Trajectory]) -> Found:
        """The good episodes, at most `per_task` of each task."""
        kept: list[Trajectory] = []
        of_task: Counter[str] = Counter()
        for episode in filter_episodes(episodes, config.keep_of(world)).kept:
            of_task[episode.task] += 1
            if not config.per_task or of_task[episode.task] <= config.per_task:
                kept.append(episode)
        success = fmean(t.success for t in episodes) if episodes else 0.0
        return cls(kept, len(episodes), success)


def good(config: AgentEvolConfig, episodes: Sequence[Trajectory]) -> FilteredEpisodes:
    """The demonstrations that are good by the rules of their environments, once each.

    Those of environments that are not explored have to have solved their task.
    """
    rules = {world.env: config.keep_of(world) for world in config.worlds}
    sifted = FilteredEpisodes()
    for env in dict.fromkeys(episode.env for episode in episodes):
        own = filter_episodes(
            [e for e in episodes if e.env == env], rules.get(env, EpisodeFilter(success=True))
        )
        sifted.kept += own.kept
        sifted.left_out += own.left_out
    return sifted


def merged(
    config: AgentEvolConfig, demonstrations: Sequence[Trajectory], found: Sequence[Sequence[Found]]
) -> list[Trajectory]:
    """What an iteration learns: of `found` by iteration and environment, the last is the newest.

    The same episode, by task and actions, is learned once.
    """
    chosen = [] if config.merge == "none" else list(demonstrations)
    newest = found if config.merge == "all" else found[-1:]
    chosen += [t for iteration in newest for world in iteration for t in world.kept]
    first: dict[tuple[str, str, tuple[str, ...]], Trajectory] = {}
    for episode in chosen:
        actions = tuple(turn.action for turn in episode.turns)
        first.setdefault((episode.env, episode.task, actions), episode)
    return list(first.values())


def weighted(
    config: AgentEvolConfig, episodes: Sequence[Trajectory], seed: int
) -> list[Trajectory]:
    """Each episode as often as the weight of its environment says, in the same order."""
    weights = {world.env: world.weight for world in config.worlds}
    often: list[Trajectory] = []
    for number, episode in enumerate(episodes):
        whole, part = divmod(weights.get(episode.env, 1.0), 1.0)
        drawn = draw_seed("weight", seed, number) / 2**63 < part
        often += [episode] * (int(whole) + drawn)
    return often


def iteration_row(
    iteration: int,
    reports: Mapping[str, EvalReport],
    found: Sequence[Found],
    rows: int,
    store: RunStore,
) -> dict[str, Any]:
    """The figures of one iteration; `found` is what it explored."""
    learned, _ = store.metrics()
    row: dict[str, Any] = {"step": iteration}
    if reports:
        row["success"] = fmean(report.success for report in reports.values())
        row |= {f"success/{env}": report.success for env, report in reports.items()}
    row |= {
        "explored": sum(one.played for one in found),
        "explored_success": fmean(one.success for one in found) if found else 0.0,
        "kept": sum(len(one.kept) for one in found),
        "rows": rows,
        "optimizer_steps": len(learned),
        "loss": learned[-1]["loss"] if learned else 0.0,
        "train_seconds": round(sum(line["seconds"] for line in learned), 1),
    }
    return row


def close(config: AgentEvolConfig, store: RunStore, console: Console) -> None:
    """Write the summary, and say what came out and what to do next."""
    rows, _ = store.metrics()
    before = store.read_json("eval_before.json")
    base = {env: report["success"] for env, report in (before or {}).items()}
    summary = {
        "method": config.method,
        "success_before": fmean(base.values()) if base else None,
        "success_after": rows[-1].get("success") if rows else None,
        "train_seconds": round(sum(row["train_seconds"] for row in rows), 1),
        "seed": config.seed,
        "envs": [world.env for world in config.worlds],
        "before": before,
        "iterations": rows,
    }
    console.print(_table(config, base, rows))
    picture = _plot(config, base, rows, store.path)
    store.write_json("summary.json", summary)
    console.print(f"Figures: {store.path}/summary.json   Curves: {picture}", soft_wrap=True)
    console.print("What next:")
    world = config.worlds[0]
    told = ' --instruction ""' if config.instruction == "" else ""
    console.print(
        f"  [bold]agentgym eval --env {world.env} --policy {store.path}/model --split "
        f"{world.split} --horizon {config.eval_horizon_of(world)}{told}[/]\n"
        "      evaluate the policy on another split",
        soft_wrap=True,
        highlight=False,
    )


def _table(
    config: AgentEvolConfig, base: Mapping[str, float], rows: Sequence[Mapping[str, Any]]
) -> Table:
    envs = [world.env for world in config.worlds]
    table = Table(title="AgentEvol: success on held-out tasks")
    for name in ("iteration", "explored", "kept", "learned"):
        table.add_column(name, justify="right")
    for env in envs:
        table.add_column(env, justify="right")
    if base:
        table.add_row("base", "", "", "", *(f"{base[env]:.2f}" for env in envs))
    for row in rows:
        cells = [f"{row.get(f'success/{env}', float('nan')):.2f}" for env in envs]
        figures = (f"{row[name]:.0f}" for name in ("step", "explored", "kept", "rows"))
        table.add_row(*figures, *cells)
    return table


def _plot(
    config: AgentEvolConfig,
    base: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
) -> Path | None:
    """Success of every iteration, a line an environment; the base's level is dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if "success" in row]
    if not shown:
        return None
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    steps = [row["step"] for row in shown]
    for number, world in enumerate(config.worlds):
        values = [row[f"success/{world.env}"] for row in shown]
        axis.plot(steps, values, "o-", color=f"C{number}", label=world.env)
        if world.env in base:
            axis.axhline(base[world.env], color=f"C{number}", linestyle="--", linewidth=1)
    axis.set_xticks(steps)
    axis.set_xlabel("iteration (dashed: the base policy)")
    axis.set_ylabel("success on held-out tasks")
    axis.set_ylim(-0.02, 1.02)
    axis.legend(frameon=False)
    axis.set_title(f"AgentEvol, seed {config.seed}", loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    path = folder / "curves.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


@dataclass(frozen=True, slots=True)
class WorldPlay:
    """One run's environments, and how its policies play them."""

    config: AgentEvolConfig
    worlds: Worlds
    console: Console

    @contextmanager
    def policy(self, model: str, version: int) -> Iterator[Policy]:
        """A policy from disk with an engine that has its weights; both are given up again."""
        config = replace(self.config, model=model)
        policy = make_policy(config, engine=config.engine_settings())
        policy.model.to(PartialState().device)
        try:
            self.worlds.run(policy.engine.update_weights(policy.model, version))
            yield policy
        finally:
            self.worlds.run(policy.engine.close())
            del policy
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def reports(
        self, model: str, store: RunStore, name: str, version: int
    ) -> dict[str, EvalReport]:
        """The evaluation of a policy in every environment; those on disk are not played again."""
        reports: dict[str, EvalReport] = {}
        policy: Policy | None = None
        state = PartialState()
        with ExitStack() as held:
            for world, rollout_runner in self.worlds:
                file = f"{name}-{file_name(world.env)}"
                kept = gathered(store.read_json(f"{file}.json"))[0]
                if kept is not None:
                    reports[world.env] = EvalReport.from_dict(kept)
                    continue
                policy = policy or held.enter_context(self.policy(model, version))
                here = policy.in_environment(rollout_runner.card.instruction)
                report, trajectories = evaluate(
                    rollout_runner,
                    here.actors(self.config.eval_temperature),
                    split=world.eval_split,
                    horizon=self.config.eval_horizon_of(world),
                    samples=self.config.eval_samples,
                    per_category=self.config.eval_per_category or None,
                    instruction=here.instruction,
                    console=self.console,
                    label=f"eval {world.env.rpartition('/')[2][-20:]}",
                    rank=state.process_index,
                    processes=state.num_processes,
                    gathered=gathered,
                )
                if state.is_main_process:
                    store.append_trajectories(file, trajectories)
                    store.write_json(f"{file}.json", report.as_dict())
                reports[world.env] = report
        return reports


def file_name(env: str) -> str:
    """An environment's id as a name of a file."""
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in env)


def start(config: AgentEvolConfig, console: Console, worlds: Worlds, processes: int = 1) -> int:
    """A new run; what its folder held is moved aside. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    check_sft(config.trainer_args)
    # A model that is not there, or whose template will not do, is found before a folder is made.
    chat_of(config, load_tokenizer(config.model), "")
    demonstrations = _demonstrations(config, console)
    gathered(None)
    path = Path(config.output_dir)
    if state.is_main_process:
        new_folder(config, path, console)
    gathered(None)
    play = WorldPlay(config, worlds, console)
    return Evolution(config, RunStore.open(path), console, play, demonstrations).through()


def resume(
    path: Path, config: AgentEvolConfig, console: Console, worlds: Worlds, processes: int = 1
) -> int:
    """Go on with an interrupted run where it was. Returns the exit status."""
    quiet_libraries()
    join(processes)
    demonstrations = _demonstrations(config, console)
    play = WorldPlay(config, worlds, console)
    return Evolution(config, RunStore.open(path), console, play, demonstrations).through()


def _demonstrations(config: AgentEvolConfig, console: Console) -> list[Trajectory]:
    if not config.data:
        return []
    read, reading = read_demonstrations(config.data)
    sifted = good(config, read.kept)
    say = say_on(console)
    left_out = sifted.left_out + read.left_out
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    say(f"{len(sifted.kept)} demonstrations{f' (left out: {reasons})' if reasons else ''}.")
    for sentence in told_of(reading.broken):
        say(sentence)
    return sifted.kept


@dataclass(frozen=True, slots=True)
class Evolution:
    """One run while it goes on."""

    config: AgentEvolConfig
    store: RunStore
    console: Console
    play: WorldPlay
    demonstrations: list[Trajectory]

    def through(self) -> int:
        """All iterations, and the summary. Returns the exit status."""
        try:
            self._evaluated_base()
            # Without demonstrations there is nothing to learn before the first exploration.
            first = 0 if self.demonstrations else 1
            for iteration in range(first, self.config.iterations + 1):
                if not gathered(self._done(iteration))[0]:
                    self._iterate(iteration)
        except KeyboardInterrupt:
            self.console.print(
                f"Interrupted. Resume with: [bold]agentgym train --resume {self.store.path}"
                f"{trust_option(self.config.as_dict())}[/]",
                soft_wrap=True,
            )
            return INTERRUPTED
        if PartialState().is_main_process:
            last = self._folder(self.config.iterations) / "model"
            shutil.copytree(last, self.store.path / "model", dirs_exist_ok=True)
            close(self.config, self.store, self.console)
        return 0

    def _folder(self, iteration: int) -> Path:
        return self.store.path / f"iteration-{iteration}"

    def _done(self, iteration: int) -> bool:
        return (self._folder(iteration) / "iteration.json").is_file()

    def _iterate(self, iteration: int) -> None:
        """Explore, learn and evaluate; what is there already is not done again."""
        config = self.config
        if PartialState().is_main_process:
            self._folder(iteration).mkdir(exist_ok=True)
            (self._folder(iteration) / "trajectories").mkdir(exist_ok=True)
            self._store(iteration).write_json(
                "run.json", {"config": config.as_dict(), "iteration": iteration}
            )
        gathered(None)
        if iteration:
            self.console.rule(f"iteration {iteration}: explore")
            self._explore(iteration)
        found = [self._found(i) for i in range(1, iteration + 1)]
        self.console.rule(f"iteration {iteration}: learn")
        rows = self._learn(iteration, merged(config, self.demonstrations, found))
        reports = self._evaluate(iteration)
        if PartialState().is_main_process:
            newest = found[-1] if found else []
            row = iteration_row(iteration, reports, newest, rows, self._store(iteration))
            self.store.append_metrics(row)
            self._store(iteration).write_json("iteration.json", row)
        gathered(None)

    def _store(self, iteration: int) -> RunStore:
        return RunStore(self._folder(iteration))

    def _model_before(self, iteration: int) -> str:
        """The policy that an iteration explores with."""
        before = self._folder(iteration - 1) / "model"
        return str(before) if iteration and before.is_dir() else self.config.model

    def _explorations(self, iteration: int) -> list[tuple[World, Exploration]]:
        folder = self._folder(iteration) / "explored"
        return [
            (world, Exploration(self.config, world, iteration, folder / file_name(world.env)))
            for world in self.config.worlds
        ]

    def _explore(self, iteration: int) -> None:
        """Play what is not there yet, in one environment after the other."""
        state = PartialState()
        marker = self._folder(iteration) / "explored.json"
        if gathered(marker.is_file())[0]:
            return
        with self.play.policy(self._model_before(iteration), iteration) as policy:
            for (_, rollout_runner), (_, exploration) in zip(
                self.play.worlds, self._explorations(iteration), strict=True
            ):
                there = exploration.episodes()
                # All have read the same before one of them writes.
                gathered(None)
                here = policy.in_environment(rollout_runner.card.instruction)
                exploration.play(
                    rollout_runner,
                    here.actors(self.config.temperature),
                    here.instruction,
                    self.console,
                    rank=state.process_index,
                    processes=state.num_processes,
                    there=there,
                )
        gathered(None)
        if state.is_main_process:
            self._store(iteration).write_json("explored.json", {"iteration": iteration})
        gathered(None)

    def _found(self, iteration: int) -> list[Found]:
        """What an iteration's exploration came to, environment by environment."""
        return [
            Found.of(self.config, world, exploration.episodes())
            for world, exploration in self._explorations(iteration)
        ]

    def _learn(self, iteration: int, episodes: list[Trajectory]) -> int:
        """Fit the policy to the episodes; how many rows they were."""
        config, folder, store = self.config, self._folder(iteration), self._store(iteration)
        base = config.model if config.from_base else self._model_before(iteration)
        model, tokenizer = load_policy(base)
        often = weighted(config, episodes, config.seed)
        rows = SFTDataset.of(config, tokenizer, FilteredEpisodes(kept=often), [])
        if gathered((folder / "model").is_dir())[0]:
            return len(rows.rows)
        say = say_on(self.console)
        for sentence in rows.sentences():
            say(sentence)
        settings = config.imitation(base, str(folder))
        model.to(PartialState().device)
        if config.lora is not None:
            keep_base(model, tokenizer, base, folder)
        trainer = AgentSFTTrainer(model, tokenizer, rows.rows, settings, store.checkpoints)
        checkpoint = gathered(last_checkpoint(store.checkpoints))[0]
        with closing(trainer):
            train(trainer, checkpoint, METHOD, store, self.console)
        partial = folder / "model.partial"
        trainer.save_model(str(partial))
        gathered(None)
        if PartialState().is_main_process:
            partial.replace(folder / "model")
            shutil.rmtree(store.checkpoints, ignore_errors=True)
        gathered(None)
        return len(rows.rows)

    def _evaluated_base(self) -> None:
        """The evaluation before anything is learned."""
        if (
            self.config.eval_before
            and gathered(self.store.read_json("eval_before.json"))[0] is None
        ):
            reports = self.play.reports(self.config.model, self.store, "eval_before", 0)
            if PartialState().is_main_process:
                self.store.write_json(
                    "eval_before.json", {env: report.as_dict() for env, report in reports.items()}
                )

    def _evaluate(self, iteration: int) -> dict[str, EvalReport]:
        if not self.config.eval_after:
            return {}
        model = str(self._folder(iteration) / "model")
        return self.play.reports(model, self._store(iteration), "eval", iteration)
