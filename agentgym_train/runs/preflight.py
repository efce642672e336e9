"""Checks before torch is loaded, and launching of processes."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_env.registry import full_id
from agentgym_env.run_store import RunStore, last_step, links_out
from agentgym_env.server_token import token_of_file
from agentgym_env.trust import require_trust
from agentgym_train.config.base import RunConfig
from agentgym_train.config.methods import (
    CONFIGS,
    DEFAULT,
    AgentEvolConfig,
    RLConfig,
    method_config,
    stored_config,
)
from agentgym_train.config.options import expand_flags
from agentgym_train.config.trainer_args import OTHER_TRACKERS, TRACKERS, trackers_of
from agentgym_train.config.trust import names_in_run
from agentgym_train.config.values import local_path, parse_overrides
from agentgym_train.rollout.runner import RolloutRunner, Stage, Worlds

logger = logging.getLogger(__name__)

ASKED: Final = "AGENTGYM_PROCESSES"

"""Environment variable with the requested number of processes; set by `launch_if_asked`."""

_SAFE_PATH: Final = ("PYTHONSAFEPATH", "agentgym")

"""Environment variable for the launcher and its processes: without it, `python -m` puts the working
directory first in the path, where it can shadow installed modules."""

_NEEDED: Final = ("torch", "transformers", "trl", "accelerate", "datasets", "tokenizers")

_SIZES: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

_RANKS: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")

_FIX: Final = (
    "On CPUs start with `agentgym train CONFIG --num-processes N`, or with `agentgym train CONFIG "
    "--accelerate starter:accelerate/cpu_two_processes.yaml`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Rank of this process and number of processes, from environment variables."""

    rank: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


def place(environ: Mapping[str, str] | None = None) -> Place:
    """The place of this process; raises `ConfigError` if fewer processes than requested run."""
    given = os.environ if environ is None else environ
    sizes = [_number(given, name) for name in _SIZES if name in given]
    ranks = [_number(given, name) for name in _RANKS if name in given]
    here = Place(next(iter(ranks), 0), next(iter(sizes), 1))
    if ASKED in given:
        asked = _number(given, ASKED)
        if asked != here.processes:
            raise ConfigError(
                f"{asked} processes were requested but {here.processes} started. {_FIX}"
            )
    elif not sizes and {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= set(given):
        raise ConfigError(
            "accelerate was configured for several processes but started one, as it does for --cpu "
            f"and for distributed_type NO or MULTI_CPU. {_FIX}. For a single process pass "
            f"--num_processes 1 and unset MASTER_PORT, or set {ASKED}=1"
        )
    return here


@contextmanager
def lean_imports() -> Iterator[None]:
    """Context in which torch, transformers and TRL are imported in three quarters of the time.

    Garbage collection pauses, as it finds nothing to free among modules; those that exist
    afterwards are left out of later collections. scikit-learn and SciPy are hidden, which
    transformers uses only for assisted generation and for models that detect objects.
    """
    hidden = [name for name in ("sklearn", "scipy") if name not in sys.modules]
    collects = gc.isenabled()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if collects:
            gc.freeze()
            gc.enable()


def check_libraries() -> None:
    """Raise `MissingExtra` if the trainer's libraries are not installed, without loading them."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"agentgym train needs {', '.join(missing)}: pip install 'agentgym-sdk[train]'"
        )


def check_trackers(config: RunConfig) -> None:
    """Raise `MissingExtra` if the package of a tracker is not installed, without loading it."""
    for name in trackers_of(config.trainer_args):
        packages = TRACKERS.get(name)
        if packages and not any(find_spec(package) for package in packages):
            raise MissingExtra(
                f"trainer_args.report_to {name} needs {packages[0]}: "
                f"pip install 'agentgym-sdk[{name}]'"
            )
        module = OTHER_TRACKERS.get(name)
        if module and find_spec(module) is None:
            raise MissingExtra(f"trainer_args.report_to {name} needs {module}; install it with pip")


def launch_if_asked(
    config: RunConfig, words: Sequence[str], file: Path | None, count: int | None
) -> None:
    """Replace this process by `accelerate launch` of the command `words`, if several are requested.

    `file` is an accelerate config. `count` is the number of processes on all machines and overrides
    the file's. Errors are reported here, once, and not by every process.
    """
    options, asked = _options(file, count)
    config.check_processes(asked)
    check_libraries()
    check_trackers(config)
    config.check_model()
    if not options:
        return
    if any(name in os.environ for name in _SIZES):
        raise ConfigError(
            "a launcher already started this process; omit --accelerate and --num-processes"
        )
    command = [sys.executable, "-m", "agentgym_train.launcher", *options]
    variable, value = _SAFE_PATH
    environ = {variable: value, **os.environ, ASKED: str(asked)}
    _become([*command, "-m", "agentgym_train", *words], environ)


def drop_safe_path() -> None:
    """Unset the variable of `launch_if_asked`, so that child processes do not inherit it."""
    variable, value = _SAFE_PATH
    if os.environ.get(variable) == value:
        del os.environ[variable]


def obey_cpu() -> None:
    """Hide the GPUs from all libraries if accelerate is configured for CPUs."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _options(file: Path | None, count: int | None) -> tuple[list[str], int]:
    """(the options of `accelerate launch`, the number of processes); none for one process."""
    if count is not None and count < 1:
        raise ConfigError(f"--num-processes must be at least 1, got {count}")
    number = [] if count is None else ["--num_processes", str(count)]
    if file is not None:
        file = local_path(file)
        return ["--config_file", str(file), *number], count or _processes_of(file)
    if count is None or count == 1:
        return [], 1
    # The only distributed type of accelerate that also starts several processes on CPUs.
    plain = "--multi_gpu --num_machines 1 --mixed_precision no --dynamo_backend no"
    return [*plain.split(), "--main_process_port", "0", *number], count


def _processes_of(file: Path) -> int:
    """The number of processes of an accelerate config; raises if it cannot be launched."""
    if not file.is_file():
        raise ConfigError(f"no accelerate config {file}; one is starter:accelerate/fsdp2.yaml")
    try:
        values: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(values, dict) or "distributed_type" not in values:
        raise ConfigError(f"{file} is not an accelerate config: it has no distributed_type")
    kind, count = values["distributed_type"], values.get("num_processes", 1)
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"{file} has num_processes {count!r}; set it with --num-processes N")
    if kind == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise MissingExtra(f"{file} needs deepspeed: pip install deepspeed")
    return count


def _become(command: list[str], environ: dict[str, str]) -> NoReturn:
    """Replace this process by another program, which gets its signals and exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)


def _number(given: Mapping[str, str], name: str) -> int:
    try:
        return int(given[name])
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, got {given[name]!r}; unset it") from error


def resumed_config(path: Path, words: Sequence[str] = (), *, trusted: bool = False) -> RunConfig:
    """The config of the run in `path`, with other steps if `words` say so (`steps=N`).

    Raises `ConfigError` if there is none or if `words` change anything else, and `BadRequest` if it
    sets what needs trust and is not trusted.
    """
    asked = _only_steps(path, words)
    metadata = RunStore.open(path).read_json("run.json") or {}
    if objects := metadata.get("objects"):
        raise ConfigError(
            f"{path} was trained with Python objects ({', '.join(map(str, objects))}), which its "
            "config cannot restore; resume it with AgentTrainer.train(resume_from_checkpoint=True)"
        )
    values = metadata.get("config")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a training run: its run.json has no config")
    if values.get("method", DEFAULT) not in CONFIGS:
        raise ConfigError(f"{path} is not a training run: its method is {values['method']!r}")
    # Check this first: creating the config imports the agent.
    require_trust(f"{path}/run.json", names_in_run(values), trusted=trusted)
    # The run would be written to what they lead to, and checkpoints there be deleted.
    require_trust(f"{path}, by links,", links_out(path), trusted=trusted)
    if not (path / "trajectories").is_dir():
        raise ConfigError(
            f"{path} cannot be resumed: it has no folder trajectories. Restore it, or start a new "
            "run with the config in run.json"
        )
    config: RunConfig = stored_config(path, {**values, "output_dir": str(path)})
    return _with_steps(config, asked) if asked else config


def _only_steps(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """The values in `words`; raises `ConfigError` if they are more than `steps`."""
    files = [word for word in words[:1] if "=" not in word and not word.startswith("-")]
    asked = {} if files else parse_overrides(expand_flags(words))
    if others := ", ".join([*files, *(key for key in asked if key != "steps")]):
        raise ConfigError(
            f"a resumed run keeps its config; leave out {others}, or start a new run with "
            f"{path}/config.yaml. Only its steps can change: steps=N"
        )
    return asked


def _with_steps(config: RunConfig, asked: Mapping[str, Any]) -> RunConfig:
    """A stored run's config with the number of steps that is asked for."""
    path = config.output_dir
    if isinstance(config, AgentEvolConfig):
        raise ConfigError(f"{path} is a run of AgentEvol, which keeps its steps; leave out steps")
    changed = method_config({**config.as_dict(), **asked})
    rows, _ = RunStore.open(Path(path)).metrics()
    if (steps := changed.as_dict()["steps"]) < last_step(rows):
        raise ConfigError(
            f"{path} is trained to step {last_step(rows)}; steps is at least that, got {steps}"
        )
    return changed


def is_complete(config: RunConfig) -> bool:
    """Whether the run of a stored config is complete, with as many steps as the config has."""
    store = RunStore.open(Path(config.output_dir))
    summary = store.read_json("summary.json")
    if summary is None:
        return False
    if isinstance(config, AgentEvolConfig):
        return True
    stored = (store.read_json("run.json") or {}).get("config", {}).get("steps", 0)
    return bool(summary.get("steps", stored) >= config.as_dict()["steps"])


def prepared(config: RunConfig, processes: int = 1, *, is_loaded: bool = False) -> Stage:
    """The rollout runner of a config, for one of `processes`; None without an environment.

    Raises an error if the batch is not divisible by the processes, or if a library, the model, a
    server, the environment or a split is not available.
    """
    config.check_processes(processes)
    addresses = list(config.servers)
    several = _of_several(config)
    if several is not None:
        # An unknown environment is reported before a model is downloaded.
        addresses += [address for world in several.worlds for address in world.servers]
    elif config.env and not config.servers:
        full_id(config.env)
    if config.token_file is not None and not addresses:
        raise ConfigError(
            "token_file (--token-file) needs servers: name their addresses, or leave it out; a "
            "local server needs no token"
        )
    check_libraries()
    check_trackers(config)
    if not is_loaded:
        config.check_model()
    if several is not None:
        worlds = Worlds(several, processes)
        for world, runner in worlds:
            warn_of_trained_tasks(runner, world.split, world.eval_split)
        return worlds
    if not config.env:
        return None
    rollout_runner = world_of(config, processes)
    if isinstance(config, RLConfig):
        warn_of_trained_tasks(rollout_runner, config.split, config.eval_split)
    return rollout_runner


def _of_several(config: RunConfig) -> AgentEvolConfig | RLConfig | None:
    """The config, if it is one of several environments."""
    has_several = isinstance(config, AgentEvolConfig) or (
        isinstance(config, RLConfig) and bool(config.envs)
    )
    return config if has_several else None  # type: ignore[return-value]


def warn_of_trained_tasks(rollout_runner: RolloutRunner, split: str, eval_split: str) -> None:
    """Log a warning if tasks of the evaluation are trained on, as selections allow."""
    tasks = rollout_runner.tasks
    trained = set(tasks.split(split)).intersection(tasks.split(eval_split))
    if trained and place().is_first:
        logger.warning(
            "%s: %d of the %d tasks of eval_split %r are also in split %r, which is trained on; "
            "success on them does not show success on new tasks",
            rollout_runner.env_id, len(trained), len(tasks.split(eval_split)), eval_split, split,
        )  # fmt: skip


def world_of(config: RunConfig, processes: int = 1) -> RolloutRunner:
    """A `RolloutRunner` for the environment of a config."""
    rollout_runner = RolloutRunner(
        config.env,
        config.servers,
        token=token_of_file(config.token_file) if config.servers else None,
        env_kwargs=config.env_kwargs,
        concurrency=config.concurrency,
        processes=processes,
        limits=config.rollout_limits,
        wrappers=config.wrappers,
    )
    try:
        for split in config.splits:
            rollout_runner.tasks.split(split)
    except BaseException:
        rollout_runner.close()
        raise
    return rollout_runner
