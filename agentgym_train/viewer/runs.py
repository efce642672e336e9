"""The runs on the page: names, facts, figures and read errors."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.viewer.index import Index

_STILL_GOING_S = 90.0
"""A run without a summary whose files were written to this lately is said to be running."""
_AT_THE_END = ("summary.json", "report.json")
"""What training and evaluation write when they are through."""
_WRITTEN = ("metrics.jsonl", "trajectories", "tokens", "checkpoints", "run.json")


class Runs:
    """The folders that were named, and the runs in them, by their names."""

    def __init__(self, roots: Sequence[Path], index: Index) -> None:
        self._roots = [root.resolve() for root in roots]
        self._index = index
        self.paths: dict[str, Path] = {}
        """By name, which stands in the page's addresses."""
        self.ids: dict[str, int] = {}
        """The runs' numbers in the index, by name."""
        self._metrics: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        if not self.look():
            named = ", ".join(str(root) for root in roots)
            raise ConfigError(
                f"no run in {named}: a run's folder has a run.json or a folder of trajectories. "
                "Name the folder of a run, or one that holds runs"
            )

    def look(self) -> bool:
        """Look for runs that came since; whether there are any at all."""
        for root in self._roots:
            found = [root] if _is_run(root) else sorted(p for p in _folders(root) if _is_run(p))
            for path in found:
                if path not in self.paths.values():
                    name = _free_name(path, self.paths)
                    self.paths[name] = path
                    self.ids[name] = self._index.run_id(path)
        return bool(self.paths)

    def name_of(self, run: int) -> str:
        """The name of a run by its number."""
        return next(name for name, number in self.ids.items() if number == run)

    def facts(self, name: str) -> dict[str, Any]:
        """What the overview tells of a run."""
        path = self.paths[name]
        written = _last_written(path)
        done = any((path / file).is_file() for file in _AT_THE_END)
        going = not done and written is not None and time.time() - written < _STILL_GOING_S
        return {
            "name": name,
            "path": str(path),
            "state": "complete" if done else "running" if going else "stopped",
            "written": written,
            "told": _told(self.config(name)),
            "before": _success(path, "eval_before"),
            "after": _success(path, "eval_after"),
            "missing": self.missing(name),
        }

    def config(self, name: str) -> dict[str, Any]:
        """What a run was told: training's config, an evaluation's plan, or all of its run.json."""
        asked = _read(self.paths[name] / "run.json") or {}
        for key in ("config", asked.get("kind")):
            found = asked.get(key) if isinstance(key, str) else None
            if isinstance(found, dict):
                return found
        return asked

    def missing(self, name: str) -> list[str]:
        """One sentence for everything in a run's folder that could not be read."""
        path, run = self.paths[name], self.ids[name]
        said = []
        for file in ("run.json", *_AT_THE_END):
            if (path / file).is_file() and _read(path / file) is None:
                said.append(f"{file} is no JSON object; what it says is not shown.")
        if not (path / "run.json").is_file():
            said.append("There is no run.json; what was asked for is not known.")
        for broken in self.metrics(name)["broken"]:
            said.append(broken)
        for row in self._index.rows(
            "SELECT f.kind, f.name, b.line, b.reason, COUNT(*) AS n FROM broken b "
            "JOIN files f ON f.id = b.file WHERE f.run = ? GROUP BY f.id ORDER BY f.name",
            (run,),
        ):
            file = f"{row['kind']}/{row['name']}.jsonl"
            more = f" and {row['n'] - 1} more" if row["n"] > 1 else ""
            said.append(
                f"{file}: line {row['line']}{more} could not be read and is left out "
                f"({row['reason']})."
            )
        for row in self._index.rows(
            "SELECT kind, name, size - upto AS rest, lines FROM files WHERE run = ? "
            f"AND size > upto AND size - upto < {16 * 2**20}",
            (run,),
        ):
            file = f"{row['kind']}/{row['name']}.jsonl"
            if self._is_cut(path / f"{file}", row["rest"]):
                said.append(
                    f"{file}: line {row['lines'] + 1}, the last, is cut off after {row['rest']:,} "
                    "bytes and is left out."
                )
        return said

    def metrics(self, name: str) -> dict[str, Any]:
        """A run's figures by column, None where a step has none, and what could not be read."""
        path = self.paths[name] / "metrics.jsonl"
        stat = path.stat() if path.is_file() else None
        stamp = (stat.st_size, stat.st_mtime_ns) if stat else (0, 0)
        kept = self._metrics.get(name)
        if kept is None or kept[0] != stamp:
            rows, broken = RunStore(self.paths[name]).metrics()
            columns = sorted({key for row in rows for key in row if _is_number(row[key])})
            kept = (
                stamp,
                {
                    "columns": {c: [_rounded(row.get(c)) for row in rows] for c in columns},
                    "broken": [
                        f"metrics.jsonl: line {b.line} could not be read and is left out "
                        f"({b.reason})."
                        for b in broken
                    ],
                },
            )
            self._metrics[name] = kept
        return kept[1]

    def stamp(self) -> str:
        """A text that changes with what is known of the runs."""
        metrics = [path / "metrics.jsonl" for path in self.paths.values()]
        sizes = sum(file.stat().st_size for file in metrics if file.is_file())
        return f"{len(self.paths)}-{self._index.stamp()}-{sizes}"

    def _is_cut(self, path: Path, rest: int) -> bool:
        """Whether a file ends within a line; what was not read yet is no cut line."""
        with path.open("rb") as file:
            file.seek(-rest, 2)
            return b"\n" not in file.read(rest)


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "trajectories").is_dir()


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _free_name(path: Path, taken: dict[str, Path]) -> str:
    """The folder's name; with those above it, and at last a number, where that is taken."""
    parts = [part for part in path.parts if part != path.anchor]
    for count in range(1, len(parts) + 1):
        if (name := "~".join(parts[-count:])) not in taken:
            return name
    return f"{path.name}~{len(taken)}"


def _told(config: dict[str, Any]) -> dict[str, str]:
    """What the overview shows of a config, each in a few words."""
    policies = config.get("policies")
    labels = [
        str(policy.get("label", "")) if isinstance(policy, dict) else str(policy)
        for policy in (policies if isinstance(policies, list) else [])
    ]
    horizon = config.get("horizon")
    told = {
        "env": config.get("env"),
        "algorithm": config.get("algorithm"),
        "policy": config.get("model") or config.get("policy") or ", ".join(labels),
        "horizon": " → ".join(map(str, horizon)) if isinstance(horizon, list) else horizon,
        "seed": config.get("seed"),
    }
    return {name: str(value)[:300] for name, value in told.items() if value not in (None, "")}


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none, which `missing` tells of."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _success(path: Path, name: str) -> float | None:
    found = (_read(path / f"{name}.json") or {}).get("success")
    return _rounded(found)


def _last_written(path: Path) -> float | None:
    times = [(path / name).stat().st_mtime for name in _WRITTEN if (path / name).exists()]
    times += [file.stat().st_mtime for file in path.glob("trajectories/*.jsonl")]
    return max(times, default=None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: Any) -> float | None:
    """Six figures are more than a screen shows; JSON has no NaN."""
    if not _is_number(value) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
