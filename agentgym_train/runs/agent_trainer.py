"""AgentTrainer: a training run from Python, with settings that may be objects."""

from __future__ import annotations

import base64
import copy
import html
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

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
from agentgym_train.algorithms import ALGORITHMS, Algorithm
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.read import stored_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import ANOTHER_FOLDER, RunConfig
from agentgym_train.evaluation.report import EvalReport
from agentgym_train.models.distributed import gathered
from agentgym_train.models.loading import load_tokenizer
from agentgym_train.models.model_card import finish_model_folder
from agentgym_train.rollout.agent import Agent, check_makes_agent
from agentgym_train.rollout.horizon import SCHEDULES, Horizon, Turns, as_horizon
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.preflight import prepared, process_rank
from agentgym_train.runs.run import Run, evaluate_policy, loaded_run
from agentgym_train.runs.watchdog import watching_processes

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
        model: str | Path | Any = "",
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
        model = str(model) if isinstance(model, Path) else model
        _check_types(
            model=model, env=env, args=args, algorithm=algorithm, horizon=horizon, agent=agent,
            callbacks=callbacks,
        )  # fmt: skip
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
        """What the config cannot restore; it has the built-in ones."""
        if algorithm is not None and type(algorithm) not in ALGORITHMS.values():
            self._objects["algorithm"] = algorithm
        if horizon is not None and type(horizon) not in SCHEDULES.values():
            self._objects["horizon"] = as_horizon(horizon)
        self._named_objects = _names_of({**self._objects, "agent": agent}, self.args.env)
        # This loads TRL, which takes seconds.
        from agentgym_train.runs.methods import method_of

        here = process_rank()
        self.worlds: Worlds = prepared(self.args, here.processes, is_loaded=is_loaded)
        """Run the episodes of each environment; none for SFT and DPO without one."""
        self._run: Run | None = None
        try:
            loaded = None
            if is_loaded:
                loaded = (model, processing_class or load_tokenizer(self.args.model))
            run = self._run = loaded_run(
                method_of(self.args), self.args, self._console, self.worlds, here.processes, loaded
            )
            self.args = run.config
            if agent is not None:
                form = run.policy.action_format
                check_makes_agent(agent, getattr(agent, "__qualname__", str(agent)), form, {})
                run.policy = replace(run.policy, new_agent=lambda: agent(form))
            self.policy = run.policy
            self._make_trainer = run.prepare()
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
        run = self._opened()
        if not isinstance(resume_from_checkpoint, bool):
            raise ConfigError(
                "resume_from_checkpoint is True or False, and the last checkpoint in output_dir is "
                f"used, got {resume_from_checkpoint!r}"
            )
        if self.trainer is not None:
            raise ConfigError(
                "this AgentTrainer has trained; create another one, with the saved model or for "
                "resume_from_checkpoint"
            )
        path = Path(self.args.output_dir)
        is_main = PartialState().is_main_process
        with folder_lock(path, ANOTHER_FOLDER) if is_main else nullcontext():
            gathered(None)  # the lock is taken before another process reads the folder
            if resume_from_checkpoint:
                self._check_resumed(RunStore.open(path))
                run.config = self.args
            _TRAINED.add(run.policy.model)
            with watching_processes("Resume with train(resume_from_checkpoint=True)"):
                run.start(
                    self._new_trainer,
                    self.callbacks,
                    self._named_objects,
                    resumes=resume_from_checkpoint,
                )
        return TrainResult(run.store)

    def _new_trainer(self, store: RunStore) -> Any:
        self.trainer = self._make_trainer(store, **self._objects)
        return self.trainer

    def _opened(self) -> Run:
        if self._is_closed or self._run is None:
            raise ConfigError("this AgentTrainer is closed; create another one")
        return self._run

    def _check_resumed(self, store: RunStore) -> None:
        """Raise `ConfigError` if the run was started with other settings or another model."""
        if self.policy.model in _TRAINED:
            raise ConfigError("this model was trained since it was loaded; load it again to resume")
        metadata, (rows, _) = store.read_json("run.json") or {}, store.metrics()
        old: dict[str, Any] = stored_config(store.path, metadata.get("config", {})).as_dict()
        old["objects"] = metadata.get("objects", [])
        has_schedule = any(name.startswith("horizon:") for name in self._named_objects)
        if isinstance(self.args, RLConfig) and has_schedule and "horizon" in old:
            # Of a schedule of one's own the config has two values; more steps may have another.
            self.args = replace(self.args, horizon=old["horizon"])
        new = {**self.args.as_dict(), "objects": self._named_objects}
        changed = [
            f"{name} was {old[name]!r} and is {new[name]!r}"
            for name in sorted((new.keys() & old.keys()) - {"output_dir"})
            if json.dumps(old[name], sort_keys=True) != json.dumps(new[name], sort_keys=True)
            # The run is trained to another step.
            and not (name == "steps" and new[name] >= last_step(rows))
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
        env: str = "",
        horizon: int = 0,
        samples: int = 0,
        temperature: float | None = None,
    ) -> EvalReport:
        """Evaluate the current weights on a held-out split; defaults are from `args`.

        `env` chooses one of several environments.
        """
        self._opened()
        if not self.worlds:
            raise ConfigError("there is no environment to evaluate in; pass env")
        known = [runner.env_id for runner in self.worlds]
        wanted = full_id(env) if env and env not in known else env
        every = zip(self.args.worlds, self.worlds, strict=True)
        worlds = [(world, own) for world, own in every if wanted in ("", own.env_id)]
        if len(worlds) != 1:
            raise ConfigError(
                f"name the environment to evaluate in: env={' or '.join(map(repr, known))}; "
                f"got {env!r}"
            )
        ((world, runner),) = worlds
        model = self.policy.model if self.trainer is None else self.trainer.gathered_model()
        version = 0 if self.trainer is None else self.trainer.state.global_step
        runner.run(self.policy.engine.update_weights(model, version))
        given: dict[str, Any] = {"split": split, "horizon": horizon, "samples": samples}
        own = replace(world.eval, **{name: value for name, value in given.items() if value})
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
        if self._run is not None:
            self.worlds.run(self._run.policy.close())
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


def _names_of(objects: Mapping[str, Any], env: str) -> list[str]:
    """Names and classes of the objects that a config cannot restore."""
    every = {**objects, "env": load_named(env) if env.startswith(f"{MAIN}:") else None}
    return [
        f"{name}: {getattr(value, '__qualname__', type(value).__qualname__)}"
        for name, value in every.items()
        if value is not None
    ]


def _horizon_of(horizon: Horizon | Callable[[int], int], steps: int) -> Turns:
    """The config's value for a schedule: all of a built-in one, else its first and last turns."""
    for kind, made in SCHEDULES.items():
        if type(horizon) is made:
            own = {f.name: getattr(horizon, f.name) for f in fields(SCHEDULES[kind]) if f.init}
            turns = own["turns"]
            return {"type": kind, **own, "turns": [turns] if isinstance(turns, int) else [*turns]}
    try:
        # A schedule may have state, and a call may change it.
        asked = copy.deepcopy(as_horizon(horizon))
    except (TypeError, copy.Error) as error:
        raise ConfigError(
            f"the horizon {type(horizon).__qualname__} cannot be copied: {error}; define "
            "__deepcopy__, or name its class as the type in args.horizon"
        ) from error
    return sorted({asked(0), asked(steps - 1)})


def _check_types(**given: Any) -> None:
    """Raise `ConfigError` for an argument of a wrong type."""
    kinds: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "model": (
            "a name or a loaded language model",
            lambda model: isinstance(model, str) or hasattr(model, "generate"),
        ),
        "env": ("an id, 'module:Class' or a class", lambda env: isinstance(env, str | type)),
        "args": (
            "an RLConfig, SFTConfig or DPOConfig", lambda args: isinstance(args, RunConfig)
        ),
        "algorithm": (
            "an instance of an Algorithm, such as GRPO()",
            lambda algorithm: algorithm is None or Algorithm in type(algorithm).__mro__,
        ),
        "horizon": (
            "a Horizon or a function; numbers are in args.horizon",
            lambda own: own is None or (callable(own) and not isinstance(own, type)),
        ),
        "agent": (
            "a class; names are for args.agent", lambda agent: agent is None or callable(agent)
        ),
        "callbacks": (
            "a list of transformers callbacks",
            lambda every: isinstance(every, list | tuple) and all(map(_is_callback, every)),
        ),
    }  # fmt: skip
    for name, value in given.items():
        expected, is_valid = kinds[name]
        if not is_valid(value):
            raise ConfigError(f"{name} must be {expected}; got {str(value)[:80]!r}")


def _is_callback(callback: Any) -> bool:
    """Whether it is a callback or a class of callbacks, of which transformers makes one."""
    kind = callback if isinstance(callback, type) else type(callback)
    return issubclass(kind, TrainerCallback)


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
