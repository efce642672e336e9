"""The runs on the page: names, status, metrics and read errors."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore, is_inside, is_unicode, readable_files
from agentgym_env.spaces import clean_text
from agentgym_viewer.index import EpisodeIndex

_STILL_GOING_S = 90.0
"""A run without a summary is running if its files changed within this time."""
_AT_THE_END = ("summary.json", "report.json")
"""Files that training and evaluation write at the end."""
_DEPTH = 3
"""How many folders deep runs are searched, such as those of `runs/eval`."""
_MOST_BYTES = 256 * 2**20
"""Size above which a JSON file, or a run's metrics, are not read."""
_METHODS = {"sft": "SFT", "dpo": "DPO", "evolve": "AgentEvol"}
"""What a run trains by that has no `algorithm` among its settings."""
_WRITTEN = ("metrics.jsonl", "trajectories", "tokens", "checkpoints", "run.json")


class Runs:
    """The runs in the given folders, by name."""

    def __init__(self, roots: Sequence[Path], index: EpisodeIndex) -> None:
        self._roots = [root.resolve() for root in roots]
        self._index = index
        self.paths: dict[str, Path] = {}
        """Folders by name; the name is used in the page's URLs."""
        self.ids: dict[str, int] = {}
        """Ids in the index, by name."""
        self._metrics: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        if not self.look():
            named = ", ".join(str(root) for root in roots)
            raise ConfigError(
                f"no run in {named}: a run's folder has a run.json or a folder of trajectories. "
                "Pass the folder of a run, or a folder that contains runs"
            )

    def look(self) -> bool:
        """Search for new runs; returns whether there are any runs."""
        listed = set(self.paths.values())
        listed |= {path.resolve() for path in listed}
        for real, path in _found_in(self._roots).items():
            if real not in listed and path not in listed and is_unicode(path):
                name = _free_name(path, self.paths)
                self.paths[name] = path
                self.ids[name] = self._index.run_id(path)
        return bool(self.paths)

    def name_of(self, run: int) -> str:
        """The name of a run, by its id."""
        return next(name for name, number in self.ids.items() if number == run)

    def facts(self, name: str) -> dict[str, Any]:
        """The data of a run for the overview."""
        path = self.paths[name]
        written = _last_written(path)
        done = any((path / file).is_file() for file in _AT_THE_END)
        going = not done and written is not None and time.time() - written < _STILL_GOING_S
        return {
            "name": name,
            "path": str(path),
            "state": "complete" if done else "running" if going else "stopped",
            "written": written,
            "settings": _shown_settings(self.config(name)),
            "before": _success(path, "eval_before"),
            "after": _success(path, "eval_after"),
            "evaluated": _evaluated(path),
            "missing": self.missing(name),
        }

    def config(self, name: str) -> dict[str, Any]:
        """A run's config: that of training, the plan of an evaluation, or its run.json."""
        asked = _read(self.paths[name] / "run.json") or {}
        for key in ("config", asked.get("kind")):
            found = asked.get(key) if isinstance(key, str) else None
            if isinstance(found, dict):
                return found
        return asked

    def missing(self, name: str) -> list[str]:
        """Messages about files in a run's folder that could not be read."""
        path, run = self.paths[name], self.ids[name]
        said = []
        for file in ("run.json", *_AT_THE_END):
            if (path / file).exists() and _read(path / file) is None:
                said.append(f"{file} is not a JSON object and is ignored.")
        if not (path / "run.json").is_file():
            said.append("There is no run.json, so the run's settings are unknown.")
        said += self.metrics(name)["broken"]
        for kind in ("trajectories", "tokens"):
            said += readable_files(path, kind)[1]
        for row in self._index.rows(
            "SELECT f.kind, f.name, b.line, b.reason, COUNT(*) AS n FROM broken b "
            "JOIN files f ON f.id = b.file WHERE f.run = ? GROUP BY f.id ORDER BY f.name",
            (run,),
        ):
            file = f"{row['kind']}/{row['name']}.jsonl"
            more = f" and {row['n'] - 1} more" if row["n"] > 1 else ""
            said.append(
                f"{file}: line {row['line']}{more} could not be read and is ignored "
                f"({row['reason']})."
            )
        for row in self._index.rows(
            "SELECT kind, name, size - upto AS unread, lines FROM files WHERE run = ? "
            f"AND size > upto AND size - upto < {16 * 2**20}",
            (run,),
        ):
            file = f"{row['kind']}/{row['name']}.jsonl"
            if self._is_cut(path / f"{file}", row["unread"]):
                said.append(
                    f"{file}: line {row['lines'] + 1}, the last, is truncated after "
                    f"{row['unread']:,} bytes and is ignored."
                )
        return said

    def metrics(self, name: str) -> dict[str, Any]:
        """A run's metrics by column, None for steps without a value, and read errors."""
        path = self.paths[name] / "metrics.jsonl"
        if path.exists() and not is_inside(path, self.paths[name]):
            message = "metrics.jsonl is not a readable file of this folder."
            return {"columns": {}, "broken": [message]}
        stat = path.stat() if path.is_file() else None
        stamp = (stat.st_size, stat.st_mtime_ns) if stat else (0, 0)
        if stamp[0] > _MOST_BYTES:
            return {"columns": {}, "broken": [f"metrics.jsonl has {stamp[0]:,} bytes: too many."]}
        kept = self._metrics.get(name)
        if kept is None or kept[0] != stamp:
            rows, broken = RunStore(self.paths[name]).metrics()
            columns = sorted({key for row in rows for key in row if _is_number(row[key])})
            kept = (
                stamp,
                {
                    "columns": {c: [_rounded(row.get(c)) for row in rows] for c in columns},
                    "broken": [
                        f"metrics.jsonl: line {b.line} could not be read and is ignored "
                        f"({b.reason})."
                        for b in broken
                    ],
                },
            )
            self._metrics[name] = kept
        return kept[1]

    def stamp(self) -> str:
        """A version string that changes when the data of the runs changes."""
        metrics = [path / "metrics.jsonl" for path in self.paths.values()]
        sizes = sum(file.stat().st_size for file in metrics if file.is_file())
        return f"{len(self.paths)}-{self._index.stamp()}-{sizes}"

    def _is_cut(self, path: Path, unread: int) -> bool:
        """Whether a file's last line is incomplete, and not just unread."""
        try:
            with path.open("rb") as file:
                file.seek(-unread, 2)
                return b"\n" not in file.read(unread)
        except OSError:
            return False


def _is_run(path: Path) -> bool:
    # Unlike `Path`, these answer no for a folder that may not be read.
    return os.path.isfile(path / "run.json") or os.path.isdir(path / "trajectories")


def _found_in(roots: Sequence[Path]) -> dict[Path, Path]:
    """The runs in the roots: the resolved path of each, and its path without links if possible."""
    found: dict[Path, Path] = {}
    for root in roots:
        for path in _runs_below(root, _DEPTH):
            real = path.resolve()
            paths = (found.get(real, path), path)
            found[real] = min(paths, key=lambda path: (path != real, path.is_symlink()))
    return found


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    """The runs in a folder and its folders, in order of name, without those inside of a run."""
    if _is_run(folder):
        yield folder
    elif depth and folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield from _runs_below(path, depth - 1)


def _free_name(path: Path, taken: dict[str, Path]) -> str:
    """A unique name: the folder's name, with parent folders or a number if it is taken."""
    parts = [part for part in path.parts if part != path.anchor]
    for count in range(1, len(parts) + 1):
        if (name := "~".join(parts[-count:])) not in taken:
            return name
    return f"{path.name}~{len(taken)}"


def _shown_settings(config: dict[str, Any]) -> dict[str, str]:
    """The settings that the overview shows, as short texts."""
    policies = config.get("policies")
    labels = [
        str(policy.get("label", "")) if isinstance(policy, dict) else str(policy)
        for policy in (policies if isinstance(policies, list) else [])
    ]
    envs = _envs(config)
    own = [entry.get("horizon") or config.get("horizon") for entry in envs]
    horizons = (
        own if own and any(each != own[0] for each in own) else [*own, config.get("horizon")][:1]
    )
    settings = {
        "env": config.get("env") or ", ".join(str(entry.get("env", "")) for entry in envs),
        "algorithm": _type(config.get("algorithm")) or _METHODS.get(str(config.get("method"))),
        "policy": config.get("model") or config.get("policy") or ", ".join(labels),
        "horizon": ", ".join(map(_stages, horizons)),
        "seed": config.get("seed"),
    }
    return {
        name: clean_text(str(value)[:300])
        for name, value in settings.items()
        if value not in (None, "")
    }


def _envs(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The environments of a run with several."""
    envs = config.get("envs")
    return [entry for entry in envs if isinstance(entry, dict)] if isinstance(envs, list) else []


def _type(setting: Any) -> Any:
    """The type of a setting that may be a mapping."""
    return setting.get("type") if isinstance(setting, dict) else setting


def _stages(horizon: Any) -> str:
    horizon = horizon.get("turns") if isinstance(horizon, dict) else horizon
    stages = horizon if isinstance(horizon, list) else [horizon]
    return " → ".join(str(stage) for stage in stages if stage is not None)


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if the file is missing, invalid, or not a file of its folder."""
    if not is_inside(path, path.parent) or path.stat().st_size > _MOST_BYTES:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _success(path: Path, name: str) -> float | None:
    """The success of a run's evaluation; of several environments the mean."""
    found = _read(path / f"{name}.json") or {}
    reports = [found] if "success" in found else [r for r in found.values() if isinstance(r, dict)]
    known = [_rounded(report.get("success")) for report in reports]
    values = [value for value in known if value is not None]
    return sum(values) / len(values) if values and len(values) == len(known) else None


def _evaluated(path: Path) -> list[float | None]:
    """The success of each policy of an evaluation, in the report's order; empty for other runs."""
    reports = (_read(path / "report.json") or {}).get("reports")
    return [
        _rounded(report.get("success") if isinstance(report, dict) else None)
        for report in (reports.values() if isinstance(reports, dict) else ())
    ]


def _last_written(path: Path) -> float | None:
    files = [path / name for name in _WRITTEN] + readable_files(path, "trajectories")[0]
    times = [file.stat().st_mtime for file in files if os.path.exists(file)]
    return max(times, default=None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: Any) -> float | None:
    """Round to six digits; None for values that JSON does not support."""
    try:
        return float(f"{value:.6g}") if _is_number(value) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of floats
        return None
