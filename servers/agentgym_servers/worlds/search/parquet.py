"""Questions in parquet files and in Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_env.errors import BadRequest, MissingExtra

try:
    import datasets
    import pyarrow
    import pyarrow.parquet
except ModuleNotFoundError as error:
    raise MissingExtra(
        "questions in parquet files and Hugging Face datasets need datasets: "
        "pip install 'agentgym-sdk[train]'"
    ) from error

_WANTED = (
    "id", "question", "golden_answers", "answers", "answer", "possible_answers", "answer_aliases",
    "data_source", "reward_model",
)  # fmt: skip

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Rows with their numbers, from 1."""


def parquet_rows(path: Path) -> Rows:
    """The rows of a file, as far as questions need them."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in _WANTED]
            batches = file.iter_batches(columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadRequest(f"cannot read the questions {path}: {error}") from error


def hub_splits(name: str, config: str | None, split: str | None) -> Iterator[tuple[str, Rows]]:
    """The splits of a dataset, or the one that is named."""
    try:
        loaded = datasets.load_dataset(name, config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise BadRequest(f"cannot load the dataset {name}: {error}") from error
    if split is not None and split not in loaded:
        raise BadRequest(f"{name} has no split {split!r}; there are {', '.join(loaded)}")
    for one in loaded if split is None else [split]:
        columns = [column for column in loaded[one].column_names if column in _WANTED]
        yield one, enumerate(loaded[one].select_columns(columns), 1)
