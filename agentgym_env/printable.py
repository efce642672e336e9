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
_FOLDED: Final = 11
"""Characters to which a column beside the first may be folded, such as (0.40-1.00)."""
_NARROWEST: Final = 5
"""The same for the only column beside a first one that leaves no room for more."""


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

    Users copy names from tables into commands, so words are broken over lines and not cut, and the
    first column stays whole if another fits beside it. A table with more columns than there is
    room for becomes several tables below each other, which all begin with the first column.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The table, or its parts."""
        if not self._table.columns:
            return
        widths = [
            max(console.measure(_plain(cell)).maximum for cell in (column.header, *column.cells))
            for column in self._table.columns
        ]
        gap = 2 if self._table.collapse_padding else 3  # spaces and a border
        needs = [gap + min(width, _FOLDED) for width in widths]
        room = options.max_width - (gap - 2)
        is_whole = gap + widths[0] + gap + _NARROWEST <= room
        left = room - (gap + widths[0] if is_whole else needs[0])
        parts: list[list[int]] = [[0]]
        for number, need in enumerate(needs[1:], 1):
            beside = parts[-1][1:]
            if beside and sum(needs[n] for n in beside) + need > left:
                parts.append([0])
            parts[-1].append(number)
        for part in parts:
            yield self._part(part, is_whole)

    def _part(self, numbers: Sequence[int], whole_first: bool) -> Table:
        whole = self._table
        part = Table(
            title=whole.title if 1 in numbers or len(numbers) == 1 else None,
            box=whole.box,
            pad_edge=whole.pad_edge,
            collapse_padding=whole.collapse_padding,
        )
        columns = [whole.columns[number] for number in numbers]
        for number, column in zip(numbers, columns, strict=True):
            part.add_column(
                _plain(column.header),
                justify=column.justify,
                overflow="fold",
                no_wrap=whole_first and number == 0,
            )
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
