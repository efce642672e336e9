"""A run of AgentEvol, from its config to its summary; goes on wherever it was stopped.

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

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState
from rich.console import Console

from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import trust_option
from agentgym_train.adapter_base import keep_base
from agentgym_train.callbacks import last_checkpoint
from agentgym_train.chat import Chat
from agentgym_train.demonstrations import read_demonstrations
from agentgym_train.evaluate import EvalReport
from agentgym_train.evolve_config import EvolveConfig, World
from agentgym_train.evolve_report import close, iteration_row
from agentgym_train.exploration import Exploration, Found, good, merged, weighted
from agentgym_train.imitation import ImitationTrainer, check_sft
from agentgym_train.keep import Sifted
from agentgym_train.models import load_policy, load_tokenizer
from agentgym_train.quiet import quiet_libraries
from agentgym_train.ranks import gathered, join
from agentgym_train.run import INTERRUPTED, new_folder, say_on, train
from agentgym_train.sft_method import METHOD
from agentgym_train.teaching_rows import TeachingRows, told_of
from agentgym_train.world_play import WorldPlay, file_name
from agentgym_train.worlds import Worlds


def start(config: EvolveConfig, console: Console, worlds: Worlds, processes: int = 1) -> int:
    """A new run; what its folder held is moved aside. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    check_sft(config.trl)
    # A model that is not there, or whose template will not do, is found before a folder is made.
    Chat(load_tokenizer(config.model), keep_reasoning=config.keep_reasoning)
    demonstrations = _demonstrations(config, console)
    gathered(None)
    path = Path(config.output_dir)
    if state.is_main_process:
        new_folder(config, path, console)
    gathered(None)
    play = WorldPlay(config, worlds, console)
    return Evolution(config, RunStore.open(path), console, play, demonstrations).through()


def resume(
    path: Path, config: EvolveConfig, console: Console, worlds: Worlds, processes: int = 1
) -> int:
    """Go on with an interrupted run where it was. Returns the exit status."""
    quiet_libraries()
    join(processes)
    demonstrations = _demonstrations(config, console)
    play = WorldPlay(config, worlds, console)
    return Evolution(config, RunStore.open(path), console, play, demonstrations).through()


def _demonstrations(config: EvolveConfig, console: Console) -> list[Trajectory]:
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

    config: EvolveConfig
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
                f"Stopped. To go on: [bold]agentgym train --resume {self.store.path}"
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
            for (_, collector), (_, exploration) in zip(
                self.play.worlds, self._explorations(iteration), strict=True
            ):
                there = exploration.episodes()
                # All have read the same before one of them writes.
                gathered(None)
                exploration.play(
                    collector,
                    self.play.told_so(policy, collector).players(self.config.temperature),
                    self.play.told(collector),
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
        rows = TeachingRows.of(config, tokenizer, Sifted(kept=often), [])
        if gathered((folder / "model").is_dir())[0]:
            return len(rows.rows)
        say = say_on(self.console)
        for sentence in rows.sentences():
            say(sentence)
        settings = config.imitation(base, str(folder))
        model.to(PartialState().device)
        if config.lora is not None:
            keep_base(model, tokenizer, base, folder)
        trainer = ImitationTrainer(model, tokenizer, rows.rows, settings, store.checkpoints)
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
