"""What an evaluation plays: policies, tasks and their starts, and the folder that records them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from agentgym_env.errors import ConfigError, UnknownEnvironment
from agentgym_env.registry import full_id
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_env.run_store import BrokenLine, RunStore, move_aside, run_metadata
from agentgym_env.text_env import TaskSet
from agentgym_env.wrappers import WrapperSpec
from agentgym_train.config.checks import Count, Positive, Settings, Share
from agentgym_train.config.options import settings_of
from agentgym_train.config.policy import HORIZON, PolicyConfig
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy_spec import (
    PolicyName,
    PolicySpec,
    check_agent,
    label_of,
    parse_labelled,
)
from agentgym_train.rollout.runner import RolloutRunner

DEFAULT_SPLIT: Final = "test"
"""The split of an evaluation that names none."""

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
    file: str
    """Its episodes are in `trajectories/FILE.jsonl`."""
    spec: PolicySpec
    weights: str = ""
    """The digest of a model's folder, which changes when the model is trained."""

    def as_dict(self) -> dict[str, str]:
        """What identifies it, as plain values."""
        own = {"label": self.label, "policy": str(self.spec.name)}
        return {**own, "file": self.file, "weights": self.weights}


@dataclass(frozen=True, slots=True)
class Candidates:
    """The policies of one evaluation."""

    settings: PolicyConfig
    """The settings that they share; each has its own model."""
    found: Sequence[Candidate]
    missing: Mapping[str, str]
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
        found: list[Candidate] = []
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
                continue
            if any(label == other.label for other in found):
                raise ConfigError(
                    f"two policies have the label {label!r}; set another one: --policy "
                    f"LABEL={policy}"
                )
            spec, taken = self.spec(policy, settings), {other.file.lower() for other in found}
            file = base = label_file_name(label)
            number = 2
            while file.lower() in taken:
                file, number = f"{base}-{number}", number + 1
            found.append(Candidate(label, file, spec, policy.weights()))
        if not missing:
            check_agent(settings.agent, (policy.spec.name for policy in found))
        return Candidates(settings, found, missing)

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
    published: dict[str, Share] = field(default_factory=dict)
    """Success elsewhere by name, such as a model of a paper."""
    notes: list[str] = field(default_factory=list)
    """Remarks below the table, such as differences from the published evaluation."""

    @property
    def key(self) -> str:
        """Its folder, and what `{name}` stands for."""
        return evaluation_key(self.name)

    def runner(self, concurrency: int, token: str | None = None) -> RolloutRunner:
        """A runner of its environment, which starts a local server if there is no other.

        Raises `ConfigError` if a running server has another environment.
        """
        runner = RolloutRunner(
            self.env, self.servers, token=token, env_kwargs=self.env_kwargs,
            wrappers=self.wrappers, concurrency=concurrency,
        )  # fmt: skip
        try:
            meant = full_id(self.env)
        except UnknownEnvironment:
            meant = self.env  # what runs elsewhere need not be known here
        if (served := runner.card.env) != meant:
            runner.close()
            raise ConfigError(f"the server serves {served}, not {meant}; use that id or its server")
        return runner

    def chosen(self, known: TaskSet) -> tuple[list[str], str]:
        """(its tasks in order, without repetitions; the name of their split).

        Named tasks must be in the split, unless it is the default; then their own split is
        returned. Raises `ConfigError` or `UnknownSplit` for a task or split that is not known.
        """
        named = [self.split] if isinstance(self.split, str) else self.split
        if not named:
            raise ConfigError("split is empty; write a split, or leave it out")
        split = next((s for s in named if s in {**known.splits, **known.selections}), named[0])
        if not self.tasks:
            ids = list(known.split(split))
        else:
            ids = [task for text in self.tasks for task in _named_tasks(known, text)]
            ids = list(dict.fromkeys(known.canonical(task) for task in ids))
            if split == DEFAULT_SPLIT:
                splits = {known.split_of(task) for task in ids}
                split = splits.pop() if len(splits) == 1 else _SEVERAL
            elif outside := sorted(set(ids).difference(known.split(split))):
                raise ConfigError(f"--tasks: {outside[0]!r} is not in split {split!r}")
        if not ids:
            raise ConfigError(f"{'--tasks' if self.tasks else f'split {split!r}'} has no task")
        return list(_first_tasks(known, ids, self.limit, self.per_category)), split

    def plan(
        self,
        rollout_runner: RolloutRunner,
        settings: PolicyConfig,
        policies: Sequence[Candidate],
        seed: int,
    ) -> EvalPlan:
        """The plan of policies with these settings in the environment of its runner."""
        (tasks, split), card = self.chosen(rollout_runner.tasks), rollout_runner.card
        if settings.instruction is None:
            settings = replace(settings, instruction=card.instruction)
        return EvalPlan(
            env=card.env, env_kwargs=self.env_kwargs, env_version=card.version, split=split,
            tasks=tasks, samples=self.samples, horizon=self.horizon, seed=seed, policy=settings,
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
    policies: Sequence[Candidate] = ()
    wrappers: Sequence[WrapperSpec] = ()
    """Gymnasium wrappers of the environment, innermost first."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON returns them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["policies"] = [policy.as_dict() for policy in self.policies]
        policy = asdict(values.pop("policy"))
        policy["dtype"] = policy.pop("compute_dtype") or "auto"
        del policy["model"]
        plain: dict[str, Any] = json.loads(json.dumps(policy | values))
        return plain

    def folder(self) -> Path:
        """The default folder of an evaluation; each plan has its own."""
        world = label_file_name(self.env.rpartition("/")[2].rpartition(":")[2])
        return digest_folder(f"{world}-{label_file_name(self.split)}", self.as_dict())

    def starts(self, known: TaskSet) -> list[EpisodeSpec]:
        """`samples` episodes of each task."""
        return _task_starts(known, self.tasks, self.samples, self.seed, self.split)

    def check_same(self, path: Path) -> None:
        """Raise `ConfigError` if a folder contains anything but this evaluation."""
        if not (path / "run.json").is_file():
            if is_unused(path):
                return
            raise ConfigError(f"{path} contains no evaluation; choose another folder")
        store, now = RunStore.open(path), self.as_dict()
        run = store.read_json("run.json") or {}
        if run.get("kind") != _KIND:
            raise ConfigError(f"{path} contains a run and no evaluation; choose another folder")
        before = run[_KIND]
        other = [name for name in now if before.get(name) != now[name]]
        # Without episodes, its policy could not be loaded.
        if other and any(path.glob("trajectories/*")):
            differences = "; ".join(
                f"{n} is {_shown(n, before.get(n))} there, {_shown(n, now[n])} here" for n in other
            )
            raise ConfigError(
                f"{path} contains another evaluation: {differences}. Choose another folder with "
                "--out, or move this one aside with --fresh"
            )


def eval_starts(
    tasks: TaskSet,
    split: str,
    samples: int,
    seed: int,
    limit: int | None = None,
    per_category: int | None = None,
) -> list[EpisodeSpec]:
    """`samples` episodes of each task of a split, or of its first ones; see `_first_tasks`."""
    ids = _first_tasks(tasks, tasks.split(split), limit or 0, per_category or 0)
    return _task_starts(tasks, ids, samples, seed, split)


def check_baseline(labels: Sequence[str], baseline: str | None) -> None:
    """Raise `ConfigError` if no policy has this label."""
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline {baseline!r} is not one of {', '.join(map(repr, labels))}")


def evaluation_key(name: str) -> str:
    """The folder of a suite's evaluation with this name."""
    return label_file_name(name).lower().replace(".", "-")


def digest_folder(name: str, values: Mapping[str, Any]) -> Path:
    """The default folder for what has these values, as JSON returns them."""
    whole = json.dumps(values, sort_keys=True, default=str).encode()
    return Path("runs/eval") / f"{name}-{hashlib.blake2b(whole, digest_size=5).hexdigest()}"


@contextlib.contextmanager
def eval_store(path: Path, plan: EvalPlan, *, fresh: bool = False) -> Iterator[RunStore]:
    """The store of this evaluation, new or existing, locked for other processes.

    Raises `ConfigError` if the folder contains anything else. `fresh` moves its content aside.
    """
    with folder_lock(path, "--out"):
        if fresh and not is_unused(path):
            move_aside(path)
        plan.check_same(path)
        store = RunStore(path)
        if not any(path.glob("trajectories/*")):
            (path / "trajectories").mkdir(exist_ok=True)
            facts = run_metadata(plan.as_dict()) | {"kind": _KIND}
            store.write_json("run.json", {**facts, _KIND: facts.pop("config")})
        yield store


def label_file_name(text: str) -> str:
    """A text as a file name: short, with letters, digits and a few other characters."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")[:60] or "policy"


def _task_starts(
    tasks: TaskSet, ids: Sequence[str], samples: int, seed: int, split: str
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


def _first_tasks(
    tasks: TaskSet, ids: Sequence[str], limit: int, per_category: int
) -> Sequence[str]:
    """The first `per_category` tasks of each category, and of those the first `limit`; 0 is all."""
    if per_category:
        taken: Counter[str | None] = Counter()
        first = []
        for task in ids:
            taken[tasks.category(task)] += 1
            if taken[tasks.category(task)] <= per_category:
                first.append(task)
        ids = first
    return ids[: limit or None]


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
    path, place = Path(text), f"--tasks {text!r} is not a file, and "
    found = [text]
    if path.is_file():
        try:
            found = _ids_in(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--tasks {text!r} cannot be read: {error}") from error
    for number, task in enumerate(found, 1):
        if path.is_file():
            place = f"--tasks {text!r}, entry {number}: "
        try:
            known.split_of(task)
        except LookupError as error:
            raise ConfigError(f"{place}{error}") from error
    return found


def _ids_in(path: Path) -> list[str]:
    """One id per line, or AgentGym's objects with an `item_id`, as a JSON list or as lines."""
    from agentgym_train.data.files import read_rows

    content = path.read_text(encoding="utf-8-sig")
    if not content.lstrip().startswith(("[", "{")):
        lines = (line.strip() for line in content.splitlines())
        return [line for line in lines if line and not line.startswith("#")]
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


def _shown(name: str, value: Any) -> str:
    """A value of a plan, for an error."""
    if name == "policies" and isinstance(value, list):
        return ", ".join(
            f"{p['label']}={p['policy']}" + (f" (weights {p['weights']})" if p["weights"] else "")
            for p in value
        )
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
