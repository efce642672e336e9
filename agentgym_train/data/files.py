"""Files of rows: JSON, JSON lines and Parquet; knows nothing about episodes."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_env.run_store import BrokenLine

ENDINGS: Final = (".jsonl", ".json", ".parquet")
"""The files that episodes are written to and read from."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One object of a file."""

    path: Path
    line: int
    """Its line, counted from 1; in an array and in Parquet the number of the row."""
    values: dict[str, Any]


def read_rows(path: Path) -> tuple[list[FileRow], list[BrokenLine]]:
    """The objects of a file, and what is no object; raises `ConfigError` if it cannot be read."""
    if path.suffix.lower() == ".parquet":
        return [FileRow(path, n, values) for n, values in enumerate(_parquet_rows(path), 1)], []
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    pieces: list[Any] = data.splitlines()
    if data.lstrip()[:1] == b"[":
        try:
            pieces = msgspec.json.decode(data, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            return [], [BrokenLine(path, 0, f"the JSON array is not valid: {error}")]
    rows, broken = [], []
    for number, piece in enumerate(pieces, 1):
        try:
            if bytes(piece).strip():
                values = msgspec.json.decode(piece, type=dict[str, Any])
                rows.append(FileRow(path, number, values))
        except (ValueError, RecursionError) as error:  # a ValueError: msgspec's and Unicode's
            broken.append(BrokenLine(path, number, str(error)))
    return rows, broken


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file in the format of its ending. Returns the number of rows.

    In `.json` (an array) and `.jsonl`, each row has a line of its own.
    """
    kind = path.suffix.lower()
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {path.name}: the folder {path.parent} does not exist")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if kind == ".parquet":
            number = _write_parquet(partial, rows)
        else:
            number = _write_lines(partial, rows, array=kind == ".json")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return number


def _write_lines(path: Path, rows: Iterable[dict[str, Any]], *, array: bool) -> int:
    first, between, last = (b"[\n", b",\n", b"\n]\n") if array else (b"", b"\n", b"\n")
    number = 0
    with path.open("wb") as file:
        for row in rows:
            file.write((between if number else first) + msgspec.json.encode(row))
            number += 1
        file.write(last if number else first + last.lstrip(b"\n"))
    return number


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file with a column for each key of the rows."""
    pyarrow = _pyarrow()
    table = pyarrow.Table.from_pylist(list(rows))
    pyarrow.parquet.write_table(table, path)
    return int(table.num_rows)


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    pyarrow = _pyarrow()
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error
    # A column has a value for each row: null where a row lacks it.
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "Parquet files need pyarrow: pip install 'agentgym-sdk[train]'; or use .jsonl"
        ) from error
    return pyarrow
