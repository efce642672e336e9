"""The `innerText` of an element: its text as it is laid out, without style sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.text_browser.selectors import Element

_NOT_RENDERED: Final = frozenset(
    {"audio", "canvas", "head", "iframe", "input", "link", "meta", "noscript", "object", "script",
     "style", "svg", "template", "textarea", "title", "video"}
)  # fmt: skip
_BLOCKS: Final = frozenset(
    {"address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog",
     "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3",
     "h4", "h5", "h6", "header", "hgroup", "hr", "html", "li", "main", "nav", "ol", "optgroup",
     "option", "p", "pre", "search", "section", "summary", "table", "ul"}
)  # fmt: skip
_ATOMS: Final = frozenset(
    {"audio", "button", "canvas", "iframe", "img", "input", "object", "select", "svg", "textarea",
     "video"}
)  # fmt: skip
"""What is part of a line like a letter, so that blanks beside it are kept."""
_ATOM: Final = "\x02"
_PRESERVED: Final = frozenset({"pre", "listing"})
_SPACES: Final = re.compile(r"[ \t\n\r\f]+")
_HIDDEN_STYLE: Final = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

Piece = str | int
"""A text, or how many line breaks are here at least."""


def rendered_text(element: Element) -> str:
    """The `innerText` of an element; of one that is not rendered, its `textContent`."""
    if _is_hidden(element) or any(_is_hidden(above) for above in element.iterancestors()):
        return text_content(element)
    preserved = element.tag in _PRESERVED or any(
        above.tag in _PRESERVED for above in element.iterancestors()
    )
    return _joined(list(_inside(element, preserved)))


def text_content(element: Element) -> str:
    """All text inside an element, laid out or not."""
    texts = [first_text(element)]
    for child in element:
        if isinstance(child.tag, str):
            texts.append(text_content(child))
        texts.append(child.tail or "")
    return "".join(texts)


def first_text(element: Element) -> str:
    """The text before an element's first child; the parser leaves a line break that is none."""
    text: str = element.text or ""
    return text.removeprefix("\n") if element.tag in ("pre", "listing", "textarea") else text


def _is_hidden(element: Element) -> bool:
    return (
        element.tag in _NOT_RENDERED
        or "hidden" in element.attrib
        or bool(_HIDDEN_STYLE.search(element.get("style") or ""))
    )


def _inside(element: Element, preserved: bool) -> Iterator[Piece]:
    if text := first_text(element):
        yield _kept(text, preserved)
    for child in element:
        if child.tag in _ATOMS and "hidden" not in child.attrib:
            yield _ATOM
        if isinstance(child.tag, str) and not _is_hidden(child):
            yield from _around(child, preserved or child.tag in _PRESERVED)
            if child.tag in _ATOMS:
                yield _ATOM
        if child.tail:
            yield _kept(child.tail, preserved)


def _around(element: Element, preserved: bool) -> Iterator[Piece]:
    if element.tag == "br":
        yield "\n"
        return
    breaks = 2 if element.tag == "p" else int(element.tag in _BLOCKS)
    if breaks:
        yield breaks
    yield from _inside(element, preserved)
    if breaks:
        yield breaks
    if element.tag in ("td", "th") and _is_followed(element, ("td", "th")):
        yield "\t"
    if element.tag == "tr" and _has_row_after(element):
        yield "\n"


def _has_row_after(row: Element) -> bool:
    group = row.getparent()
    later = group.itersiblings("tbody", "tfoot") if group.tag != "table" else ()
    return _is_followed(row, ("tr",)) or any(one.find("tr") is not None for one in later)


def _is_followed(element: Element, tags: tuple[str, ...]) -> bool:
    return next(element.itersiblings(*tags), None) is not None


def _kept(text: str, preserved: bool) -> str:
    # A marker keeps preserved blanks from being folded with adjacent ones.
    return text.replace(" ", "\x00").replace("\n", "\x01") if preserved else _SPACES.sub(" ", text)


def _joined(pieces: list[Piece]) -> str:
    lines, breaks, atom = "", 0, ""
    for piece in pieces:
        if piece == _ATOM:
            atom = _ATOM
        elif isinstance(piece, int):
            breaks = max(breaks, piece)
            # An atom at a line's end keeps the blank before it.
            lines, atom = lines + (atom if lines.endswith(" ") else ""), ""
        elif piece != " " or atom or not breaks:
            if breaks and lines:
                lines = lines.rstrip(" ") + "\n" * breaks
            lines, breaks, atom = lines + atom, 0, ""
            if piece in ("\n", "\t"):
                lines = lines.rstrip(" ")
            lines += piece.lstrip(" ") if lines[-1:] in ("", " ", "\n", "\t") else piece
    return lines.strip(" ").replace(_ATOM, "").replace("\x00", " ").replace("\x01", "\n")
