"""What a browser sends when a form is submitted, and when it rejects it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from agentgym_servers.web.text_browser.dom import Document, Element
from agentgym_servers.web.text_browser.fields import (
    fields_of,
    is_checked,
    is_disabled,
    selected_options,
    value_of,
)
from agentgym_servers.web.text_browser.page import join_url
from agentgym_servers.web.text_browser.roles import input_type

BUTTON_TYPES: Final = frozenset({"button", "image", "reset", "submit"})
_TEXT_TYPES: Final = frozenset(
    {"date", "email", "number", "password", "search", "tel", "text", "url"}
)
_MISSING: Final = {
    "checkbox": "Please check this box if you want to proceed.",
    "radio": "Please select one of these options.",
    "select": "Please select an item in the list.",
}
_EMAIL: Final = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", re.ASCII)


class Visit(msgspec.Struct, frozen=True):
    """Where a click leads."""

    url: str
    form: dict[str, list[str]] | None = None
    """What is posted; None is a GET."""
    new_tab: bool = False


def form_of(element: Element, document: Document) -> Element | None:
    """The form that a field belongs to."""
    if "form" in element.attributes:
        return document.by_id.get(element.get("form"))
    return next((parent for parent in element.ancestors() if parent.tag == "form"), None)


def default_button(form: Element, document: Document) -> Element | None:
    """The button that Enter presses: the form's first that submits."""
    return next((f for f in fields_of(form, document.root) if submits(f)), None)


def submits(field: Element) -> bool:
    """Whether a field is a submit button."""
    if field.tag == "button":
        return (field.get("type").lower() or "submit") == "submit"
    return field.tag == "input" and input_type(field) in ("submit", "image")


def enter_submits(form: Element, document: Document) -> bool:
    """Whether Enter submits a form that has no button: only with a single line of text in it."""
    lines = (f for f in fields_of(form, document.root) if f.tag == "input")
    return sum(input_type(line) in _TEXT_TYPES for line in lines) <= 1


def first_refused(form: Element, document: Document) -> tuple[Element, str] | None:
    """The first field whose value the browser rejects, and its message.

    Checked are `required`, addresses of email and url fields, and a number's `min` and `max`;
    not `pattern`, `step`, `minlength`.
    """
    fields = list(fields_of(form, document.root))
    for field in fields:
        complaint = _complaint(field, fields)
        if complaint:
            # Chromium shows no bubble beside a date, which has inner fields.
            return field, "" if input_type(field) == "date" else complaint
    return None


def visit_of(
    form: Element, submitter: Element | None, document: Document, page_url: str
) -> Visit | None:
    """The request that a form on the page at `page_url` makes."""
    by = submitter.attributes if submitter is not None else {}
    method = (by.get("formmethod") or form.get("method")).lower()
    if method == "dialog":
        return None
    url = join_url(page_url, by.get("formaction") or form.get("action") or page_url)
    entries = list(_entries(form, submitter, document))
    new_tab = (by.get("formtarget") or form.get("target")).lower() == "_blank"
    if method == "post":
        posted: dict[str, list[str]] = {}
        for name, value in entries:
            posted.setdefault(name, []).append(value)
        return Visit(url, posted, new_tab)
    return Visit(urlsplit(url)._replace(query=urlencode(entries)).geturl(), None, new_tab)


def _entries(
    form: Element, submitter: Element | None, document: Document
) -> Iterator[tuple[str, str]]:
    for field in fields_of(form, document.root):
        name = field.get("name")
        if is_disabled(field):
            continue
        kind = input_type(field) if field.tag == "input" else field.tag
        if field.tag == "button" or kind in BUTTON_TYPES:
            if field is submitter and kind == "image":
                prefix = f"{name}." if name else ""
                yield from ((f"{prefix}x", "0"), (f"{prefix}y", "0"))
            elif field is submitter and name:
                yield name, field.get("value")
        elif not name:
            continue
        elif kind in ("checkbox", "radio"):
            if is_checked(field):
                yield name, field.attributes.get("value", "on")
        elif kind == "select":
            for option in selected_options(field):
                if not is_disabled(option):
                    yield name, value_of(option)
        else:
            value = value_of(field).replace("\r\n", "\n").replace("\r", "\n")
            yield name, value.replace("\n", "\r\n")


def _complaint(field: Element, fields: list[Element]) -> str:
    if is_disabled(field) or "readonly" in field.attributes or field.tag == "button":
        return ""
    kind = input_type(field) if field.tag == "input" else field.tag
    if kind in BUTTON_TYPES or kind == "hidden":
        return ""
    if "required" in field.attributes and _is_missing(field, kind, fields):
        return _MISSING.get(kind, "Please fill out this field.")
    value = value_of(field)
    if not value:
        return ""
    if kind == "email":
        return _address_complaint(value)
    if kind == "url":
        return "" if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value) else "Please enter a URL."
    return _range_complaint(value, field.get("min"), field.get("max")) if kind == "number" else ""


def _is_missing(field: Element, kind: str, fields: list[Element]) -> bool:
    if kind == "checkbox":
        return not is_checked(field)
    if kind == "radio":
        group = [f for f in fields if f.tag == "input" and f.get("name") == field.get("name")]
        return not any(is_checked(f) for f in group)
    return not value_of(field)


def _address_complaint(value: str) -> str:
    if "@" not in value:
        return f"Please include an '@' in the email address. '{value}' is missing an '@'."
    if value.endswith("@"):
        return f"Please enter a part following '@'. '{value}' is incomplete."
    if value.startswith("@"):
        return f"Please enter a part followed by '@'. '{value}' is incomplete."
    return "" if _EMAIL.fullmatch(value[:320]) else "Please enter an email address."


def _range_complaint(value: str, low: str, high: str) -> str:
    try:
        number = float(value)
        if low and number < float(low):
            return f"Value must be greater than or equal to {low}."
        if high and number > float(high):
            return f"Value must be less than or equal to {high}."
    except ValueError:
        return ""
    return ""
