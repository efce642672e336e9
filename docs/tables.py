"""Write the tables of figures into the pages, from the records in `results/`.

    python docs/tables.py            writes each table between its markers
    python docs/tables.py --check    reports what differs, and exits with 1

A marker is `<!-- table: NAME -->`, up to `<!-- end -->`; `results/NAME.json` is its record. The
format of a record is described in `results/README.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from agentgym_train.sampling_version import SAMPLING  # noqa: E402

Row = dict[str, Any]
Record = dict[str, Any]
MARKER: Final = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end -->", re.S)
REQUIRED: Final = ("title", "command", "commit", "date", "versions", "processor", "sampling")
T_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantiles 0.975 of Student's t with 1, 2, ... 10 degrees of freedom."""


class InvalidRecordError(Exception):
    """A record or a page cannot be used; the message says which and why."""


def half_width(values: list[float]) -> float:
    """Half of the 95 % t-interval of a mean; NaN for fewer than two values."""
    if not 2 <= len(values) <= len(T_95) + 1:
        return math.nan
    return T_95[len(values) - 2] * stdev(values) / math.sqrt(len(values))


def wilson(successes: int, episodes: int) -> tuple[float, float]:
    """The 95 % interval of a rate with one episode per task (Wilson 1927)."""
    z, rate = 1.959964, successes / episodes
    scale = 1 + z * z / episodes
    center = (rate + z * z / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    return max(0.0, center - half), min(1.0, center + half)


def number(value: Any, digits: int | None) -> str:
    """A figure as a table shows it; texts as they are."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if digits is None else f"{value:,.{digits}f}"


def with_interval(values: list[float], digits: int, sign: str = "") -> str:
    """The mean of values and the half-width of its interval, if there is one."""
    half = half_width(values)
    shown = f"{mean(values):{sign}.{digits}f}"
    return shown if math.isnan(half) else f"{shown} ± {half:.{digits}f}"


def paired(row: Row, rows: list[Row], column: Row) -> list[float]:
    """The differences of a row to the one it is compared with, seed by seed."""
    against = row.get("against", column.get("against"))
    other = next((r for r in rows if r["name"] == against), None)
    if against is None or other is row:
        return []
    if other is None:
        raise InvalidRecordError(f"the row {against!r} is missing")
    key = column["key"]
    there = dict(zip(other["seeds"], other[key], strict=True))
    if column.get("reverse"):
        return [there[s] - v for s, v in zip(row["seeds"], row[key], strict=True)]
    return [v - there[s] for s, v in zip(row["seeds"], row[key], strict=True) if s in there]


def rate(row: Row) -> str:
    """Success of one or more episodes per task, with its 95 % interval."""
    if "successes" in row:
        value, interval = (
            row["successes"] / row["episodes"],
            wilson(row["successes"], row["episodes"]),
        )
    else:
        value, interval = row["success"], row.get("interval")
    if interval is None:
        return f"{value:.3f}".rstrip("0").ljust(4, "0")
    return f"{value:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def cell(row: Row, rows: list[Row], column: Row) -> str:
    """What a column shows of a row."""
    show, key = column["show"], column.get("key", "")
    digits = column.get("digits")
    if show == "rate":
        text = rate(row) if "successes" in row or "success" in row else ""
    elif row.get(key) is None:
        text = ""
    elif show == "values":
        text = " ".join(number(value, digits) for value in row[key])
    elif show == "mean":
        text = with_interval(row[key], digits or 3)
    elif show == "average":
        text = number(mean(row[key]), digits)
    elif show == "difference":
        values = paired(row, rows, column)
        text = with_interval(values, digits or 3, "+") if values else ""
    elif show == "ratio":
        base = next(r for r in rows if r["name"] == column["against"])
        text = f"{row[key] / base[key]:.{digits or 1}f}"
    elif show == "value":
        text = number(row[key], digits)
    else:
        raise InvalidRecordError(f"a column cannot show {show!r}")
    if row.get("other_servers") and text:
        return f'<span style="color: gray">{text}</span>'
    return text


def sampling_of(record: Record) -> set[int]:
    """The versions of the sampling code of a record's runs; those without sampling have none."""
    found = {row.get("sampling", record["sampling"]) for row in record["rows"]}
    return {version for version in found if version is not None}


def table(record: Record) -> str:
    """The record's table, with a line about its origin."""
    columns, rows = record["columns"], record["rows"]
    lines = ["| " + " | ".join(c["title"] for c in columns) + " |"]
    lines += ["|" + "|".join("---:" if c.get("right") else "---" for c in columns) + "|"]
    lines += ["| " + " | ".join(cell(r, rows, c) for c in columns) + " |" for r in rows]
    notes = []
    versions = sampling_of(record)
    if versions and versions != {SAMPLING} and not record.get("marks_sampling"):
        notes.append(
            f"Sampling code {min(versions)}; today's is {SAMPLING}, so the same seeds give other "
            "episodes."
        )
    if "origin" in record:
        notes.append(f"Record: {record['origin']}.")
    return "\n".join(lines) + "\n" + ("\n" + " ".join(notes) + "\n" if notes else "")


def read_record(name: str, folder: Path) -> Record:
    """A record, checked."""
    path = folder / f"{name}.json"
    if not path.is_file():
        raise InvalidRecordError(f"the table {name} has no record: {path.name} is missing")
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    if missing := [key for key in (*REQUIRED, "columns", "rows") if key not in record]:
        raise InvalidRecordError(f"{path.name} lacks {', '.join(missing)}")
    # The leaderboard shows the version in each row instead.
    if len(versions := sampling_of(record)) > 1 and not record.get("marks_sampling"):
        raise InvalidRecordError(f"{path.name} mixes the sampling versions {sorted(versions)}")
    return record


def written(page: str, folder: Path) -> str:
    """The page with the tables of the records."""
    parts, end = [], 0
    for found in MARKER.finditer(page):
        content = table(read_record(found[1], folder))
        parts += [page[end : found.start(2)], "\n", content, "\n"]
        end = found.end(2)
    return "".join([*parts, page[end:]])


def pages(root: Path) -> list[Path]:
    """All pages that may have tables."""
    folders = ("docs", "docs/notes", "docs/tutorials", "benchmarks")
    return [*root.glob("*.md"), *(p for f in folders for p in sorted((root / f).glob("*.md")))]


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check the tables; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--check", action="store_true", help="Write nothing; exit with 1 if needed")
    check = parser.parse_args(argv).check
    faults, used = [], set()
    for path in pages(root):
        text = path.read_text(encoding="utf-8")
        used |= {found[1] for found in MARKER.finditer(text)}
        try:
            new = written(text, root / "results")
        except InvalidRecordError as error:
            faults.append(f"{path.relative_to(root)}: {error}")
            continue
        if text.count("<!-- table:") != len(MARKER.findall(text)):
            faults.append(f"{path.relative_to(root)}: a table has no <!-- end -->")
        if new != text and check:
            faults.append(f"{path.relative_to(root)} differs from its records")
        elif new != text:
            path.write_text(new, encoding="utf-8")
    unused = {path.stem for path in (root / "results").glob("*.json")} - used
    faults += [f"results/{name}.json is in no page" for name in sorted(unused)]
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    if faults and check:
        sys.stderr.write("Write the tables with: python docs/tables.py\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
