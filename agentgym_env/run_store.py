"""The run store: the folder of a run, for training, evaluation and the viewer.

```
RUN/run.json                the config, versions, git revision, seed and command
RUN/metrics.jsonl           one line per optimizer step
RUN/trajectories/*.jsonl    one episode per line, append-only
RUN/tokens/                 the tokens that training stores: agentgym_env/token_store.py
RUN/checkpoints/            the trainer's
RUN/summary.json            written at the end
RUN/.lock                   the process that currently writes to the folder: run_lock.py
```
A process killed while writing leaves at most one incomplete line, which readers report and skip.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentgym_env.errors import BadRequest, FolderInUse
from agentgym_env.printable import printable
from agentgym_env.run_lock import LOCK_FILE, is_unused
from agentgym_env.trajectory import Trajectory

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that could not be read."""

    path: Path
    line: int
    """Counted from 1; 0 if it is the file, or a part of the folder, that could not be read."""
    reason: str

    @property
    def place(self) -> str:
        """The file and the line."""
        return f"{self.path}, line {self.line}" if self.line else str(self.path)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a readable file below a folder, not a link to one outside of it."""
    # `os.path` answers no where `Path` raises: links in a circle, a folder that may not be read.
    readable = os.path.isfile(path) and os.access(path, os.R_OK)
    return readable and path.resolve().is_relative_to(folder.resolve())


def links_out(folder: Path) -> dict[str, str]:
    """The links in a run's folder that lead out of it, by name, and where they lead."""
    real, found = folder.resolve(), {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place) / name for name in (*folders, *files)):
            target = Path(os.path.realpath(path))  # unlike `resolve`, of links in a circle too
            if path.is_symlink() and not target.is_relative_to(real):
                found[str(path.relative_to(folder))] = str(target)
    return found


def readable_files(folder: Path, kind: str) -> tuple[list[Path], list[str]]:
    """(the files of a run's subfolder `kind` in order, messages about those that are not read)."""
    files, messages = [], []
    place = folder / kind
    if not os.path.lexists(place):
        return [], []
    if not (os.path.isdir(place) and os.access(place, os.R_OK | os.X_OK)):
        return [], [f"{kind} is not a readable folder and is ignored."]
    real = place.resolve()
    if not real.is_relative_to(folder.resolve()):
        return [], [
            f"{kind} is a link out of the run's folder, to {printable(str(real))}, and is ignored. "
            "Name the run's real folder, or replace the link with a copy."
        ]
    for path in sorted(place.glob("*.jsonl")):
        name = printable(f"{kind}/{path.name}")
        if path.name.startswith("."):
            messages.append(f"{name} has a name that begins with a dot and is ignored.")
        elif not is_inside(path, folder):
            messages.append(f"{name} is not a readable file of this folder and is ignored.")
        elif not is_unicode(path):
            messages.append(f"{name} has a name that is not UTF-8 and is ignored.")
        else:
            files.append(path)
    return files, messages


def is_unicode(path: Path) -> bool:
    """Whether a path can be written as UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


class RunStore:
    """One run folder. `create` starts a new one, `open` continues or reads one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, run: Mapping[str, Any]) -> RunStore:
        """Start a run in `path`; an existing folder is renamed, never overwritten."""
        if not is_unused(path):
            move_aside(path)
        (path / "trajectories").mkdir(parents=True, exist_ok=True)
        store = cls(path)
        store.write_json("run.json", run)
        return store

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Open a run; raises `BadRequest` if there is none."""
        if not (path / "run.json").is_file():
            raise BadRequest(f"no run in {path}: it has no run.json. Name the folder of a run")
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        """The trainer's checkpoints."""
        return self.path / "checkpoints"

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file atomically."""
        target = self.path / name
        partial = target.with_name(target.name + ".partial")
        # A file or link of this name is an earlier write's, or a trap: it is not written through.
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(target)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the run; None if it does not exist."""
        target = self.path / name
        if not target.is_file():
            return None
        try:
            found = json.loads(target.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{target} is damaged ({error}); restore or remove it") from error
        if not isinstance(found, dict):
            raise BadRequest(f"{target} is not a JSON object; restore or remove it")
        return found

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one step's metrics."""
        self._append("metrics.jsonl", [msgspec.json.encode(row)])

    def append_trajectories(self, name: str, trajectories: Iterable[Trajectory]) -> list[int]:
        """Append episodes to `trajectories/NAME.jsonl`; return the byte offset of each line."""
        return self._append(f"trajectories/{name}.jsonl", map(msgspec.json.encode, trajectories))

    def append_tokens(self, name: str, kept: Iterable[msgspec.Struct]) -> None:
        """Append stored tokens to `tokens/NAME.jsonl`."""
        (self.path / "tokens").mkdir(exist_ok=True)
        self._append(f"tokens/{name}.jsonl", map(msgspec.json.encode, kept))

    def replace_trajectories(self, name: str, trajectories: Iterable[Trajectory]) -> None:
        """Write `trajectories/NAME.jsonl`; what an interrupted process has left there is lost."""
        (self.path / f"trajectories/{name}.jsonl").unlink(missing_ok=True)
        self.append_trajectories(name, trajectories)

    def keep_steps(self, steps: int, name: str = "train") -> None:
        """Move away what follows the first `steps` steps, which a resumed training repeats.

        These are the episodes of `trajectories/NAME.jsonl` from the first one of a later step on,
        their tokens, and the metrics of later steps. They are appended to files of the same names
        in the folder `repeated`, which no command reads.
        """
        end = self._first(f"trajectories/{name}.jsonl", "step", steps)
        # The tokens first: where they end is known from the episodes. Killed here, it starts again.
        if end is not None:
            tokens = self._first(f"tokens/{name}.jsonl", "episode", end)
            self._cut(f"tokens/{name}.jsonl", tokens)
            self._cut(f"trajectories/{name}.jsonl", end)
        self._cut("metrics.jsonl", self._first("metrics.jsonl", "step", steps + 1))

    def set_aside(self, *names: str, folder: str) -> None:
        """Move files and folders into a folder of the run, in place of those of the same names.

        Names are patterns of `Path.glob`.
        """
        for path in [path for name in names for path in self.path.glob(name)]:
            moved = self.path / folder / path.relative_to(self.path)
            moved.parent.mkdir(parents=True, exist_ok=True)
            if moved.is_dir():
                shutil.rmtree(moved)
            path.replace(moved)

    def metrics(self) -> tuple[list[dict[str, Any]], list[BrokenLine]]:
        """The metrics of all steps in order; for a repeated step, the last."""
        path, broken = self.path / "metrics.jsonl", []
        by_step: dict[int, dict[str, Any]] = {}
        for number, row in each_line(path, dict[str, Any]):
            if isinstance(row, BrokenLine):
                broken.append(row)
            elif isinstance(step := row.get("step", -1), int):
                by_step[step] = row
            else:
                broken.append(BrokenLine(path, number, "`step` is not an integer"))
        return [by_step[step] for step in sorted(by_step)], broken

    def trajectories(self, name: str) -> tuple[list[Trajectory], list[BrokenLine]]:
        """The episodes of `trajectories/NAME.jsonl`; raises `BadRequest` for a link elsewhere."""
        path = self.path / "trajectories" / f"{name}.jsonl"
        if os.path.lexists(path) and not is_inside(path, self.path):
            raise BadRequest(
                f"{path} is no readable file of this run, but perhaps a link to another folder; "
                "replace it with a copy"
            )
        return read_lines(path, Trajectory)

    def _first(self, name: str, key: str, least: int) -> int | None:
        """The offset of the first line of a file whose `key` is `least` or more, if any."""
        path = self.path / name
        if not path.is_file():
            return None
        begin = 0
        with path.open("rb") as file:
            for line in file:
                value = _value_of(line, key)
                if isinstance(value, int) and value >= least:
                    return begin
                begin += len(line)
        return None

    def _cut(self, name: str, begin: int | None) -> None:
        """Move the lines of a file from an offset on; None moves nothing."""
        if begin is None:
            return
        with (self.path / name).open("r+b") as file:
            file.seek(begin)
            repeated = self.path / "repeated" / name
            repeated.parent.mkdir(parents=True, exist_ok=True)
            with repeated.open("ab") as copy:
                shutil.copyfileobj(file, copy)
            file.truncate(begin)

    def _append(self, name: str, lines: Iterable[bytes]) -> list[int]:
        return append_lines(self.path / name, lines)


def append_lines(path: Path, lines: Iterable[bytes]) -> list[int]:
    """Append lines to a file in one write; return the byte offset of each."""
    block, begins = bytearray(), []
    with path.open("ab") as file:
        before = file.tell()
        if before and _last_byte(path) != b"\n":
            # End the incomplete line that a killed process left behind.
            block += b"\n"
        for line in lines:
            begins.append(before + len(block))
            block += line + b"\n"
        file.write(block)
    return begins


def _value_of(line: bytes, key: str) -> Any:
    """The value of a key in a line, or None."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any]).get(key)
    except (ValueError, RecursionError):
        return None


def read_lines(path: Path, kind: type[_T]) -> tuple[list[_T], list[BrokenLine]]:
    """The lines of a JSON-lines file as `kind`, and the invalid ones; empty if there is no file."""
    rows: list[_T] = []
    broken: list[BrokenLine] = []
    for _, row in each_line(path, kind):
        if isinstance(row, BrokenLine):
            broken.append(row)
        else:
            rows.append(row)
    return rows, broken


def each_line(path: Path, kind: type[_T]) -> Iterator[tuple[int, _T | BrokenLine]]:
    """Yield (line number from 1, value) for each line, without loading the whole file."""
    if not path.is_file():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, decoder.decode(line)
            except (ValueError, RecursionError) as error:
                yield number, BrokenLine(path, number, str(error))


def next_free_name(path: Path) -> Path:
    """The first free name of `NAME.old-1`, `NAME.old-2`, ..., next to a link's target."""
    path, number = _target(path), 1
    while (candidate := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return candidate


def move_aside(path: Path) -> None:
    """Rename a run to its next free name. A lock on it stays locked, at the old path."""
    path, aside = _target(path), next_free_name(path)
    if not (path / LOCK_FILE).exists():
        _rename(path, aside)
        return
    # The lock moves into a new folder, which then takes the old one's place. If another process
    # creates and locks the folder between the renames, the last one fails.
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    fresh.mkdir()
    try:
        _rename(path, aside)
    except BadRequest:
        fresh.rmdir()
        raise
    (aside / LOCK_FILE).rename(fresh / LOCK_FILE)
    try:
        fresh.rename(path)
    except OSError as error:
        (fresh / LOCK_FILE).unlink()
        fresh.rmdir()
        raise FolderInUse(
            f"{path} was locked by another process at this moment; wait until it ends, or choose "
            "another folder"
        ) from error


def _rename(path: Path, aside: Path) -> None:
    try:
        path.rename(aside)
    except OSError as error:
        # A disk of its own cannot be renamed, nor what is in a folder that is read-only.
        raise BadRequest(
            f"cannot move {path} aside ({error.strerror}); choose another folder, such as one in it"
        ) from error


def _target(path: Path) -> Path:
    """The target of a link: a run on another disk is replaced there, and the link stays."""
    return path.resolve() if path.is_symlink() else path


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


_VERSIONS = ("agentgym-sdk", "torch", "transformers", "trl", "accelerate", "gymnasium")


def last_step(rows: Sequence[Mapping[str, Any]]) -> int:
    """The last step of a run by the rows of its metrics; 0 without rows."""
    return int(rows[-1]["step"]) if rows else 0


def run_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as plain values, its seed, the command, versions and revision."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return {
        "config": dict(config),
        "seed": config.get("seed"),
        "command": " ".join(sys.argv),
        "versions": versions,
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10
    )
    return done.stdout.strip() or None
