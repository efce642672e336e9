"""Files of rows: JSON, JSON lines and Parquet; knows nothing about episodes."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_env.run_store import BrokenLine

ENDINGS: Final = (".jsonl", ".json", ".parquet")
"""The files that episodes are written to and read from."""
_SPACE: Final = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class FileRow:
    """One object of a file."""

    path: Path
    line: int
    """Its first line, counted from 1; in Parquet the number of the row."""
    values: dict[str, Any]


def read_rows(path: Path) -> tuple[list[FileRow], list[BrokenLine]]:
    """The objects of a file; raises `ConfigError` if it cannot be read."""
    if path.suffix.lower() == ".parquet":
        return [FileRow(path, n, values) for n, values in enumerate(_parquet_rows(path), 1)], []
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    found = list(_array(path, data) if data.lstrip()[:1] == b"[" else _lines(path, data))
    rows = [item for item in found if isinstance(item, FileRow)]
    return rows, [item for item in found if isinstance(item, BrokenLine)]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file in the format of its ending. Returns the number of rows.

    In `.json` (an array) and `.jsonl`, each row has a line of its own, so that a broken line does
    not affect others.
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


def _lines(path: Path, data: bytes) -> Iterator[FileRow | BrokenLine]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
        except ValueError as error:  # the base of msgspec's and Unicode's errors
            yield BrokenLine(path, number, str(error))
        else:
            yield _row(path, number, value)


def _array(path: Path, data: bytes) -> Iterator[FileRow | BrokenLine]:
    """The elements of an array.

    After a broken element, it continues at the next line that begins like the first element.
    """
    text = data.decode("utf-8", errors="surrogateescape")
    decoder = json.JSONDecoder()
    at, line, seen = _skip(text, text.index("[") + 1), 1, 0
    indent = text[text.rfind("\n", 0, at) + 1 : at]
    again = re.compile(f"^{'' if indent.strip() else indent}(?=\\{{)", re.MULTILINE)
    while at < len(text) and text[at] != "]":
        line, seen = line + text.count("\n", seen, at), at
        try:
            _, end = decoder.raw_decode(text, at)
            # Decoded again, so that the same rules apply to a line and an element.
            value = msgspec.json.decode(text[at:end].encode("utf-8", errors="surrogateescape"))
            end = _after_comma(text, end)
        except ValueError as error:
            yield BrokenLine(path, line, str(error))
            following = again.search(text, at + 1)
            if following is None:
                return
            at = following.end()
            continue
        yield _row(path, line, value)
        at = end
    line += text.count("\n", seen, at)
    if at >= len(text):
        yield BrokenLine(path, line, "the array is cut off")
    elif text[at + 1 :].strip():
        yield BrokenLine(path, line, "what follows the array is not read")


def _row(path: Path, line: int, value: Any) -> FileRow | BrokenLine:
    if isinstance(value, dict):
        return FileRow(path, line, value)
    return BrokenLine(path, line, f"is not an object, but {json.dumps(value)[:60]}")


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    if at < len(text) and text[at] not in ",]":
        raise ValueError(f"expected a comma after an element, got {text[at]!r}")
    return _skip(text, at + 1) if text[at : at + 1] == "," else at


def _skip(text: str, at: int) -> int:
    """The position after the whitespace at a position."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


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
