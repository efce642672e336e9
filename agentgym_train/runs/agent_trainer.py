"""AgentTrainer: a training run from Python, with settings that may be objects."""

from __future__ import annotations

import base64
import copy
import html
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import torch
from accelerate import PartialState
from rich.console import Console
from transformers import TrainerCallback

from agentgym_env.actions import ActionFormat
from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.main_module import MAIN
from agentgym_env.registry import full_id
from agentgym_env.run_lock import folder_lock
from agentgym_env.run_store import RunStore, last_step
from agentgym_train.algorithms import ALGORITHMS, Algorithm, make_algorithm
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig
from agentgym_train.config.read import stored_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import ANOTHER_FOLDER, RunConfig
from agentgym_train.evaluation.report import EvalReport
from agentgym_train.models.distributed import gathered, join, on_main_process
from agentgym_train.models.loading import load_tokenizer, quiet_libraries
from agentgym_train.models.model_card import finish_model_folder
from agentgym_train.rollout.agent import Agent
from agentgym_train.rollout.horizon import (
    SCHEDULES,
    Adaptive,
    Fixed,
    Horizon,
    Linear,
    ScalingInterStepwise,
    Turns,
    as_horizon,
    make_horizon,
)
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.preflight import prepared, process_rank
from agentgym_train.runs.run import (
    Method,
    Run,
    checkpoint_of,
    evaluate_policy,
    load_policy_for,
    new_folder,
    notifier,
)
from agentgym_train.runs.watchdog import watching_processes

_BUILT_IN: Final = frozenset(ALGORITHMS.values())
_SHOWN: Final = ("step", "success", "reward", "loss", "turns", "accuracy")
"""Metrics of the last step in a notebook's table."""
_TRAINED: Final[WeakSet[Any]] = WeakSet()
"""Models that an AgentTrainer of this process has trained: their weights are not the first ones."""


class TrainResult(dict[str, float]):
    """The metrics of the last step. A notebook shows the run's evaluations and curves."""

    def __init__(self, store: RunStore) -> None:
        rows, _ = store.metrics()
        super().__init__(rows[-1] if rows else {})
        self.run: Path = store.path
        """The run folder."""

    def _repr_html_(self) -> str:
        summary = RunStore(self.run).read_json("summary.json") or {}
        names = ("success_before", "success_after")
        held_out = [(name, summary[name]) for name in names if summary.get(name) is not None]
        figures = [*held_out, *((n, self[n]) for n in self if n in _SHOWN)]
        cells = "".join(
            f"<tr><td>{name.replace('_', ' ')}</td><td>{value:.4g}</td></tr>"
            for name, value in figures
            if isinstance(value, int | float)
        )
        curves, picture = self.run / "curves.png", ""
        if curves.is_file():
            encoded = base64.b64encode(curves.read_bytes()).decode()
            picture = f'<img alt="curves" width="640" src="data:image/png;base64,{encoded}">'
        return f"<p>{html.escape(str(self.run))}</p><table>{cells}</table>{picture}"


class AgentTrainer(AbstractContextManager["AgentTrainer"]):
    """Trains a language model on a text environment.

    ```python
    from agentgym_train import AgentTrainer, RLConfig

    args = RLConfig(output_dir="runs/craft", horizon=[5, 10], steps=200)
    with AgentTrainer("Qwen/Qwen2.5-0.5B-Instruct", "agentgym/TextCraft-v0", args) as trainer:
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
        for which a copy of the schedule is called, unless `args.eval.horizon` is set. Raises
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
        given = {**self._objects, "agent": agent}
        if self.args.env.startswith(f"{MAIN}:"):
            given["env"] = load_named(self.args.env)
        self._named_objects = _not_in_config(self.args, given)
        quiet_libraries()
        here = process_rank()
        state = join(here.processes)
        self._method = _method_of(self.args)
        self._method.check(self.args)
        self.worlds: Worlds = prepared(self.args, here.processes, is_loaded=is_loaded)
        """Run the episodes of each environment; none for SFT and DPO without one."""
        try:
            loaded = None
            if is_loaded:
                loaded = (model, processing_class or load_tokenizer(self.args.model))
            self.policy = load_policy_for(self.args, self.worlds, state.device, loaded)
            self.args = replace(self.args, max_tokens=self.policy.config.max_tokens)
            if agent is not None:
                form = self.policy.action_format
                _check_agent(agent, form)
                self.policy = replace(self.policy, new_agent=lambda: agent(form))
            self._make_trainer = self._method.prepare(
                self.policy, self.args, self.worlds, notifier(self._console)
            )
        except BaseException:
            self.close()
            raise

    def add_callback(self, callback: TrainerCallback) -> None:
        """Add a transformers callback for the next `train`."""
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint: bool = False) -> TrainResult:
        """Train to the last step, as `agentgym train` does; returns the last step's metrics.

        This includes the evaluations before and after training, unless `args` turns them off, and
        the summary. A new run moves an earlier run in the folder aside. `resume_from_checkpoint`
        continues the run in the folder from its last checkpoint, with the same settings or more
        steps. Raises `KeyboardInterrupt` after Ctrl-C, with a checkpoint, and `FolderInUse` if
        another process writes to the folder.
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
                self._check_reference()
                checkpoint = checkpoint_of(RunStore.open(path), self._console)
            else:
                on_main_process(
                    lambda: new_folder(self.args, path, self._console, self._named_objects)
                )
            store = RunStore.open(path)
            run = Run(self.args, self._method, store, self._console, self.worlds, self.policy)
            _TRAINED.add(self.policy.model)
            with watching_processes("Resume with train(resume_from_checkpoint=True)"):
                make = partial(self._new_trainer, is_resumed=checkpoint is not None)
                run.play(make, checkpoint, self.callbacks)
        return TrainResult(store)

    def _new_trainer(self, store: RunStore, *, is_resumed: bool = False) -> Any:
        objects = dict(self._objects)
        if is_resumed and isinstance(self.args, RLConfig) and self.trainer is not None:
            # The model has trained weights, and the run is compared with those that it began with.
            objects["reference"] = self.trainer.reference
        self.trainer = self._make_trainer(store, **objects)
        return self.trainer

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this AgentTrainer is closed; create another one")

    def _check_resumed(self, store: RunStore) -> None:
        """Raise `ConfigError` if the run was started with other settings."""
        metadata, (rows, _) = store.read_json("run.json") or {}, store.metrics()
        before: dict[str, Any] = stored_config(store.path, metadata.get("config", {})).as_dict()
        old = {**json.loads(json.dumps(before)), "objects": metadata.get("objects", [])}
        has_schedule = any(name.startswith("horizon:") for name in self._named_objects)
        if isinstance(self.args, RLConfig) and has_schedule and "horizon" in old:
            # Of a schedule of one's own the config has two values; more steps may have another.
            self.args = replace(self.args, horizon=old["horizon"])
        new = json.loads(json.dumps({**self.args.as_dict(), "objects": self._named_objects}))
        changed = [
            f"{name} was {old[name]!r} and is {new[name]!r}"
            for name in new
            if name != "output_dir"
            and name in old
            and old[name] != new[name]
            # The run is trained to another step.
            and not (name == "steps" and new[name] >= last_step(rows))
        ]
        if changed:
            raise ConfigError(
                f"{store.path} was started with other settings: {'; '.join(changed)[:600]}. Use "
                "the earlier settings, or start a new run with another output_dir"
            )

    def _check_reference(self) -> None:
        """Raise `ConfigError` if trained weights would be taken for the reference."""
        compares = isinstance(self.args, DPOConfig)
        if isinstance(self.args, RLConfig) and self.trainer is None:
            algorithm = self._objects.get("algorithm") or make_algorithm(self.args.algorithm)
            compares = bool(self.args.beta) or algorithm.needs_reference
        if compares and self.args.lora is None and self.policy.model in _TRAINED:
            raise ConfigError(
                "this model was trained since it was loaded, and the run compares with the model "
                "that it began with; load it again"
            )

    def evaluate(
        self,
        split: str = "",
        *,
        env: str = "",
        horizon: int = 0,
        samples: int = 0,
        temperature: float | None = None,
    ) -> EvalReport:
        """Evaluate the current weights on a held-out split; defaults are from `args`.

        `env` chooses one of several environments.
        """
        self._check_open()
        if not self.worlds:
            raise ConfigError("there is no environment to evaluate in; pass env")
        found = {
            runner.env_id: (world, runner)
            for world, runner in zip(self.args.worlds, self.worlds, strict=True)
        }
        wanted = (full_id(env) if env not in found else env) if env else ""
        if wanted not in found and (wanted or len(found) > 1):
            raise ConfigError(
                f"env must be one of {', '.join(found)}; got {env!r}"
                if env
                else f"name the environment to evaluate in: env={' or '.join(map(repr, found))}"
            )
        world, runner = found[wanted or next(iter(found))]
        model = self.policy.model if self.trainer is None else self.trainer.gathered_model()
        version = 0 if self.trainer is None else self.trainer.state.global_step
        runner.run(self.policy.engine.update_weights(model, version))
        own = replace(
            world.eval,
            split=split or world.eval.split,
            horizon=horizon or world.eval.horizon,
            samples=samples or world.eval.samples,
        )
        world, config = replace(world, eval=own), self.args
        if temperature is not None:
            config = replace(config, eval=replace(config.eval, temperature=temperature))
        report, _ = evaluate_policy(config, world, runner, self.policy, self._console)
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
        if self._is_closed:
            return
        self._is_closed = True
        if hasattr(self, "policy"):
            self.worlds.run(self.policy.close())
        self.worlds.close()

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
        values: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) else {}
        given["algorithm"] = {"type": names[0] if names else _label(type(algorithm)), **values}
    if horizon is not None and isinstance(args, RLConfig):
        given["horizon"] = _horizon_of(horizon, args.steps)
    config = replace(args, **given)
    config.check_required()
    return config


def _not_in_config(args: RunConfig, objects: Mapping[str, Any]) -> list[str]:
    """Names and classes of the objects that the config cannot restore."""
    left = {name: value for name, value in objects.items() if value is not None}
    if type(left.get("algorithm")) in _BUILT_IN:
        del left["algorithm"]
    own = make_horizon(args.horizon) if isinstance(args, RLConfig) and "horizon" in left else None
    if own is not None and left["horizon"] == own:
        del left["horizon"]
    return [
        f"{name}: {getattr(value, '__qualname__', type(value).__qualname__)}"
        for name, value in left.items()
    ]


def _horizon_of(horizon: Horizon | Callable[[int], int], steps: int) -> Turns:
    """The config's value for a schedule: all of a built-in one, else its first and last turns."""
    match horizon:
        case Fixed() | ScalingInterStepwise() | Linear() | Adaptive():
            (kind,) = (name for name, made in SCHEDULES.items() if made is type(horizon))
            own = {f.name: getattr(horizon, f.name) for f in fields(horizon) if f.init}
            turns = own.pop("turns")
            own["turns"] = [turns] if isinstance(turns, int) else list(turns)
            return {"type": kind, **own}
    try:
        # A schedule may have state, and a call may change it.
        asked = copy.deepcopy(as_horizon(horizon))
    except (TypeError, copy.Error) as error:
        raise ConfigError(
            f"the horizon {type(horizon).__qualname__} cannot be copied: {error}; define "
            "__deepcopy__, or name its class as the type in args.horizon"
        ) from error
    return sorted({asked(0), asked(steps - 1)})


def _method_of(config: RunConfig) -> Method:
    # This loads TRL, which takes seconds.
    from agentgym_train.runs.methods import method_of

    return method_of(config)


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
        found = load_named(path)
    except (BadRequest, ImportError):
        found = None
    if found is not kind:
        raise ConfigError(
            f"the environment {kind.__qualname__} cannot be imported as {path} by its server "
            "process; define it in a module, or at the top level of a notebook"
        )
    return path


def _label(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
