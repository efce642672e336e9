"""What fixes an evaluation, and the folder that belongs to it: the same command finds it again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from agentgym_env.errors import BadRequest
from agentgym_env.run_lock import folder_lock, is_unused
from agentgym_env.run_store import RunStore, move_aside
from agentgym_train.policy_names import PolicyName

KIND: Final = "evaluation"
FOLDER: Final = Path("runs/eval")
_BLOCKS: Final = 64
_BLOCK_BYTES: Final = 65_536
_WEIGHTS: Final = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """One policy of an evaluation."""

    label: str
    """What tables call it."""
    policy: str
    file: str
    """Its episodes are in `trajectories/FILE.jsonl`."""
    weights: str = ""
    """Of a model's folder: a digest that changes when it is trained on."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Everything that the figures depend on."""

    env: str
    env_kwargs: Mapping[str, Any]
    env_version: str
    """Of the package that serves it."""
    split: str
    tasks: Sequence[str]
    samples: int
    horizon: int
    seed: int
    instruction: str
    action_format: str
    agent: str
    temperature: float
    turn_max_tokens: int
    max_tokens: int
    dtype: str
    policies: Sequence[PolicyPlan] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they come out of JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def folder(self) -> Path:
        """Where an evaluation goes whose user names no folder: another plan, another folder."""
        whole = json.dumps(self.as_dict(), sort_keys=True).encode()
        world = _file_name(self.env.rpartition("/")[2].rpartition(":")[2])
        digest = hashlib.blake2b(whole, digest_size=5).hexdigest()
        return FOLDER / f"{world}-{_file_name(self.split)}-{digest}"


def policy_plans(named: Sequence[tuple[str, PolicyName]]) -> tuple[PolicyPlan, ...]:
    """Policies with a file each; raises `BadRequest` where two have one label."""
    plans: list[PolicyPlan] = []
    for label, name in named:
        if any(plan.label == label for plan in plans):
            raise BadRequest(
                f"two policies are called {label!r}; give one a label: --policy LABEL={name}"
            )
        file = base = _file_name(label)
        number = 2
        while any(plan.file.lower() == file.lower() for plan in plans):
            file, number = f"{base}-{number}", number + 1
        weights = folder_digest(Path(name.model).expanduser()) if name.kind == "hf" else ""
        plans.append(PolicyPlan(label, str(name), file, weights))
    return tuple(plans)


@contextlib.contextmanager
def eval_store(path: Path, plan: EvalPlan, *, fresh: bool = False) -> Iterator[RunStore]:
    """The store of this evaluation, new or begun before; nobody else may write to it meanwhile.

    Raises `BadRequest` where the folder holds anything else. `fresh` moves what it holds aside.
    """
    with folder_lock(path, "--out"):
        if fresh and not is_unused(path):
            move_aside(path)
        if (path / "run.json").is_file():
            store = RunStore.open(path)
            _check_same(store, plan)
        elif not is_unused(path):
            raise BadRequest(f"{path} holds something else than an evaluation; name another folder")
        else:
            (path / "trajectories").mkdir()
            store = RunStore(path)
            store.write_json("run.json", _facts(plan))
        yield store


def read_plan(store: RunStore) -> dict[str, Any]:
    """What fixed the evaluation of a store; raises `BadRequest` where there was none."""
    run = store.read_json("run.json") or {}
    if run.get("kind") != KIND:
        raise BadRequest(f"{store.path} holds a run and no evaluation; name another folder")
    found: dict[str, Any] = run[KIND]
    return found


def folder_digest(folder: Path) -> str:
    """A digest of a model's folder by samples of its files; empty where there is no such folder.

    Training changes nearly every weight, so blocks spread over a file tell as much as all of it.
    """
    if not folder.is_dir():
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.suffix not in _WEIGHTS or not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for block in range(_BLOCKS):
                opened.seek(block * size // _BLOCKS)
                digest.update(opened.read(_BLOCK_BYTES))
                if size <= _BLOCK_BYTES:
                    break
    return digest.hexdigest()


def _check_same(store: RunStore, plan: EvalPlan) -> None:
    before, now = read_plan(store), plan.as_dict()
    other = [name for name in now if before.get(name) != now[name]]
    if other:
        raise BadRequest(
            f"{store.path} holds another evaluation: "
            + "; ".join(
                f"{n} is {_short(before.get(n))} there, {_short(now[n])} here" for n in other
            )
            + ". Name another folder by --out, or move this one aside by --fresh"
        )


def _facts(plan: EvalPlan) -> dict[str, Any]:
    versions = {"python": sys.version.split()[0]}
    for name in ("agentgym-sdk", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "kind": KIND,
        KIND: plan.as_dict(),
        "seed": plan.seed,
        "command": " ".join(sys.argv),
        "versions": versions,
    }


def _file_name(text: str) -> str:
    """A text as a file's name: short, and of letters, digits and a few signs."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")[:60] or "policy"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
