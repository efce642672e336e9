"""A training run of one policy, from its config to its summary; resumable at every checkpoint.

It is the same for all training methods; their differences are in `Method`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from errno import ENOSPC
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import yaml
from accelerate import PartialState
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from safetensors import SafetensorError
from transformers import (
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.run_lock import is_unused
from agentgym_env.run_store import RunStore, next_free_name, run_metadata
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import resume_command
from agentgym_train.config.worlds import World, env_file_name
from agentgym_train.evaluation.episode_lines import failed_episode
from agentgym_train.evaluation.play import evaluate
from agentgym_train.evaluation.report import EvalReport, Reports, warn_of_cuts
from agentgym_train.evaluation.tables import category_grid
from agentgym_train.models.adapters import keep_base
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.models.model_card import FinishedCheckpoints, finish_model_folder
from agentgym_train.models.setup import use_attention, warn_of_slow_bfloat16
from agentgym_train.rollout.policy import Policy, make_policy, policy_of
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.comparison import compared_policies, show_episode, show_learning
from agentgym_train.runs.summary import Panel, Rows, next_commands, plot, show_end
from agentgym_train.runs.turn_limit import with_turn_limit
from agentgym_train.runs.watchdog import watching_processes
from agentgym_train.training.callbacks import (
    CurrentLearningRate,
    LastStepReached,
    Metrics,
    Shown,
    StopAtLastStep,
    StopOnInterrupt,
)
from agentgym_train.training.checkpoints import last_checkpoint
from agentgym_train.training.head import set_tiles
from agentgym_train.training.trackers import Trackers
from agentgym_train.training.trainer import compile_layers

_RESULTS = (
    "model", "eval_after*.json", "trajectories/eval_after*.jsonl",
    "trajectories/eval_compare*.jsonl", "comparison*.json", "summary.json",
)  # fmt: skip
"""What a run has once it is trained, the summary last: with it a run counts as complete."""

MakeTrainer = Callable[..., Any]
"""Makes a transformers `Trainer` with `gathered_model()` and `close()` for a run folder."""

Notify = Callable[[str], object]
"""Prints a message for the user."""


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a run that depend on the training method; `config` is the method's config."""

    name: str
    check: Callable[[Any], None]
    """Raise `ConfigError` for values that only the libraries can check, before writing a folder."""
    prepare: Callable[[Policy, Any, Worlds, Notify], MakeTrainer]
    """Check what needs the loaded policy, and return the factory of the trainer."""
    callbacks: Callable[[Any, str | None, Progress], list[TrainerCallback]]
    """The callbacks for a trainer and the checkpoint that it resumes from. One of them writes the
    file that marks a checkpoint as complete."""
    shown: Shown
    """Which metrics of a step are written and shown."""
    summary: Callable[[Any, Rows, Reports, Reports], dict[str, Any]]
    """summary.json, from the metrics and the evaluations before and after training."""
    panels: Callable[[Rows], list[Panel]]
    """The plots of curves.png."""
    last_words: Callable[[Any, Rows], list[str]] = lambda config, rows: []
    """Additional messages at the end of a run, if any."""


def run_method(
    method: Method,
    config: RunConfig,
    console: Console,
    worlds: Worlds,
    processes: int = 1,
    *,
    resumes: bool = False,
) -> int:
    """Start a run, or resume an interrupted one from its last checkpoint. Returns the exit status.

    A new run moves an earlier run in its folder aside.
    """
    run = loaded_run(method, config, console, worlds, processes)
    try:
        make_trainer = run.prepare()
        again = resume_command(Path(config.output_dir), config.as_dict())
        return interruptible(lambda: run.start(make_trainer, resumes=resumes), again, console)
    finally:
        worlds.run(run.policy.close())


def loaded_run(
    method: Method,
    config: RunConfig,
    console: Console,
    worlds: Worlds,
    processes: int = 1,
    loaded: tuple[Any, Any] | None = None,
) -> Run:
    """A run with its policy, for one of `processes`; `loaded` is a model with its tokenizer."""
    quiet_libraries()
    state = join(processes)
    config = with_turn_limit(config)
    method.check(config)
    compared_policies(config)  # raises, before anything is trained
    policy = load_policy_for(config, worlds, state.device, loaded)
    config = replace(config, max_tokens=policy.config.max_tokens)
    return Run(config, method, console, worlds, policy)


def interruptible(play: Callable[[], object], again: str, console: Console) -> int:
    """Play a run, and show after Ctrl-C the command that resumes it. Returns the exit status."""
    try:
        with watching_processes(f"Resume with: {again}"):
            play()
    except KeyboardInterrupt:
        console.print(f"Interrupted. Resume with: [bold]{again}[/]", soft_wrap=True)
        return INTERRUPTED
    return 0


def checkpoint_of(store: RunStore, console: Console) -> str | None:
    """The checkpoint to resume from, which is printed; None if there is none."""
    # The first process chooses: others may see another state of the folder.
    checkpoint = gathered(last_checkpoint(store.checkpoints))[0]
    if checkpoint is None and gathered((store.path / "summary.json").is_file())[0]:
        raise ConfigError(
            f"{store.path} is complete and has no checkpoint to train further from; to do so, "
            f"start a new run with model {store.path}/model and another output_dir"
        )
    if checkpoint is None:
        console.print(
            f"{store.path} has no checkpoint; starting at step 0. Figures and episodes of earlier "
            f"steps, if any, are moved to {store.path}/repeated, and a model to its folder step-0.",
            soft_wrap=True,
        )
    else:
        console.print(f"Resuming from {checkpoint}.", soft_wrap=True)
    return checkpoint


def notifier(console: Console) -> Notify:
    """Prints messages on a console without interpreting markup in them."""
    return lambda message: console.print(message, soft_wrap=True, markup=False, highlight=False)


def new_folder(
    config: RunConfig, path: Path, console: Console, objects: Sequence[str] = ()
) -> None:
    """Create a run folder; an earlier one is moved aside.

    `objects` are settings that were passed as Python objects: no config can restore them.
    """
    if not is_unused(path):
        console.print(
            f"{path} contains an earlier run; moving it to {next_free_name(path)}.", soft_wrap=True
        )
    metadata = run_metadata(config.as_dict())
    store = RunStore.create(path, {**metadata, "objects": list(objects)} if objects else metadata)
    write_config(config.as_dict(), store)


def load_policy_for(
    config: RunConfig,
    worlds: Worlds,
    device: Any,
    loaded: tuple[Any, Any] | None = None,
) -> Policy:
    """Load the policy to train on this process's device; raises if it is not available.

    `loaded` is a model with its tokenizer; the model keeps its attention kernels unless the config
    names others.
    """
    card = next((runner.card for runner in worlds), None)
    own, tools = (card.instruction, card.tools) if card is not None else ("", ())
    if loaded is None:
        policy = make_policy(config, env_instruction=own, tools=tools)
    else:
        policy = policy_of(config, *loaded, env_instruction=own, tools=tools)
    policy.model.to(device)
    computes_in = config.computes_in(on_gpu=device.type == "cuda")
    if computes_in == "bfloat16" and device.type == "cpu":
        warn_of_slow_bfloat16()
    if loaded is None or config.attention is not None:
        use_attention(policy.model, config.attention, computes_in)
    set_tiles(compiled=config.compiles)
    if config.compiles:
        compile_layers(policy.model)
    return policy


def evaluate_policy(
    config: RunConfig,
    world: World,
    rollout_runner: RolloutRunner,
    policy: Policy,
    console: Console,
    label: str = "evaluating",
    name: str | None = None,
) -> tuple[EvalReport, list[Trajectory]]:
    """Evaluate the engine's current weights in one environment of a config. A collective.

    `name` is recorded as the policy, by default the config's model.
    """
    state = PartialState()
    own = policy.in_environment(rollout_runner.card, world.instruction)
    found = evaluate(
        rollout_runner,
        own.actors(config.eval.temperature, name),
        split=world.eval.split,
        horizon=world.eval.horizon,
        samples=world.eval.samples,
        per_category=world.eval.per_category or None,
        instruction=own.instruction,
        console=console,
        label=label,
        rank=state.process_index,
        processes=state.num_processes,
        gathered=gathered,
    )
    rollout_runner.run(policy.engine.sleep())
    if warning := warn_of_cuts(found[0].cut_turns, config.turn_max_tokens):
        console.print(f"[yellow]{escape(label)}: {warning}.[/]", soft_wrap=True)
    return found


@dataclass(slots=True)
class Run:
    """A run with its policy."""

    config: RunConfig
    method: Method
    console: Console
    worlds: Worlds
    policy: Policy
    is_part: bool = False
    """Whether it is a part of another run, which shows the suggestions itself."""

    @property
    def store(self) -> RunStore:
        """The run folder."""
        return RunStore(Path(self.config.output_dir))

    def prepare(self) -> MakeTrainer:
        """Check what needs the loaded policy; returns the factory of the trainer."""
        return self.method.prepare(self.policy, self.config, self.worlds, notifier(self.console))

    def start(
        self,
        make_trainer: MakeTrainer,
        callbacks: Sequence[TrainerCallback] = (),
        objects: Sequence[str] = (),
        *,
        resumes: bool = False,
    ) -> None:
        """Play a new run, whose folder is created, or resume the one in the folder.

        All checks have passed: only now an earlier run is moved. `objects` are as in `new_folder`.
        """
        path, checkpoint = Path(self.config.output_dir), None
        if resumes:
            checkpoint = checkpoint_of(RunStore.open(path), self.console)
        else:
            on_main_process(lambda: new_folder(self.config, path, self.console, objects))
        self.play(make_trainer, checkpoint, callbacks)

    def play(
        self,
        make_trainer: MakeTrainer,
        checkpoint: str | None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        """Evaluate, train, evaluate and summarize.

        If a callback stops the training early, only the model is saved: the run can be resumed.
        """
        before = self.evaluated(self.policy.model)
        if self.config.lora is not None:
            policy = self.policy
            keep_base(policy.model, policy.tokenizer, self.config.model, self.store.path)
        trainer = make_trainer(self.store)
        with Trackers(trainer, self.config, self.store, before) as trackers:
            with closing(trainer):
                self._train(trainer, checkpoint, callbacks)
            trainer.save_model(str(self.store.path / "model"))
            on_main_process(lambda: finish_model_folder(self.store.path / "model", self.config))
            if trainer.state.global_step < trainer.args.max_steps:
                return
            after = self.evaluated(trainer.gathered_model(), trained_steps=trainer.args.max_steps)
            trackers.evaluated(after)
            if trainer.is_world_process_zero():
                self.close(before, after)

    def _train(
        self, trainer: Any, checkpoint: str | None, callbacks: Sequence[TrainerCallback]
    ) -> None:
        """Train to the last step, unless the checkpoint is of the last step.

        Raises `KeyboardInterrupt` if Ctrl-C stopped it earlier.
        """
        config, store, console = self.config, self.store, self.console
        trainer.remove_callback(PrinterCallback)
        with progress_bar(console) as progress, StopOnInterrupt(progress) as stop:
            added: list[TrainerCallback] = []
            if trainer.is_world_process_zero():
                added = [TrainedFurther(config, store), Metrics(store, progress, self.method.shown)]
            added += [stop, FinishedCheckpoints(config)]
            added += [*self.method.callbacks(trainer, checkpoint, progress), *callbacks]
            for callback in [*added, CurrentLearningRate(), StopAtLastStep()]:
                trainer.add_callback(callback)
            try:
                trainer.train(resume_from_checkpoint=checkpoint)
            except LastStepReached:
                console.print(f"All {trainer.state.max_steps} steps are already complete.")
            except (SafetensorError, UnpicklingError, EOFError, RuntimeError) as error:
                text = str(error)
                # torch and safetensors say it in their own ways.
                if "inline_container" in text or "No space left" in text:
                    raise OSError(ENOSPC, "No space left on device", str(store.path)) from error
                damaged = not isinstance(error, RuntimeError) or "PytorchStreamReader" in text
                if checkpoint is None or not damaged:
                    raise
                raise ConfigError(
                    f"{checkpoint} is damaged ({text}); delete it, and the run resumes from the "
                    "one before, or from step 0 if there is none"
                ) from error
        if stop.asked and trainer.state.global_step < trainer.args.max_steps:
            raise KeyboardInterrupt

    def evaluated(self, model: Any, trained_steps: int | None = None) -> Reports:
        """The evaluation before or after training, by environment; what is stored is not repeated.

        A collective. NAME.json is the report, or of several environments a mapping of them, of
        which each is in NAME-ENV.json as soon as it is there.
        """
        config, store, is_after = self.config, self.store, trained_steps is not None
        if not (config.eval.after if is_after else config.eval.before):
            return {}
        name = "eval_after" if is_after else "eval_before"
        is_main, several = PartialState().is_main_process, len(self.worlds) > 1
        reports: Reports = {}
        for world, runner in zip(config.worlds, self.worlds, strict=True):
            env = runner.env_id
            file = f"{name}-{env_file_name(env)}" if several else name
            stored = gathered(store.read_json(f"{file}.json"))[0]
            if stored is not None:
                reports[env] = EvalReport.from_dict(stored)
                continue
            self.worlds.run(self.policy.engine.update_weights(model, trained_steps or 0))
            reports[env], trajectories = evaluate_policy(
                config, world, runner, self.policy, self.console,
                f"eval {env.rpartition('/')[2][-20:]}" if several else name.replace("_", " "),
                f"{config.output_dir}/model" if is_after else None,
            )  # fmt: skip
            if is_main:
                store.replace_trajectories(file, trajectories)
                store.write_json(f"{file}.json", reports[env].as_dict())
                failed = None if is_after or self.is_part else failed_episode(trajectories)
                if failed is not None:
                    show_episode("An episode that fails before training", failed, self.console)
        if several and is_main:
            every = {env: report.as_dict() for env, report in reports.items()}
            store.write_json(f"{name}.json", every)
        return reports

    def close(self, before: Reports, after: Reports) -> None:
        """Write the summary, and print results and suggested commands."""
        config, store, console = self.config, self.store, self.console
        rows, _ = store.metrics()
        store.write_json("summary.json", self.method.summary(config, rows, before, after))
        for env in before or after:
            parts = (("before", before), ("after", after))
            reports = {name: found[env] for name, found in parts if env in found}
            console.print(category_grid(reports).as_table())
        for world, runner in zip(config.worlds, self.worlds, strict=True):
            if runner.env_id in after and not self.is_part:
                show_learning(config, world, runner, store, console, before, after)
        for words in self.method.last_words(config, rows):
            console.print(words, soft_wrap=True)
        envs = [world.env for world in config.worlds]
        title = f"{', '.join([self.method.name, *envs])}, seed {config.seed}"
        picture = plot(rows, self.method.panels(rows) if rows else [], title, store.path, "step")
        commands = [] if self.is_part else next_commands(config, store)
        show_end(store, picture, commands, console)


class TrainedFurther(TrainerCallback):
    """Stores the steps of a run that is trained further, and moves what it had ended with.

    That is no result of the run any more; it is in the folder `step-N` afterwards, N being the last
    step of the metrics. So this comes before `Metrics`, which removes those of steps to repeat.
    """

    def __init__(self, config: RunConfig, store: RunStore) -> None:
        self._config = config
        self._store = store

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Store and move, unless no step is left; the checkpoint is loaded here."""
        if state.global_step >= state.max_steps:
            return
        _write_steps(self._config, self._store)
        # A run whose last checkpoint is lost resumes from an earlier one than its results are of.
        reached = [row["step"] for row in self._store.metrics()[0]]
        folder = f"step-{max([state.global_step, *reached])}"
        self._store.set_aside(*_RESULTS, folder=folder)
        finish_model_folder(self._store.path / folder / "model", self._config)


def _write_steps(config: RunConfig, store: RunStore) -> None:
    """Write a config's number of steps into the folder of its run, if another one is there."""
    metadata, steps = store.read_json("run.json") or {}, config.as_dict()["steps"]
    if metadata.get("config", {}).get("steps", steps) == steps:
        return
    metadata["config"]["steps"] = steps
    # Killed between the two, the run is resumed with its earlier steps.
    write_config(metadata["config"], store)
    store.write_json("run.json", metadata)


def write_config(values: Mapping[str, Any], store: RunStore) -> None:
    """Write a config as config.yaml of its run."""
    store.write_text("config.yaml", yaml.safe_dump(dict(values), sort_keys=False))
