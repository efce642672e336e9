"""Makes text safe for a terminal, and tables complete in a narrow one.

Control, hidden and reordering characters become escapes. Observations come from web pages and
responses from models; both may contain terminal escapes, right-to-left marks, Rich's markup, or a
line of a megabyte.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rich.table import Table
from rich.text import Text

_LAYOUT: Final = "\n\t"
_PLAIN: Final = re.compile(r"[^\x20-\x7e]")


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


def uncut(table: Table) -> Table:
    """The table, whose words are broken over lines where a narrow terminal would cut them.

    Users copy names from tables into commands.
    """
    for column in table.columns:
        column.overflow = "fold"
    return table


def _written_out(character: str, keep: str) -> str:
    if character in keep or character.isprintable():
        return character
    if keep and unicodedata.category(character) == "Zs":
        return character  # one of the wide or unbreakable spaces, which do no harm in prose
    code = ord(character)
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    wide = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return short or (wide if code < 0x10000 else f"\\U{code:08x}")
