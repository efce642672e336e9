"""Writes and reads rows of episodes as Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym_env.errors import ConfigError, MissingExtra

try:
    import pyarrow
    import pyarrow.parquet
except ModuleNotFoundError as error:
    raise MissingExtra(
        "Parquet files need pyarrow: pip install 'agentgym-sdk[train]'; or use .jsonl"
    ) from error


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a file with a column for each key of the rows. Returns the number of rows."""
    table = pyarrow.Table.from_pylist(list(rows))
    pyarrow.parquet.write_table(table, path)
    return int(table.num_rows)


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; raises `ConfigError` if it cannot be read."""
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error
    # A column has a value for each row: null where a row lacks it.
    return [{name: value for name, value in row.items() if value is not None} for row in rows]
