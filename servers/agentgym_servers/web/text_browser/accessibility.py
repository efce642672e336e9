"""A page as the text of its accessibility tree, as BrowserGym flattens Chromium's.

The text is `flatten_axtree_to_str`'s with the roles LineBreak, InlineTextBox and ListMarker and
the property url left out, of the whole page, however large the window. It is Chromium's for valid
HTML of: headings, paragraphs, lists, links, images that do not load, tables, forms with their
labels, inputs (text, password, search, number, email, url, tel, checkbox, radio, date, submit,
button, reset, hidden), textarea, select, option, optgroup, button, fieldset and legend, nav, main,
header, footer, section, article, aside, search and address, figure, hr, strong, em, code, pre,
blockquote, dl, details, time, mark, del, ins, sub, sup, abbr, and the roles alert, status, dialog,
group, navigation, region and heading. It is not for scripts, style sheets that hide or generate,
frames, meters and progress bars, or what is nested more than 120 deep; a `display: none` in an
element's own style is respected.

Known differences: Chromium drops the text of labels when it reads some pages again, focuses the
part of a date field that a click hits, and takes the focus from the page after its last Tab stop.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final

from agentgym_servers.web.text_browser.accessible_names import collapse, is_named, name_of
from agentgym_servers.web.text_browser.dom import SPACE, Document, Element, is_open, is_shown
from agentgym_servers.web.text_browser.fields import (
    is_checked,
    is_date,
    is_disabled,
    label_of,
    selected_label,
    selected_options,
    value_of,
)
from agentgym_servers.web.text_browser.roles import (
    BOXES,
    INLINE,
    header_role,
    holds_data,
    input_type,
    is_space_told,
    role_of,
)

_MAX_CHARS: Final = 1_000_000
"""Of a tree. A page can name all its elements by one long text."""

_RUN: Final = re.compile(r"[ \t\n\r\f]{2,}|[\t\n\r\f]")

_INDENTS: Final = tuple("\t" * depth for depth in range(130))

_NAMEABLE: Final = frozenset({"aside", "section"})

_LIVE: Final = {"alert": "assertive", "status": "polite"}

_REQUIRABLE: Final = frozenset({"listbox", "spinbutton", "textbox"})

_DATE_PARTS: Final = (("Month", 12, "mm", 1), ("Day", 31, "dd", 2), ("Year", 275760, "yyyy", 0))

_TABLE_ROLES: Final = {"thead": "rowgroup", "tbody": "rowgroup", "tfoot": "rowgroup", "tr": "row"}


def tree_text(document: Document, focused: Element | None = None, complaint: str = "") -> str:
    """The text of a page's tree, with the browser's error about the focused element."""
    writer = _Writer(document, focused, bool(complaint))
    with contextlib.suppress(_Full):
        writer.line(0, -1, "RootWebArea", document.title, ", focused")
        if complaint:
            attributes = ", live='assertive', atomic, relevant='additions'"
            writer.line(1, -1, "alert", complaint, attributes)
        writer.children(document.root, 1, "")
    return "\n".join(writer.lines)


class _Full(Exception):
    """The tree has as many characters as it may have."""


class _Writer:
    """One walk through a page. `spaced` is whether white space here would be swallowed."""

    def __init__(self, document: Document, focused: Element | None, refused: bool) -> None:
        self.lines: list[str] = []
        self._room = _MAX_CHARS
        self._document = document
        self._focused = focused
        self._refused = refused
        self._spaced = True
        self._verbatim = False
        self._data = True

    def line(self, depth: int, bid: int, role: str, name: str, rest: str = "") -> None:
        mark = f"[{bid}] " if bid >= 0 else ""
        line = f"{_INDENTS[depth]}{mark}{role} {name.strip()!r}{rest}"
        self.lines.append(line)
        self._room -= len(line)
        if self._room < 0:
            raise _Full

    def children(self, parent: Element, depth: int, name: str) -> None:
        for at, child in enumerate(parent.children):
            if isinstance(child, str):
                self._text(parent, at, child, depth, name)
            elif is_shown(child):
                self._element(child, depth)

    def _text(self, parent: Element, at: int, text: str, depth: int, name: str) -> None:
        core = text.strip(SPACE)
        if not core:
            if self._spaced and not self._verbatim:
                return
            self._spaced = True
            if " " not in name and is_space_told(parent, at):
                self.line(depth, -1, "StaticText", "")
            return
        self._spaced = not self._verbatim and text[-1] in SPACE
        reported = core if self._verbatim else _RUN.sub(" ", core)
        if reported not in name:
            self.line(depth, -1, "StaticText", reported)

    def _element(self, element: Element, depth: int) -> None:
        tag = element.tag
        if tag == "br":
            self._spaced = True
        elif tag in INLINE:
            self._body(element, depth)
        elif tag in BOXES:
            self._spaced = True
            self._body(element, depth)
            self._spaced = False
        elif tag == "table":
            outer, self._data = self._data, holds_data(element)
            self._block(element, depth)
            self._data = outer
        elif tag == "pre":
            outer, self._verbatim = self._verbatim, True
            self._block(element, depth)
            self._verbatim = outer
        else:
            self._block(element, depth)

    def _block(self, element: Element, depth: int) -> None:
        self._spaced = True
        self._body(element, depth)
        self._spaced = True

    def _body(self, element: Element, depth: int) -> None:
        tag = element.tag
        role = self._role(element)
        if not role:
            self.children(element, depth, "")
            return
        name = name_of(self._document, element, role)
        if tag in ("input", "textarea"):
            self._field(element, depth, role, name)
        elif tag == "select":
            self._select(element, depth, role, name)
        else:
            self.line(depth, element.bid, role, name, self._properties(element, role))
            if tag == "details":
                self._details(element, depth + 1)
            else:
                self.children(element, depth + 1, name)

    def _role(self, element: Element) -> str:
        tag = element.tag
        if tag == "table":
            return "table" if self._data else "LayoutTable"
        if tag in ("td", "th"):
            if not self._data:
                return "LayoutTableCell"
            return header_role(element) if tag == "th" else "cell"
        if tag in _TABLE_ROLES:
            if self._data:
                return _TABLE_ROLES[tag]
            return "LayoutTableRow" if tag == "tr" else ""
        return role_of(element, tag in _NAMEABLE and is_named(self._document, element))

    def _properties(self, element: Element, role: str) -> str:
        if role == "separator":
            return ", orientation='horizontal'"
        if role == "DisclosureTriangle":
            parent = element.parent
            state = parent is not None and parent.tag == "details" and is_open(parent)
            return f"{self._state(element)}, expanded={state}"
        if role in _LIVE:
            return f", live={_LIVE[role]!r}, atomic, relevant='additions text'"
        if role == "dialog":
            return ", modal=False"
        if role == "button":
            return self._state(element)
        return ", focused" if element is self._focused else ""

    def _state(self, element: Element) -> str:
        """That it is switched off, and that it has the focus."""
        off = ", disabled=True" if is_disabled(element) else ""
        return off + ", focused" if element is self._focused else off

    def _fault(self, element: Element) -> str:
        """That the browser has rejected a field's value."""
        return ", errormessage=''" if self._refused and element is self._focused else ""

    def _field(self, element: Element, depth: int, role: str, name: str) -> None:
        value, state = value_of(element), self._state(element)
        if role == "button":
            self.line(depth, element.bid, role, name, state)
            return
        if role in ("checkbox", "radio"):
            reported = "true" if is_checked(element) else "false"
            rest = f"{state}, checked={reported!r}{self._fault(element)}"
            self.line(depth, element.bid, role, name, rest)
            return
        if role == "Date":
            self._date(element, depth, name, value)
            return
        if "required" in element.attributes and role in _REQUIRABLE:
            state += ", required"
        if role == "spinbutton":
            number = f" value={_number(value)}" if value else ""
            low, high = _number(element.get("min")), _number(element.get("max"))
            rest = f"{number}{state}, valuemin={low}, valuemax={high}, valuetext={value!r}"
        else:
            if element.tag == "input" and input_type(element) == "password":
                value = "•" * len(value)
            rest = f" value={value!r}{state}" if value else state
        if "aria-describedby" in element.attributes:
            rest += f", describedby={element.get('aria-describedby')!r}"
        if value:
            rest += self._fault(element)
        self.line(depth, element.bid, role, name, rest)
        for line in value.split("\n"):
            if line:
                self.line(depth + 1, -1, "StaticText", line)

    def _date(self, element: Element, depth: int, name: str, value: str) -> None:
        value = value if is_date(value) else ""
        off = ", disabled=True" if is_disabled(element) else ""
        rest = f" value={value!r}{off}" if value else off
        self.line(depth, element.bid, "Date", name, rest)
        given = value.split("-")
        for part, most, blank, at in _DATE_PARTS:
            text = given[at] if len(given) == 3 else ""
            limits = f"valuemin=1, valuemax={most}, valuetext={text!r}"
            here = ", focused" if part == "Month" and element is self._focused else ""
            rest = f" value={int(text or 0)}{here}, {limits}"
            self.line(depth + 1, element.bid, "spinbutton", f"{part} {part}", rest)
            self.line(depth + 2, -1, "StaticText", text or blank)
            if part != "Year":
                self.line(depth + 1, -1, "StaticText", "/")
        self.line(depth + 1, -1, "button", "Show date picker", ", hasPopup='menu'")

    def _select(self, element: Element, depth: int, role: str, name: str) -> None:
        state = self._state(element)
        if role == "listbox":
            many = "multiple" in element.attributes
            state += f", multiselectable={many}, orientation='vertical'"
            if "required" in element.attributes:
                state += ", required"
            self.line(depth, element.bid, role, name, state)
        else:
            shown = selected_label(element)
            value = f" value={shown!r}" if shown else ""
            rest = f"{value}{state}, hasPopup='menu', expanded=False{self._fault(element)}"
            self.line(depth, element.bid, role, name, rest)
            depth += 1
            self.line(depth, -1, "MenuListPopup", "")
        self._options(element, depth + 1, {id(option) for option in selected_options(element)})

    def _options(self, parent: Element, depth: int, chosen: set[int]) -> None:
        for child in parent.children:
            if isinstance(child, str):
                continue
            if child.tag == "optgroup":
                self.line(depth, child.bid, "group", collapse(child.get("label")))
                self._options(child, depth + 1, chosen)
            elif child.tag == "option":
                off = is_disabled(child)
                rest = ", disabled=True" if off else f", selected={id(child) in chosen}"
                self.line(depth, child.bid, "option", label_of(child), rest)

    def _details(self, element: Element, depth: int) -> None:
        parts = [child for child in element.children if not isinstance(child, str)]
        summary = next((part for part in parts if part.tag == "summary"), None)
        if summary is None:
            self.line(depth, -1, "DisclosureTriangle", "Details")
        if is_open(element):
            self.children(element, depth, "")
        elif summary is not None:
            self._element(summary, depth)


def _number(text: str) -> str:
    """A number as a script prints it; 0 for none."""
    try:
        number = float(text)
    except ValueError:
        return "0"
    return str(int(number)) if number.is_integer() else repr(number)
