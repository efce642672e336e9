"""What an evaluation plays: policies, tasks and their starts, and the folder that records them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agentgym_env.errors import ConfigError, UnknownEnvironment
from agentgym_env.registry import full_id
from agentgym_env.run_lock import LOCK_FILE, folder_lock, is_unused
from agentgym_env.run_store import BrokenLine, RunStore, move_aside
from agentgym_env.text_env import TaskSet
from agentgym_env.wrappers import WrapperSpec
from agentgym_train.config.checks import Count, Positive, Settings
from agentgym_train.config.options import settings_of
from agentgym_train.config.policy import HORIZON, PolicyConfig
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy_name import PolicyName, check_agent, label_of, parse_labelled
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.runner import RolloutRunner

DEFAULT_SPLIT: Final = "test"
"""The split of an evaluation that names none."""

FOLDER: Final = Path("runs/eval")

NAME: Final = "{name}"
"""Stands for the name of an evaluation in a suite's policies."""

_SEVERAL: Final = "several"
"""The split in the record of an evaluation whose tasks are in several."""

_KIND: Final = "evaluation"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy of an evaluation."""

    label: str
    """Its name in tables."""
    policy: str
    file: str
    """Its episodes are in `trajectories/FILE.jsonl`."""
    weights: str = ""
    """The digest of a model's folder, which changes when the model is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The policies of one evaluation."""

    settings: PolicyConfig
    """The settings that they share; each has its own model."""
    plans: Sequence[Candidate]
    specs: Mapping[str, PolicySpec]
    """By label."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Label -> why it cannot be run."""


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """What a command line says about the policies."""

    texts: Sequence[str]
    given: Mapping[str, Any]
    """The fields of `PolicyConfig` that have an option."""
    run: str | None
    """The run whose settings are used for the others."""
    spec: Callable[[PolicyName, PolicyConfig], PolicySpec]

    @property
    def labels(self) -> list[str]:
        """The labels of all policies."""
        return [label_of(text) for text in self.texts]

    def policies(self, env: str, name: str = "") -> Candidates:
        """The policies in an environment; raises `ConfigError` for one that cannot be run.

        `{name}` is the name of an evaluation in a suite, for which one that depends on it and
        cannot be run is listed under `missing`.
        """
        settings, no_settings = self._settings(env, name)
        named: list[tuple[str, PolicyName]] = []
        missing: dict[str, str] = {}
        for label, text in zip(self.labels, self.texts, strict=True):
            try:
                policy = parse_labelled(_in_evaluation(text, name))[1]
                if no_settings and policy.samples_tokens:
                    raise ConfigError(no_settings)
            except ConfigError as error:
                if not name or (NAME not in text and not no_settings):
                    raise
                missing[label] = str(error)
            else:
                named.append((label, policy))
        if not missing:
            check_agent(settings.agent, (policy for _, policy in named))
        specs = {label: self.spec(policy, settings) for label, policy in named}
        return Candidates(
            settings=settings, plans=_policy_plans(named), specs=specs, missing=missing
        )

    def _settings(self, env: str, name: str) -> tuple[PolicyConfig, str]:
        """(the settings, why those of the run are missing)."""
        run = self.run and _in_evaluation(self.run, name)
        try:
            return PolicyConfig(**settings_of(run, self.given, env)), ""
        except ConfigError as error:
            if run == self.run:
                raise
            return PolicyConfig(**self.given), str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Settings):
    """Which episodes are evaluated: an entry of a suite, or what the command line says."""

    name: str = ""
    """Its name in a suite: a column of the table, and a folder."""
    env: str = ""
    """Id of the environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as a mapping, for the local server."""
    servers: list[str] = field(default_factory=list)
    """Address of a running server; repeatable. Without one, a local server is started."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Gymnasium wrapper, the innermost first: module:Class, or with arguments '{wrapper:
    module:Class, scale: 2}'; repeatable."""
    split: str | list[str] = DEFAULT_SPLIT
    """Split of the tasks. Of a list, the first split that the environment has here."""
    tasks: list[str] = field(default_factory=list)
    """Tasks instead of a split: an id, a file with one id per line, or a file of AgentGym's with
    item ids; repeatable."""
    horizon: Positive = HORIZON
    """Maximum turns per episode."""
    samples: Positive = 1
    """Episodes per task, for pass@k."""
    limit: Count = 0
    """Only this many tasks; 0 is no limit."""
    per_category: Count = 0
    """Only this many tasks of each category; 0 is no limit."""

    def runner(self, concurrency: int, token: str | None = None) -> RolloutRunner:
        """A runner of its environment, which starts a local server if there is no other.

        Raises `ConfigError` if a running server has another environment.
        """
        runner = RolloutRunner(
            self.env,
            self.servers,
            token=token,
            env_kwargs=self.env_kwargs,
            wrappers=self.wrappers,
            concurrency=concurrency,
        )
        try:
            check_served(self.env, runner.card.env)
        except ConfigError:
            runner.close()
            raise
        return runner

    def chosen(self, known: TaskSet) -> tuple[list[str], str]:
        """(its tasks in order, without repetitions; the name of their split).

        Raises `ConfigError` or `UnknownSplit` for a task or split that the environment lacks.
        """
        named = [self.split] if isinstance(self.split, str) else self.split
        if not named:
            raise ConfigError("split is empty; write a split, or leave it out")
        there = [split for split in named if split in {**known.splits, **known.selections}]
        split = (there or named)[0]
        return chosen_tasks(known, self.tasks, split, self.limit or None, self.per_category or None)

    def plan(
        self,
        rollout_runner: RolloutRunner,
        settings: PolicyConfig,
        policies: Sequence[Candidate],
        seed: int,
    ) -> EvalPlan:
        """The plan of policies with these settings in the environment of its runner."""
        tasks, split = self.chosen(rollout_runner.tasks)
        if settings.instruction is None:
            settings = replace(settings, instruction=rollout_runner.card.instruction)
        return EvalPlan(
            env=rollout_runner.card.env, env_kwargs=self.env_kwargs,
            env_version=rollout_runner.card.version, split=split, tasks=tasks,
            samples=self.samples, horizon=self.horizon, seed=seed, policy=settings,
            policies=policies, wrappers=self.wrappers,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Everything that the results depend on."""

    env: str
    env_kwargs: Mapping[str, Any]
    env_version: str
    """Version of the package that serves it."""
    split: str
    tasks: Sequence[str]
    samples: int
    horizon: int
    seed: int
    policy: PolicyConfig
    """The settings of all policies; each has its own model."""
    policies: Sequence[Candidate] = field(default_factory=tuple)
    wrappers: Sequence[WrapperSpec] = ()
    """Gymnasium wrappers of the environment, innermost first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON returns them."""
        values = asdict(self)
        policy = values.pop("policy")
        policy["dtype"] = policy.pop("compute_dtype") or "auto"
        del policy["model"]
        plain: dict[str, Any] = json.loads(json.dumps(policy | values))
        return plain

    def folder(self) -> Path:
        """The default folder of an evaluation; each plan has its own."""
        whole = json.dumps(self.as_dict(), sort_keys=True).encode()
        world = label_file_name(self.env.rpartition("/")[2].rpartition(":")[2])
        digest = hashlib.blake2b(whole, digest_size=5).hexdigest()
        return FOLDER / f"{world}-{label_file_name(self.split)}-{digest}"


def eval_starts(
    tasks: TaskSet,
    split: str,
    samples: int,
    seed: int,
    limit: int | None = None,
    per_category: int | None = None,
) -> list[EpisodeSpec]:
    """`samples` episodes of each task of a split, or of its first ones; see `_first_tasks`."""
    ids = _first_tasks(tasks, tasks.split(split), limit, per_category)
    return task_starts(tasks, ids, samples, seed, split)


def chosen_tasks(
    known: TaskSet,
    named: Sequence[str] | None,
    split: str,
    limit: int | None,
    per_category: int | None,
) -> tuple[list[str], str]:
    """(the tasks in order, without repetitions; the name of their split).

    Named tasks must be in `split`, unless it is the default; then their own split is returned.
    """
    if not named:
        ids = list(known.split(split))
    else:
        ids = [task for text in named for task in _named_tasks(known, text)]
        ids = list(dict.fromkeys(known.canonical(task) for task in ids))
        if split == DEFAULT_SPLIT:
            splits = {known.split_of(task) for task in ids}
            split = splits.pop() if len(splits) == 1 else _SEVERAL
        elif outside := sorted(set(ids).difference(known.split(split))):
            raise ConfigError(f"--tasks: {outside[0]!r} is not in split {split!r}")
    if not ids:
        raise ConfigError(f"{'--tasks' if named else f'split {split!r}'} has no task")
    return list(_first_tasks(known, ids, limit, per_category)), split


def check_served(wanted: str, served: str) -> None:
    """Raise `ConfigError` if a running server has another environment than the named one."""
    try:
        meant = full_id(wanted)
    except UnknownEnvironment:
        meant = wanted  # what runs elsewhere need not be known here
    if served != meant:
        raise ConfigError(f"the server serves {served}, not {meant}; use that id or its server")


def check_baseline(labels: Sequence[str], baseline: str | None) -> None:
    """Raise `ConfigError` if no policy has this label."""
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline {baseline!r} is not one of {', '.join(map(repr, labels))}")


def task_starts(
    tasks: TaskSet, ids: Sequence[str], samples: int, seed: int, split: str = _SEVERAL
) -> list[EpisodeSpec]:
    """`samples` episodes per task. The seed of each depends on seed, task and sample alone.

    They have the split that was asked for, or with `_SEVERAL` each its task's own.
    """
    return [
        EpisodeSpec(
            task=task,
            seed=draw_seed("eval", seed, task, sample),
            sample=sample,
            split=tasks.split_of(task) if split == _SEVERAL else split,
            category=tasks.category(task),
        )
        for task in ids
        for sample in range(samples)
    ]


@contextlib.contextmanager
def eval_store(path: Path, plan: EvalPlan, *, fresh: bool = False) -> Iterator[RunStore]:
    """The store of this evaluation, new or existing, locked for other processes.

    Raises `ConfigError` if the folder contains anything else. `fresh` moves its content aside.
    """
    with folder_lock(path, "--out"):
        if fresh and not is_unused(path):
            move_aside(path)
        if (path / "run.json").is_file():
            store = RunStore.open(path)
            if _is_empty(store):
                store.write_json("run.json", _facts(plan))
            _check_same(store, plan)
        elif not is_unused(path):
            raise ConfigError(f"{path} contains no evaluation; choose another folder")
        else:
            (path / "trajectories").mkdir(exist_ok=True)
            store = RunStore(path)
            store.write_json("run.json", _facts(plan))
        yield store


def label_file_name(text: str) -> str:
    """A text as a file name: short, with letters, digits and a few other characters."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")[:60] or "policy"


def _first_tasks(
    tasks: TaskSet, ids: Sequence[str], limit: int | None = None, per_category: int | None = None
) -> Sequence[str]:
    """The first `per_category` tasks of each category, and of those the first `limit`."""
    if per_category is not None:
        taken: Counter[str | None] = Counter()
        first = []
        for task in ids:
            taken[tasks.category(task)] += 1
            if taken[tasks.category(task)] <= per_category:
                first.append(task)
        ids = first
    return ids[:limit]


def _policy_plans(named: Sequence[tuple[str, PolicyName]]) -> tuple[Candidate, ...]:
    """Policies with a file each; raises `ConfigError` if two have the same label."""
    plans: list[Candidate] = []
    for label, name in named:
        if any(plan.label == label for plan in plans):
            raise ConfigError(
                f"two policies have the label {label!r}; set another one: --policy LABEL={name}"
            )
        file = base = label_file_name(label)
        number = 2
        while any(plan.file.lower() == file.lower() for plan in plans):
            file, number = f"{base}-{number}", number + 1
        plans.append(Candidate(label, str(name), file, name.weights()))
    return tuple(plans)


def _is_empty(store: RunStore) -> bool:
    """Whether an evaluation has no episode yet, because its policy could not be loaded, say."""
    _read_plan(store)
    files = [path for path in store.path.rglob("*") if path.is_file()]
    return all(file.name in ("run.json", LOCK_FILE) for file in files)


def _read_plan(store: RunStore) -> dict[str, Any]:
    """The plan of a stored evaluation; raises `ConfigError` if there is none."""
    run = store.read_json("run.json") or {}
    if run.get("kind") != _KIND:
        raise ConfigError(f"{store.path} contains a run and no evaluation; choose another folder")
    found: dict[str, Any] = run[_KIND]
    return found


def _in_evaluation(text: str, name: str) -> str:
    """A policy's text for an evaluation; `{name}/FOLDER` is a folder, never a hub's id."""
    if "{world}" in text:
        raise ConfigError(f"{text}: write {NAME} instead of {{world}}")
    if not name:
        return text
    return re.sub(rf"(^|[=:]){re.escape(NAME)}/", rf"\1./{NAME}/", text).replace(NAME, name)


def _named_tasks(known: TaskSet, text: str) -> list[str]:
    """The tasks of `--tasks TEXT`: one id, or those in a file."""
    if known.canonical(text) in known:
        return [text]
    path = Path(text)
    if not path.is_file():
        try:
            known.split_of(text)
        except LookupError as error:
            raise ConfigError(f"--tasks {text!r} is not a file, and {error}") from error
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tasks {text!r} cannot be read: {error}") from error
    if content.lstrip().startswith(("[", "{")):
        found = _item_ids(path)
    else:
        lines = (line.strip() for line in content.splitlines())
        found = [line for line in lines if line and not line.startswith("#")]
    for number, task in enumerate(found, 1):
        try:
            known.split_of(task)
        except LookupError as error:
            raise ConfigError(f"--tasks {text!r}, entry {number}: {error}") from error
    return found


def _item_ids(path: Path) -> list[str]:
    """The tasks of AgentGym's files: objects with an `item_id`, as a JSON list or as lines."""
    from agentgym_train.data.files import read_rows

    rows, broken = read_rows(path)
    for row in rows:
        if not isinstance(row.values.get("item_id"), str):
            broken.append(BrokenLine(row.path, row.line, "its item_id is missing or is no text"))
    if broken:
        raise ConfigError(
            f"--tasks {str(path)!r} is no list of JSON objects with an item_id: "
            f"{broken[0].place}: {broken[0].reason}"
        )
    return [row.values["item_id"] for row in rows]


def _check_same(store: RunStore, plan: EvalPlan) -> None:
    before, now = _read_plan(store), plan.as_dict()
    other = [name for name in now if before.get(name) != now[name]]
    if other:
        raise ConfigError(
            f"{store.path} contains another evaluation: "
            + "; ".join(
                f"{n} is {_shown(n, before.get(n))} there, {_shown(n, now[n])} here" for n in other
            )
            + ". Choose another folder with --out, or move this one aside with --fresh"
        )


def _shown(name: str, value: Any) -> str:
    """A value of a plan, for an error."""
    if name == "policies" and isinstance(value, list):
        return ", ".join(
            f"{p['label']}={p['policy']}" + (f" (weights {p['weights']})" if p["weights"] else "")
            for p in value
        )
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _facts(plan: EvalPlan) -> dict[str, Any]:
    versions = {"python": sys.version.split()[0]}
    for name in ("agentgym-sdk", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "kind": _KIND,
        _KIND: plan.as_dict(),
        "seed": plan.seed,
        "command": " ".join(sys.argv),
        "versions": versions,
    }
