"""Makes text safe for a terminal, and tables complete in a narrow one.

Control, hidden and reordering characters become escapes. Observations come from web pages and
responses from models; both may contain terminal escapes, right-to-left marks, Rich's markup, or a
line of a megabyte.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_LAYOUT: Final = "\n\t"
_PLAIN: Final = re.compile(r"[^\x20-\x7e]")
_COLUMN_WIDTH: Final = 8
"""Characters of a line for each column of a table, with its borders."""


def printable(text: str, *, keep: str = _LAYOUT, most: int | None = None) -> str:
    """`text` with unprintable characters escaped as in Python.

    The characters of `keep` stay. Of a text longer than `most` characters the middle is left out,
    and how much that was is said.
    """
    if most is not None and len(text) > most:
        half = most // 2
        left_out = f" ... {len(text) - 2 * half:,} characters ... "
        halves = (printable(part, keep=keep) for part in (text[:half], text[len(text) - half :]))
        return left_out.join(halves)
    return _PLAIN.sub(lambda found: _written_out(found[0], keep), text)


def one_line(text: str, most: int | None = None) -> str:
    """The same with line ends and tabs escaped too."""
    return printable(text, keep="", most=most)


def as_text(text: str, style: str = "", most: int | None = None) -> Text:
    """`printable` as a Rich text, without markup, emoji or links."""
    return Text(printable(text, most=most), style=style)


class UncutTable:
    """A table that loses no text in a narrow terminal, and whose plain strings are no markup.

    Users copy names from tables into commands, so words are broken over lines and not cut. A table
    with more columns than there is room for becomes several tables below each other, which all
    begin with the first column.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The table, or its parts."""
        count = len(self._table.columns)
        beside = max(1, options.max_width // _COLUMN_WIDTH - 1)  # the first column
        for start in range(1, max(count, 2), beside):
            yield self._part([0, *range(start, min(start + beside, count))])

    def _part(self, numbers: Sequence[int]) -> Table:
        whole = self._table
        part = Table(
            title=whole.title if 1 in numbers or len(numbers) == 1 else None,
            box=whole.box,
            pad_edge=whole.pad_edge,
            collapse_padding=whole.collapse_padding,
        )
        columns = [whole.columns[number] for number in numbers]
        for column in columns:
            part.add_column(_plain(column.header), justify=column.justify, overflow="fold")
        for row, cells in zip(
            whole.rows, zip(*(column.cells for column in columns), strict=True), strict=True
        ):
            part.add_row(*map(_plain, cells), end_section=row.end_section)
        return part


def _plain(cell: RenderableType) -> RenderableType:
    return Text(one_line(cell)) if isinstance(cell, str) else cell


def _written_out(character: str, keep: str) -> str:
    if character in keep or character.isprintable():
        return character
    if keep and unicodedata.category(character) == "Zs":
        return character  # one of the wide or unbreakable spaces, which do no harm in prose
    code = ord(character)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    wide = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return short or (wide if code < 0x10000 else f"\\U{code:08x}")
