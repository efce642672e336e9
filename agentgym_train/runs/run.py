"""A run that trains one policy, from its config to its summary; resumable at every checkpoint.

What is the same for all methods is here; what is a method's own is in its `Method`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from accelerate import PartialState
from rich.console import Console
from transformers import PrinterCallback, TrainerCallback

from agentgym_env.run_lock import is_unused
from agentgym_env.run_store import RunStore, next_free_name, run_facts
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import trust_option
from agentgym_train.config.base import RunConfig
from agentgym_train.evaluation.evaluate import EvalReport, evaluate
from agentgym_train.models.distributed import gathered, join
from agentgym_train.models.loading import keep_base, quiet_libraries, use_attention
from agentgym_train.rollout.policy import Policy, make_policy
from agentgym_train.rollout.runner import RolloutRunner, progress_bar
from agentgym_train.trainers.callbacks import (
    LastStepReached,
    MakeTrainer,
    Method,
    Metrics,
    Say,
    StopAtLastStep,
    StopOnInterrupt,
    last_checkpoint,
)
from agentgym_train.trainers.run_summary import show_end, success_table

INTERRUPTED = 130
"""Exit status of a run that Ctrl-C stopped, by the shell's convention."""

_METHODS: Final = {
    "rl": "agentgym_train.trainers.trainer",
    "sft": "agentgym_train.trainers.sft",
    "dpo": "agentgym_train.trainers.dpo",
}
"""The module with the `METHOD` of each training method; each loads other libraries."""


def start(
    config: RunConfig, console: Console, rollout_runner: RolloutRunner | None, processes: int = 1
) -> int:
    """A new run; what its folder held is moved aside. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    method = method_of(config)
    method.check(config)
    path = Path(config.output_dir)
    policy = load_policy_for(config, rollout_runner, state.device)
    make_trainer = method.prepare(policy, config, rollout_runner, say_on(console))
    # What could be refused has been by now; an earlier run is touched only for a real one.
    gathered(None)
    if state.is_main_process:
        new_folder(config, path, console)
    gathered(None)
    run = Run(config, method, RunStore.open(path), console, rollout_runner, policy)
    return run.play(make_trainer, checkpoint=None)


def resume(
    path: Path,
    config: RunConfig,
    console: Console,
    rollout_runner: RolloutRunner | None,
    processes: int = 1,
) -> int:
    """Go on with an interrupted run from its last checkpoint. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    method = method_of(config)
    store = RunStore.open(path)
    # The first process chooses: another may see the folder a moment later.
    checkpoint = gathered(last_checkpoint(store.checkpoints))[0]
    if checkpoint is None:
        console.print(f"{path} has no checkpoint yet; it starts at step 0.", soft_wrap=True)
    else:
        console.print(f"Going on from {checkpoint}.", soft_wrap=True)
    policy = load_policy_for(config, rollout_runner, state.device)
    make_trainer = method.prepare(policy, config, rollout_runner, say_on(console))
    return Run(config, method, store, console, rollout_runner, policy).play(
        make_trainer, checkpoint
    )


def say_on(console: Console) -> Say:
    """Tells sentences of any text, whatever brackets are in it."""
    return lambda sentence: console.print(sentence, soft_wrap=True, markup=False, highlight=False)


def method_of(config: RunConfig) -> Method:
    """What is the method's own."""
    module = importlib.import_module(_METHODS[config.method])
    method: Method = module.METHOD
    return method


def new_folder(config: RunConfig, path: Path, console: Console) -> None:
    """Begin a run folder; an earlier one is moved aside."""
    if not is_unused(path):
        console.print(
            f"{path} holds an earlier run; it is moved to {next_free_name(path)}.", soft_wrap=True
        )
    RunStore.create(path, run_facts(config.as_dict()))
    (path / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))


def load_policy_for(config: RunConfig, rollout_runner: RolloutRunner | None, device: Any) -> Policy:
    """The policy to train, on this process's device; raises when the model is not there."""
    own = rollout_runner.card.instruction if rollout_runner is not None else ""
    policy = make_policy(config, env_instruction=own, engine=config.engine_settings())
    policy.model.to(device)
    computes_in = config.computes_in(on_gpu=device.type == "cuda")
    use_attention(policy.model, config.attention, computes_in)
    return policy


def evaluate_policy(
    config: RunConfig,
    policy: Policy,
    rollout_runner: RolloutRunner,
    console: Console,
    label: str = "evaluating",
) -> tuple[EvalReport, list[Trajectory]]:
    """Evaluate the weights that the engine has, as a run's config says. A collective."""
    state = PartialState()
    found = evaluate(
        rollout_runner,
        policy.actors(config.eval_temperature),
        split=config.eval_split,
        horizon=config.fixed_eval_horizon,
        samples=config.eval_samples,
        per_category=config.eval_per_category or None,
        instruction=policy.instruction,
        console=console,
        label=label,
        rank=state.process_index,
        processes=state.num_processes,
        gathered=gathered,
    )
    rollout_runner.run(policy.engine.sleep())
    return found


def train(
    trainer: Any,
    checkpoint: str | None,
    method: Method,
    store: RunStore,
    console: Console,
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train to the last step, if the checkpoint is not there yet.

    Raises `KeyboardInterrupt` when Ctrl-C ended it before.
    """
    trainer.remove_callback(PrinterCallback)
    with progress_bar(console) as progress, StopOnInterrupt(progress) as stop:
        if trainer.is_world_process_zero():
            trainer.add_callback(Metrics(store, progress, method.shown))
        trainer.add_callback(stop)
        for callback in method.callbacks(trainer, checkpoint, progress):
            trainer.add_callback(callback)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.add_callback(StopAtLastStep())
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except LastStepReached:
            console.print(f"All {trainer.state.max_steps} steps are trained already.")
    if stop.asked and trainer.state.global_step < trainer.args.max_steps:
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Run:
    """One run while it goes on."""

    config: RunConfig
    method: Method
    store: RunStore
    console: Console
    rollout_runner: RolloutRunner | None
    """None where nothing is played."""
    policy: Policy

    def play(self, make_trainer: MakeTrainer, checkpoint: str | None) -> int:
        """Evaluate, train, evaluate and sum up. Returns the exit status."""
        try:
            before = self.evaluated(self.policy.model)
            if self.config.lora is not None:
                policy = self.policy
                keep_base(policy.model, policy.tokenizer, self.config.model, self.store.path)
            trainer = make_trainer(self.store)
            with closing(trainer):
                train(trainer, checkpoint, self.method, self.store, self.console)
            trainer.save_model(str(self.store.path / "model"))
            after = self.evaluated(trainer.gathered_model(), trained_steps=trainer.args.max_steps)
        except KeyboardInterrupt:
            self.console.print(
                f"Interrupted. Resume with: [bold]agentgym train --resume {self.store.path}"
                f"{trust_option(self.config.as_dict())}[/]",
                soft_wrap=True,
            )
            return INTERRUPTED
        finally:
            if self.rollout_runner is not None:
                self.rollout_runner.run(self.policy.engine.close())
        if trainer.is_world_process_zero():
            self.close(before, after)
        return 0

    def evaluated(self, model: Any, trained_steps: int | None = None) -> EvalReport | None:
        """The evaluation before or after training; one that is on disk is not played again."""
        config, rollout_runner, policy = self.config, self.rollout_runner, self.policy
        after = trained_steps is not None
        if rollout_runner is None or not (config.eval_after if after else config.eval_before):
            return None
        name = "eval_after" if after else "eval_before"
        kept = gathered(self.store.read_json(f"{name}.json"))[0]
        if kept is not None:
            return EvalReport.from_dict(kept)
        rollout_runner.run(policy.engine.update_weights(model, trained_steps or 0))
        report, trajectories = evaluate_policy(
            config, policy, rollout_runner, self.console, name.replace("_", " ")
        )
        if PartialState().is_main_process:
            self.store.append_trajectories(name, trajectories)
            self.store.write_json(f"{name}.json", report.as_dict())
        return report

    def close(self, before: EvalReport | None, after: EvalReport | None) -> None:
        """Write the summary, and say what came out and what to do next."""
        config, store, console = self.config, self.store, self.console
        store.write_json("summary.json", self.method.summary(config, store, before, after))
        reports = {name: r for name, r in (("before", before), ("after", after)) if r is not None}
        if reports:
            console.print(success_table(reports))
        last_words = self.method.last_words(store)
        if last_words is not None:
            console.print(last_words)
        picture = self.method.plot(config, store)
        show_end(store, picture, self.method.next_commands(config, store), console)
