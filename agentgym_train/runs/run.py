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
from agentgym_train.evaluation.play import evaluate
from agentgym_train.evaluation.report import EvalReport, Reports, warn_of_cuts
from agentgym_train.evaluation.tables import category_grid
from agentgym_train.models.adapters import keep_base
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.models.model_card import (
    FinishedCheckpoints,
    find_base_again,
    finish_model_folder,
)
from agentgym_train.models.setup import use_attention, warn_of_slow_bfloat16
from agentgym_train.rollout.policy import Policy, make_policy, policy_of
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.curves import Panel, Rows, plot
from agentgym_train.runs.summary import next_commands, show_end
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
from agentgym_train.training.compiling import compile_layers
from agentgym_train.training.head import set_tiles
from agentgym_train.training.trackers import Trackers

_RESULTS = ("model", "eval_after*.json", "trajectories/eval_after*.jsonl", "summary.json")
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
    summary: Callable[[Any, RunStore, Reports, Reports], dict[str, Any]]
    """summary.json, from the evaluations before and after training."""
    panels: Callable[[Rows], list[Panel]]
    """The plots of curves.png."""
    last_words: Callable[[Any, RunStore], list[str]] = lambda config, store: []
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
    quiet_libraries()
    state, path, checkpoint = join(processes), Path(config.output_dir), None
    if resumes:
        checkpoint = checkpoint_of(RunStore.open(path), console)
    else:
        method.check(config)
    policy = load_policy_for(config, worlds, state.device)
    config = replace(config, max_tokens=policy.config.max_tokens)
    make_trainer = method.prepare(policy, config, worlds, notifier(console))
    if not resumes:
        # All checks have passed: only now move an earlier run.
        on_main_process(lambda: new_folder(config, path, console))
    run = Run(config, method, RunStore.open(path), console, worlds, policy)
    try:
        return interruptible(lambda: run.play(make_trainer, checkpoint), config, console)
    finally:
        worlds.run(policy.close())


def interruptible(play: Callable[[], object], config: RunConfig, console: Console) -> int:
    """Play a run, and show after Ctrl-C how it is resumed. Returns the exit status."""
    again = resume_command(Path(config.output_dir), config.as_dict())
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
    place_model(
        policy.model, config, device, keep_attention=loaded is not None and config.attention is None
    )
    return policy


def place_model(
    model: Any, config: RunConfig, device: Any, *, keep_attention: bool = False
) -> None:
    """Move a model to its device, and set its attention kernels and compiled layers."""
    model.to(device)
    computes_in = config.computes_in(on_gpu=device.type == "cuda")
    if computes_in == "bfloat16" and device.type == "cpu":
        warn_of_slow_bfloat16()
    if not keep_attention:
        use_attention(model, config.attention, computes_in)
    set_tiles(compiled=config.compiles)
    if config.compiles:
        compile_layers(model)


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


def train(
    trainer: Any,
    checkpoint: str | None,
    method: Method,
    config: RunConfig,
    store: RunStore,
    console: Console,
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train to the last step, unless the checkpoint is of the last step.

    Raises `KeyboardInterrupt` if Ctrl-C stopped it earlier.
    """
    trainer.remove_callback(PrinterCallback)
    with progress_bar(console) as progress, StopOnInterrupt(progress) as stop:
        if trainer.is_world_process_zero():
            trainer.add_callback(TrainedFurther(config, store))
            trainer.add_callback(Metrics(store, progress, method.shown))
        trainer.add_callback(stop)
        trainer.add_callback(FinishedCheckpoints(config))
        for callback in method.callbacks(trainer, checkpoint, progress):
            trainer.add_callback(callback)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.add_callback(CurrentLearningRate())
        trainer.add_callback(StopAtLastStep())
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
                f"{checkpoint} is damaged ({text}); delete it, and the run resumes from the one "
                "before, or from step 0 if there is none"
            ) from error
    if stop.asked and trainer.state.global_step < trainer.args.max_steps:
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Run:
    """A run in progress."""

    config: RunConfig
    method: Method
    store: RunStore
    console: Console
    worlds: Worlds
    policy: Policy
    is_part: bool = False
    """Whether it is a part of another run, which shows the suggestions itself."""

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
                train(
                    trainer, checkpoint, self.method, self.config, self.store, self.console,
                    callbacks,
                )  # fmt: skip
            trainer.save_model(str(self.store.path / "model"))
            on_main_process(lambda: finish_model_folder(self.store.path / "model", self.config))
            if trainer.state.global_step < trainer.args.max_steps:
                return
            after = self.evaluated(trainer.gathered_model(), trained_steps=trainer.args.max_steps)
            trackers.evaluated(after)
            if trainer.is_world_process_zero():
                self.close(before, after)

    def evaluated(self, model: Any, trained_steps: int | None = None) -> Reports:
        """The evaluation before or after training, by environment."""
        config = self.config
        after = trained_steps is not None
        if not (config.eval.after if after else config.eval.before):
            return {}

        def ready() -> Policy:
            self.worlds.run(self.policy.engine.update_weights(model, trained_steps or 0))
            return self.policy

        return evaluate_worlds(
            config, self.worlds, ready, self.store, self.console,
            "eval_after" if after else "eval_before",
            recorded=f"{config.output_dir}/model" if after else None,
        )  # fmt: skip

    def close(self, before: Reports, after: Reports) -> None:
        """Write the summary, and print results and suggested commands."""
        config, store, console = self.config, self.store, self.console
        store.write_json("summary.json", self.method.summary(config, store, before, after))
        for env in before or after:
            parts = (("before", before), ("after", after))
            reports = {name: found[env] for name, found in parts if env in found}
            console.print(category_grid(reports).as_table())
        for words in self.method.last_words(config, store):
            console.print(words, soft_wrap=True)
        rows, _ = store.metrics()
        envs = [world.env for world in config.worlds]
        title = f"{', '.join([self.method.name, *envs])}, seed {config.seed}"
        picture = plot(rows, self.method.panels(rows) if rows else [], title, store.path, "step")
        commands = [] if self.is_part else next_commands(config, store)
        show_end(store, picture, commands, console)


def evaluate_worlds(
    config: RunConfig,
    worlds: Worlds,
    ready: Callable[[], Policy],
    store: RunStore,
    console: Console,
    name: str,
    *,
    recorded: str | None = None,
) -> Reports:
    """Evaluate a policy in each environment, unless its report is stored. A collective.

    `ready` returns the policy, after its weights were given to the engine, and `recorded` is what
    is recorded as the policy. NAME.json is the report, or of several environments a mapping of
    them, of which each is in NAME-ENV.json as soon as it is there.
    """
    reports: Reports = {}
    several = len(worlds) > 1
    for world, runner in zip(config.worlds, worlds, strict=True):
        env = runner.env_id
        file = f"{name}-{env_file_name(env)}" if several else name
        stored = gathered(store.read_json(f"{file}.json"))[0]
        if stored is not None:
            reports[env] = EvalReport.from_dict(stored)
            continue
        label = f"eval {env.rpartition('/')[2][-20:]}" if several else name.replace("_", " ")
        reports[env], trajectories = evaluate_policy(
            config, world, runner, ready(), console, label, recorded
        )
        if PartialState().is_main_process:
            store.replace_trajectories(file, trajectories)
            store.write_json(f"{file}.json", reports[env].as_dict())
    if several and PartialState().is_main_process:
        every = {env: report.as_dict() for env, report in reports.items()}
        store.write_json(f"{name}.json", every)
    return reports


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
        run, folder = self._store.path, f"step-{max([state.global_step, *reached])}"
        self._store.set_aside(*_RESULTS, folder=folder)
        find_base_again(run / folder / "model", before=run / "model")


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
