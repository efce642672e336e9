"""Whether two answers are the same one in other common forms: of numbers, of dates, of marks.

For worlds of our own only; answers to published data are compared by their own rules.
"""

from __future__ import annotations

import re
from typing import Final

_MARK: Final = r"[*_`\"'\u201c\u201d\u2018\u2019\u00ab\u00bb]+"

_MARKS: Final = re.compile(rf"(?<!\w){_MARK}|{_MARK}(?!\w)")

_THOUSANDS: Final = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")

_ZEROS: Final = re.compile(r"(?<![\d.])(\d+)(?:\.0+|(\.\d*?[1-9])0+)(?!\.?\d)")

_UNIT: Final = re.compile(r"(?<=\d)\s+(?=(?:km|m|mi)\b)")

_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip

_MONTH: Final = rf"(?P<month>{'|'.join(f'{m[:3]}(?:{m[3:]}|t?[.]?)' for m in _MONTHS)})"

_DAY: Final = r"(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)?"

_YEAR: Final = r",? (?P<year>\d{4})\b"

_DATES: Final = (
    re.compile(rf"\b{_DAY} (?:of )?{_MONTH}{_YEAR}"),
    re.compile(rf"\b{_MONTH} {_DAY}{_YEAR}"),
)


def plain(answer: str) -> str:
    """An answer in one form: lower case, single spaces, plain numbers, and dates as 1819-06-21.

    Marks around words, such as quotes and asterisks, and a full stop at the end are taken off.
    """
    text = " ".join(_MARKS.sub("", answer).replace("\u2019", "'").lower().split())
    text = text.removesuffix(".").rstrip()
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _ZEROS.sub(lambda found: found[1] + (found[2] or ""), text)
    for date in _DATES:
        text = date.sub(_iso, text)
    return _UNIT.sub("", text)


def same(reference: str, answer: str) -> bool:
    """Whether an answer is the reference in some form."""
    return plain(reference) == plain(answer)


def includes(reference: str, answer: str) -> bool:
    """Whether an answer contains the reference in some form; a number counts only as a whole."""
    wanted = plain(reference)
    before = r"(?<!\d)(?<!\d\.)(?<!-)" if wanted[:1].isdigit() else ""
    after = r"(?!\d)(?!\.\d)" if wanted[-1:].isdigit() else ""
    return re.search(before + re.escape(wanted) + after, plain(answer)) is not None


def _iso(found: re.Match[str]) -> str:
    months = [name[:3] for name in _MONTHS]
    return f"{found['year']}-{months.index(found['month'][:3]) + 1:02}-{int(found['day']):02}"
