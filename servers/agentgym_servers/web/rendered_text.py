"""What `innerText` says of an element: its text as it is laid out, without style sheets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym_servers.web.selectors import Element

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
_PRESERVED: Final = frozenset({"pre", "listing"})
_SPACES: Final = re.compile(r"[ \t\n\r\f]+")
_HIDDEN_STYLE: Final = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)

Piece = str | int
"""A text, or how many line breaks stand here at least."""


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
    texts = [element.text or ""]
    for child in element:
        if isinstance(child.tag, str):
            texts.append(text_content(child))
        texts.append(child.tail or "")
    return "".join(texts)


def _is_hidden(element: Element) -> bool:
    return (
        element.tag in _NOT_RENDERED
        or "hidden" in element.attrib
        or bool(_HIDDEN_STYLE.search(element.get("style") or ""))
    )


def _inside(element: Element, preserved: bool) -> Iterator[Piece]:
    if element.text:
        yield _kept(element.text, preserved)
    for child in element:
        if isinstance(child.tag, str) and not _is_hidden(child):
            yield from _around(child, preserved or child.tag in _PRESERVED)
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
    if element.tag in ("td", "th") and _has_next(element, ("td", "th")):
        yield "\t"
    if element.tag == "tr":
        yield 1


def _has_next(element: Element, tags: tuple[str, ...]) -> bool:
    return any(one.tag in tags for one in element.itersiblings())


def _kept(text: str, preserved: bool) -> str:
    # A marker keeps preserved blanks from being folded with their neighbours.
    return text.replace(" ", "\x00").replace("\n", "\x01") if preserved else _SPACES.sub(" ", text)


def _joined(pieces: list[Piece]) -> str:
    lines, breaks = "", 0
    for piece in pieces:
        if isinstance(piece, int):
            breaks = max(breaks, piece)
            continue
        if breaks and piece == " ":
            continue
        if breaks and lines:
            lines = lines.rstrip(" ") + "\n" * breaks
        breaks = 0
        lines += piece.lstrip(" ") if lines[-1:] in ("", " ", "\n", "\t") else piece
        if piece in ("\n", "\t"):
            lines = lines[:-1].rstrip(" ") + piece
    return lines.strip(" ").replace("\x00", " ").replace("\x01", "\n")
