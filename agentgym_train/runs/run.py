"""A training run of one policy, from its config to its summary; resumable at every checkpoint.

It is the same for all training methods; their differences are in `Method`.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, is_dataclass, replace
from errno import ENOSPC
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
import yaml
from accelerate import PartialState
from rich.console import Console
from safetensors import SafetensorError
from transformers import PrinterCallback, TrainerCallback

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.registration import load_named
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_env.run_store import RunStore, next_free_name, run_metadata
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import trust_option
from agentgym_train.algorithms import ALGORITHMS, Algorithm
from agentgym_train.config.base import RunConfig
from agentgym_train.config.methods import TRAINERS, AgentEvolConfig, RLConfig
from agentgym_train.config.values import ANOTHER_FOLDER, INTERRUPTED
from agentgym_train.evaluation.evaluate import EvalReport, evaluate
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import keep_base, load_tokenizer, quiet_libraries, use_attention
from agentgym_train.models.model_card import FinishedCheckpoints, finish_model_folder
from agentgym_train.rollout.agent import Agent
from agentgym_train.rollout.horizon import (
    Adaptive,
    Fixed,
    Horizon,
    Linear,
    ScalingInterStepwise,
    as_horizon,
)
from agentgym_train.rollout.policy import Policy, make_policy, policy_of
from agentgym_train.rollout.runner import RolloutRunner, progress_bar
from agentgym_train.runs.preflight import place, prepared
from agentgym_train.trainers.callbacks import (
    LastStepReached,
    MakeTrainer,
    Method,
    Metrics,
    Notify,
    StopAtLastStep,
    StopOnInterrupt,
    last_checkpoint,
)
from agentgym_train.trainers.run_summary import show_end, success_table


def start(
    config: RunConfig, console: Console, rollout_runner: RolloutRunner | None, processes: int = 1
) -> int:
    """Start a new run; an earlier run in the folder is moved aside. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    method = method_of(config)
    method.check(config)
    path = Path(config.output_dir)
    policy = load_policy_for(config, rollout_runner, state.device)
    make_trainer = method.prepare(policy, config, rollout_runner, notifier(console))
    # All checks have passed: only now move an earlier run.
    on_main_process(lambda: new_folder(config, path, console))
    run = Run(config, method, RunStore.open(path), console, rollout_runner, policy)
    return run.command(make_trainer, checkpoint=None)


def resume(
    path: Path,
    config: RunConfig,
    console: Console,
    rollout_runner: RolloutRunner | None,
    processes: int = 1,
) -> int:
    """Resume an interrupted run from its last checkpoint. Returns the exit status."""
    quiet_libraries()
    state = join(processes)
    method = method_of(config)
    store = RunStore.open(path)
    checkpoint = _checkpoint(store, console)
    policy = load_policy_for(config, rollout_runner, state.device)
    make_trainer = method.prepare(policy, config, rollout_runner, notifier(console))
    run = Run(config, method, store, console, rollout_runner, policy)
    return run.command(make_trainer, checkpoint)


def _checkpoint(store: RunStore, console: Console) -> str | None:
    """The checkpoint to resume from, which is printed; None if there is none."""
    # The first process chooses: others may see another state of the folder.
    checkpoint = gathered(last_checkpoint(store.checkpoints))[0]
    if checkpoint is None and gathered((store.path / "summary.json").is_file())[0]:
        raise ConfigError(
            f"{store.path} is complete and has no checkpoint to resume from; to train further, "
            f"start a new run with model {store.path}/model and another output_dir"
        )
    if checkpoint is None:
        console.print(
            f"{store.path} has no checkpoint; starting at step 0. Figures, episodes and a model "
            f"of earlier steps, if any, are moved to {store.path}/repeated.",
            soft_wrap=True,
        )
    else:
        console.print(f"Resuming from {checkpoint}.", soft_wrap=True)
    return checkpoint


def notifier(console: Console) -> Notify:
    """Prints messages on a console without interpreting markup in them."""
    return lambda message: console.print(message, soft_wrap=True, markup=False, highlight=False)


def method_of(config: RunConfig) -> Method:
    """The `Method` of a config."""
    module = importlib.import_module(TRAINERS[config.method])
    method: Method = module.METHOD
    return method


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
    RunStore.create(path, {**metadata, "objects": list(objects)} if objects else metadata)
    (path / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))


def load_policy_for(
    config: RunConfig,
    rollout_runner: RolloutRunner | None,
    device: Any,
    loaded: tuple[Any, Any] | None = None,
) -> Policy:
    """Load the policy to train on this process's device; raises if it is not available.

    `loaded` is a model with its tokenizer; the model keeps its attention kernels unless the config
    names others.
    """
    own = rollout_runner.card.instruction if rollout_runner is not None else ""
    engine = config.engine_settings()
    if loaded is None:
        policy = make_policy(config, env_instruction=own, engine=engine)
    else:
        policy = policy_of(config, *loaded, env_instruction=own, engine=engine)
    policy.model.to(device)
    if loaded is None or config.attention is not None:
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
    """Evaluate the engine's current weights with the settings of a config. A collective."""
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
            trainer.add_callback(Metrics(store, progress, method.shown))
        trainer.add_callback(stop)
        trainer.add_callback(FinishedCheckpoints(config))
        for callback in method.callbacks(trainer, checkpoint, progress):
            trainer.add_callback(callback)
        for callback in callbacks:
            trainer.add_callback(callback)
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
    rollout_runner: RolloutRunner | None
    """None for SFT and DPO without an environment."""
    policy: Policy

    def command(self, make_trainer: MakeTrainer, checkpoint: str | None) -> int:
        """Play the run and close the engine. Returns the exit status."""
        try:
            self.play(make_trainer, checkpoint)
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
        return 0

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
        with closing(trainer):
            train(
                trainer, checkpoint, self.method, self.config, self.store, self.console, callbacks
            )
        trainer.save_model(str(self.store.path / "model"))
        on_main_process(lambda: finish_model_folder(self.store.path / "model", self.config))
        if trainer.state.global_step < trainer.args.max_steps:
            return
        after = self.evaluated(trainer.gathered_model(), trained_steps=trainer.args.max_steps)
        if trainer.is_world_process_zero():
            self.close(before, after)

    def evaluated(self, model: Any, trained_steps: int | None = None) -> EvalReport | None:
        """The evaluation before or after training; a stored evaluation is not repeated."""
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
            self.store.replace_trajectories(name, trajectories)
            self.store.write_json(f"{name}.json", report.as_dict())
        return report

    def close(self, before: EvalReport | None, after: EvalReport | None) -> None:
        """Write the summary, and print results and suggested commands."""
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


_BUILT_IN: Final = frozenset(ALGORITHMS.values())


class AgentTrainer(AbstractContextManager["AgentTrainer"]):
    """Trains a language model on a text environment.

    ```python
    from agentgym_train import AgentTrainer, RLConfig

    args = RLConfig(output_dir="runs/craft", horizon=[5, 10], horizon_every=50, steps=100)
    with AgentTrainer("Qwen/Qwen3-0.6B", "agentgym/TextCraft-v0", args) as trainer:
        trainer.train()
        print(trainer.evaluate())
        trainer.save_model("craft-model")
    ```

    The method follows from `args`: `RLConfig`, `SFTConfig` or `DPOConfig`. Each setting is given
    once: `model` and `env` here or in `args`. The run folder is the same as that of
    `agentgym train`, so `agentgym view`, `eval` and `export` read it.
    """

    def __init__(
        self,
        model: str | Any = "",
        env: str | type = "",
        args: RunConfig | None = None,
        *,
        processing_class: Any = None,
        algorithm: Algorithm | None = None,
        horizon: Horizon | Callable[[int], int] | None = None,
        agent: Callable[[ActionFormat], Agent] | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        console: Console | None = None,
    ) -> None:
        """Load the model and start the environment's local server, unless `args.servers` is set.

        `model` is a name or a loaded model, whose tokenizer is `processing_class` or that of its
        folder. `env` is an id, `module:Class` or an importable class. `algorithm`, `horizon` (a
        schedule or a function of the step) and `agent` (a class, called with the action format for
        each episode) are for RL, and override `args`. Evaluation uses the horizon of the last step,
        for which a copy of the schedule is called, unless `args.eval_horizon` is set. Raises
        `ConfigError` for a setting that is invalid, missing or given twice.
        """
        args = RLConfig() if args is None else args
        _check_types(model, env, args, algorithm, horizon, agent, callbacks)
        if not isinstance(args, RLConfig) and (algorithm or horizon or agent):
            raise ConfigError("algorithm, horizon and agent are for RL; pass an RLConfig as args")
        is_loaded = not isinstance(model, str)
        if processing_class is not None and not is_loaded:
            raise ConfigError(
                "processing_class is for a loaded model; a name has its own tokenizer"
            )
        self.args = _complete(args, model, env, algorithm, horizon)
        self.callbacks = list(callbacks)
        self.trainer: Any = None
        """The TRL trainer of the last or current `train`; None before."""
        self._console = console or Console()
        self._is_closed = False
        self._objects: dict[str, Any] = {}
        if algorithm is not None:
            self._objects["algorithm"] = algorithm
        if horizon is not None:
            self._objects["horizon"] = as_horizon(horizon)
        self._named_objects = _not_in_config(self.args, {**self._objects, "agent": agent})
        quiet_libraries()
        here = place()
        state = join(here.processes)
        self._method = method_of(self.args)
        self._method.check(self.args)
        stage = prepared(self.args, here.processes, is_loaded=is_loaded)
        assert stage is None or isinstance(stage, RolloutRunner)
        self.rollout_runner: RolloutRunner | None = stage
        """Runs episodes; None for SFT and DPO without an environment."""
        try:
            loaded = None
            if is_loaded:
                loaded = (model, processing_class or load_tokenizer(self.args.model))
            self.policy = load_policy_for(self.args, stage, state.device, loaded)
            if agent is not None:
                form = self.policy.action_format
                _check_agent(agent, form)
                self.policy = replace(self.policy, new_agent=lambda: agent(form))
            self._make_trainer = self._method.prepare(
                self.policy, self.args, self.rollout_runner, notifier(self._console)
            )
        except BaseException:
            self.close()
            raise

    def add_callback(self, callback: TrainerCallback) -> None:
        """Add a transformers callback for the next `train`."""
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint: bool = False) -> dict[str, float]:
        """Train to the last step, as `agentgym train` does; returns the last step's metrics.

        This includes the evaluations before and after training, unless `args` turns them off, and
        the summary. A new run moves an earlier run in the folder aside. `resume_from_checkpoint`
        continues the run in the folder from its last checkpoint, with the same settings. Raises
        `KeyboardInterrupt` after Ctrl-C, with a checkpoint, and `FolderInUse` if another process
        writes to the folder.
        """
        self._check_open()
        if not isinstance(resume_from_checkpoint, bool):
            raise ConfigError(
                "resume_from_checkpoint is True or False, and the last checkpoint in output_dir is "
                f"used, got {resume_from_checkpoint!r}"
            )
        if self.trainer is not None and self.args.lora is not None:
            raise ConfigError(
                "this AgentTrainer has trained its adapters; create another one with the saved "
                "model, or with resume_from_checkpoint"
            )
        path = Path(self.args.output_dir)
        is_main = PartialState().is_main_process
        with folder_lock(path, ANOTHER_FOLDER) if is_main else nullcontext():
            gathered(None)  # the lock is taken before another process reads the folder
            checkpoint = None
            if resume_from_checkpoint:
                self._check_resumed(RunStore.open(path))
                checkpoint = _checkpoint(RunStore.open(path), self._console)
            else:
                on_main_process(
                    lambda: new_folder(self.args, path, self._console, self._named_objects)
                )
            store = RunStore.open(path)
            run = Run(
                self.args, self._method, store, self._console, self.rollout_runner, self.policy
            )
            run.play(self._new_trainer, checkpoint, self.callbacks)
        rows, _ = store.metrics()
        return dict(rows[-1]) if rows else {}

    def _new_trainer(self, store: RunStore) -> Any:
        objects = dict(self._objects)
        if "horizon" in objects:
            # Each training begins with the state in which the schedule was passed.
            objects["horizon"] = copy.deepcopy(objects["horizon"])
        self.trainer = self._make_trainer(store, **objects)
        return self.trainer

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this AgentTrainer is closed; create another one")

    def _check_resumed(self, store: RunStore) -> None:
        """Raise `ConfigError` if the run was started with other settings."""
        metadata = store.read_json("run.json") or {}
        old = {**metadata.get("config", {}), "objects": metadata.get("objects", [])}
        new = json.loads(json.dumps({**self.args.as_dict(), "objects": self._named_objects}))
        changed = [
            f"{name} was {old[name]!r} and is {new[name]!r}"
            for name in new
            if name != "output_dir" and name in old and old[name] != new[name]
        ]
        if changed:
            raise ConfigError(
                f"{store.path} was started with other settings: {'; '.join(changed)[:600]}. Use "
                "the earlier settings, or start a new run with another output_dir"
            )

    def evaluate(
        self,
        split: str = "",
        *,
        horizon: int = 0,
        samples: int = 0,
        temperature: float | None = None,
    ) -> EvalReport:
        """Evaluate the current weights on a held-out split; defaults are from `args`."""
        self._check_open()
        if self.rollout_runner is None:
            raise ConfigError("there is no environment to evaluate in; pass env")
        model = self.policy.model if self.trainer is None else self.trainer.gathered_model()
        version = 0 if self.trainer is None else self.trainer.state.global_step
        self.rollout_runner.run(self.policy.engine.update_weights(model, version))
        config = replace(
            self.args,
            eval_split=split or self.args.eval_split,
            eval_horizon=horizon or self.args.fixed_eval_horizon,
            eval_samples=samples or self.args.eval_samples,
            eval_temperature=self.args.eval_temperature if temperature is None else temperature,
        )
        report, _ = evaluate_policy(config, self.policy, self.rollout_runner, self._console)
        return report

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model and its tokenizer to a folder, by default `model` in the run folder."""
        folder = str(output_dir or Path(self.args.output_dir) / "model")
        if self.trainer is not None:
            self.trainer.save_model(folder)
        elif PartialState().is_main_process:
            self.policy.model.save_pretrained(folder)
        if PartialState().is_main_process:
            self.policy.tokenizer.save_pretrained(folder)
            finish_model_folder(Path(folder), self.args)

    def close(self) -> None:
        """Stop the engine and the local server; closing twice is harmless."""
        self._is_closed = True
        runner, self.rollout_runner = self.rollout_runner, None
        if runner is not None:
            if hasattr(self, "policy"):
                runner.run(self.policy.engine.close())
            runner.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _complete(
    args: RunConfig,
    model: Any,
    env: str | type,
    algorithm: Algorithm | None,
    horizon: Horizon | Callable[[int], int] | None,
) -> RunConfig:
    """Merge the arguments into the config. Raises `ConfigError` for settings given twice."""
    if isinstance(args, AgentEvolConfig):
        raise ConfigError("AgentEvol trains several times; use `agentgym train`")
    given: dict[str, Any] = {
        "model": model if isinstance(model, str) else getattr(model, "name_or_path", "") or "model",
        "env": env if isinstance(env, str) else _path_of(env),
    }
    for name, value in given.items():
        before = getattr(args, name)
        if value and before and value != before:
            raise ConfigError(f"{name} is given twice: {value!r}, and {before!r} in args")
        given[name] = value or before
    if not isinstance(model, str):
        given["dtype"] = str(model.dtype).removeprefix("torch.")
    if algorithm is not None:
        names = [name for name, kind in ALGORITHMS.items() if kind is type(algorithm)]
        given["algorithm"] = names[0] if names else _label(type(algorithm))
        given["algorithm_args"] = asdict(algorithm) if is_dataclass(algorithm) else {}
    if horizon is not None and isinstance(args, RLConfig):
        given |= _horizon_fields(horizon, args.steps)
    config = replace(args, **given)
    config.check_required()
    return config


def _not_in_config(args: RunConfig, objects: Mapping[str, Any]) -> list[str]:
    """Names and classes of the objects that the config cannot restore."""
    left = {name: value for name, value in objects.items() if value is not None}
    if type(left.get("algorithm")) in _BUILT_IN:
        del left["algorithm"]
    if isinstance(args, RLConfig) and left.get("horizon") == args.make_horizon():
        del left["horizon"]
    return [
        f"{name}: {getattr(value, '__qualname__', type(value).__qualname__)}"
        for name, value in left.items()
    ]


def _horizon_fields(horizon: Horizon | Callable[[int], int], steps: int) -> dict[str, Any]:
    """The config's fields for a schedule: all of a built-in one, else its first and last value."""
    match horizon:
        case Fixed(turns=turns):
            return {"horizon": [turns], "horizon_schedule": "fixed"}
        case ScalingInterStepwise() | Linear() | Adaptive():
            names = {ScalingInterStepwise: "stepwise", Linear: "linear", Adaptive: "adaptive"}
            found = {"horizon": list(horizon.rounds), "horizon_every": horizon.every}
            if isinstance(horizon, Adaptive):
                for name in ("threshold", "patience", "window"):
                    found[f"horizon_{name}"] = getattr(horizon, name)
            return {**found, "horizon_schedule": names[type(horizon)]}
    try:
        # A schedule may have state, and a call may change it.
        asked = copy.deepcopy(as_horizon(horizon))
    except (TypeError, copy.Error) as error:
        raise ConfigError(
            f"the horizon {type(horizon).__qualname__} cannot be copied: {error}; define "
            "__deepcopy__, or name its class in args.horizon_schedule"
        ) from error
    return {"horizon": sorted({asked(0), asked(steps - 1)}), "horizon_schedule": None}


def _check_types(
    model: Any,
    env: Any,
    args: Any,
    algorithm: Any,
    horizon: Any,
    agent: Any,
    callbacks: Any,
) -> None:
    """Raise `ConfigError` for an argument of a wrong type."""
    is_model = isinstance(model, torch.nn.Module) and hasattr(model, "generate")
    is_algorithm = algorithm is None or Algorithm in type(algorithm).__mro__
    is_schedule = horizon is None or (callable(horizon) and not isinstance(horizon, type))
    is_list = isinstance(callbacks, Collection)
    kinds = [c if isinstance(c, type) else type(c) for c in callbacks] if is_list else callbacks
    are_callbacks = is_list and all(issubclass(kind, TrainerCallback) for kind in kinds)
    for name, value, is_valid, expected in (
        ("model", model, isinstance(model, str) or is_model, "a name or a loaded language model"),
        ("env", env, isinstance(env, str | type), "an id, 'module:Class' or a class"),
        ("args", args, isinstance(args, RunConfig), "an RLConfig, SFTConfig or DPOConfig"),
        ("algorithm", algorithm, is_algorithm, "an instance of an Algorithm, such as GRPO()"),
        ("horizon", horizon, is_schedule, "a Horizon or a function; numbers are in args.horizon"),
        ("agent", agent, agent is None or callable(agent), "a class; names are for args.agent"),
        ("callbacks", kinds, are_callbacks, "a list of transformers callbacks"),
    ):
        if not is_valid:
            raise ConfigError(f"{name} must be {expected}; got {str(value)[:80]!r}")


def _check_agent(agent: Callable[[ActionFormat], Agent], form: ActionFormat) -> None:
    try:
        made = agent(form)
    except TypeError as error:
        raise ConfigError(f"agent must take the action format as its argument: {error}") from error
    if not isinstance(made, Agent):
        raise ConfigError(f"agent must create an Agent; it created a {type(made).__qualname__}")


def _path_of(kind: type) -> str:
    """`module:Class` of an environment's class, for its server process."""
    path = _label(kind)
    try:
        found = None if kind.__module__ == "__main__" else load_named(path)
    except (BadRequest, ImportError):
        found = None
    if found is not kind:
        raise ConfigError(
            f"the environment {kind.__qualname__} cannot be imported as {path} by its server "
            "process; define it in a module"
        )
    return path


def _label(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
