"""The role that Chromium gives an element, and how an element lies in the text around it."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.text_browser.dom import COMMENT, SPACE, Element, is_shown

_ROLES: Final = {
    "address": "group",
    "article": "article",
    "blockquote": "blockquote",
    "button": "button",
    "caption": "caption",
    "code": "code",
    "dd": "definition",
    "del": "deletion",
    "details": "group",
    "dialog": "dialog",
    "dl": "DescriptionList",
    "dt": "term",
    "em": "emphasis",
    "fieldset": "group",
    "figcaption": "Figcaption",
    "figure": "figure",
    "form": "form",
    "h1": "heading",
    "h2": "heading",
    "h3": "heading",
    "h4": "heading",
    "h5": "heading",
    "h6": "heading",
    "hr": "separator",
    "img": "image",
    "ins": "insertion",
    "label": "LabelText",
    "legend": "Legend",
    "li": "listitem",
    "main": "main",
    "mark": "mark",
    "menu": "list",
    "nav": "navigation",
    "ol": "list",
    "output": "status",
    "p": "paragraph",
    "s": "deletion",
    "search": "search",
    "strong": "strong",
    "sub": "subscript",
    "summary": "DisclosureTriangle",
    "sup": "superscript",
    "textarea": "textbox",
    "time": "time",
    "ul": "list",
}
_INPUT_ROLES: Final = {
    "button": "button",
    "checkbox": "checkbox",
    "date": "Date",
    "image": "button",
    "number": "spinbutton",
    "radio": "radio",
    "reset": "button",
    "search": "searchbox",
    "submit": "button",
}
_SPOKEN_WORDS: Final = (
    "alert article banner button complementary contentinfo dialog form group heading link list "
    "listitem main navigation note region search separator status table tab"
)
_SPOKEN_ROLES: Final = frozenset(_SPOKEN_WORDS.split())
"""Values of the role attribute that are reported under their own name."""
_SECTIONS: Final = frozenset({"article", "aside", "main", "nav", "section"})
_TOLD_TABLE: Final = frozenset({"caption", "thead", "tfoot", "th", "col"})
_ROWS_OF_DATA: Final = 20
_INLINE_TAGS: Final = (
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd label mark output q s samp small "
    "span strong sub sup time tt u var wbr"
)
INLINE: Final = frozenset(_INLINE_TAGS.split())
"""Tags through which text flows on."""
BOXES: Final = frozenset({"img", "button", "input", "meter", "progress", "select", "textarea"})
"""Tags of what is one piece in a line of text."""


def role_of(element: Element, named: bool) -> str:
    """Chromium's role, or nothing for what is only a container.

    `named` is whether its author has named it, which only matters for a section or an aside.
    """
    tag = element.tag
    if "role" in element.attributes:
        spoken = element.attributes["role"].lower()
        if spoken in _SPOKEN_ROLES:
            return spoken
        if spoken in ("img", "image"):
            return "image"
        if spoken in ("none", "presentation"):
            return ""
    if tag in _ROLES:
        return _ROLES[tag]
    if tag == "a":
        return "link" if "href" in element.attributes else ""
    if tag == "input":
        return _INPUT_ROLES.get(input_type(element), "textbox")
    if tag == "select":
        return "listbox" if is_list(element) else "combobox"
    if tag in ("header", "footer"):
        return _edge(element)
    if tag == "section":
        return "region" if named else ""
    if tag == "aside":
        inside = any(
            parent.tag in ("article", "aside", "section") for parent in element.ancestors()
        )
        return "" if inside and not named else "complementary"
    return "Abbr" if tag == "abbr" and "title" in element.attributes else ""


def header_role(cell: Element) -> str:
    """Whether a `th` heads its column or its row: by its scope, else by the adjacent cells."""
    scope = cell.get("scope").lower()
    if scope in ("col", "colgroup"):
        return "columnheader"
    if scope in ("row", "rowgroup"):
        return "rowheader"
    row = cell.parent
    if row is None:
        return "columnheader"
    cells = [c for c in row.children if not isinstance(c, str) and c.tag in ("td", "th")]
    at = cells.index(cell)
    neighbours = {c.tag for c in cells[max(at - 1, 0) : at + 2] if c is not cell}
    return "rowheader" if "td" in neighbours else "columnheader"


def holds_data(table: Element) -> bool:
    """Whether Chromium takes a table for data; else its cells are a layout and reported as such."""
    if "summary" in table.attributes:
        return True
    rows = 0
    for element in table.elements():
        if element.tag in _TOLD_TABLE or {"headers", "scope", "abbr"} & element.attributes.keys():
            return True
        rows += element.tag == "tr"
    return rows >= _ROWS_OF_DATA


def input_type(element: Element) -> str:
    """The type of an `input`, in lower case; `text` where none is given."""
    return element.get("type").lower() or "text"


def is_list(select: Element) -> bool:
    """Whether a `select` shows its options at once."""
    size = select.get("size")
    return "multiple" in select.attributes or (size.isdecimal() and int(size) > 1)


def is_space_told(parent: Element, at: int) -> bool:
    """Whether Chromium reports the white space that is `parent`'s child `at`.

    It does where both sides are text that would run together; not next to a block, a line
    break, a form field or other white space.
    """
    return not (_ends_text(_beside(parent, at, 1), 1) or _ends_text(_beside(parent, at, -1), -1))


def _beside(parent: Element, at: int, step: int) -> Element | str | None:
    """The next node in one direction within the same block, with the way to it."""
    while True:
        at += step
        if 0 <= at < len(parent.children):
            return parent.children[at]
        if parent.tag not in INLINE or parent.parent is None:
            return None
        at, parent = parent.parent.children.index(parent), parent.parent


def _ends_text(node: Element | str | None, step: int) -> bool:
    while isinstance(node, Element):
        if node.tag == "img":
            return False
        if node.tag not in INLINE or not is_shown(node):
            return True
        drawn = [c for c in node.children if isinstance(c, str) or c.tag != COMMENT]
        if not drawn:
            parent = node.parent
            node = _beside(parent, parent.children.index(node), step) if parent else None
        else:
            node = drawn[0 if step > 0 else -1]
    return node is None or not node.strip(SPACE)


def _edge(element: Element) -> str:
    inside = any(parent.tag in _SECTIONS for parent in element.ancestors())
    if element.tag == "header":
        return "sectionheader" if inside else "banner"
    return "sectionfooter" if inside else "contentinfo"
