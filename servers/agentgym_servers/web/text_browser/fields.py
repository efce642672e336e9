"""The values of a form's fields, as the page gave them and as a user has changed them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from agentgym_servers.web.text_browser.dom import Element
from agentgym_servers.web.text_browser.roles import is_list


def value_of(element: Element) -> str:
    """The `value` property of an input, text area, select or option."""
    if element.tag == "select":
        chosen = selected_options(element)
        return value_of(chosen[0]) if chosen else ""
    if element.value is not None:
        return element.value
    if element.tag == "textarea":
        return element.text()
    if element.tag == "option":
        value = element.attributes.get("value")
        return label_of(element) if value is None else value
    return element.get("value")


def is_checked(element: Element) -> bool:
    """The `checked` property of a checkbox or a radio button."""
    return "checked" in element.attributes if element.checked is None else element.checked


def options_of(select: Element) -> list[Element]:
    """The options of a select, in order, those of its groups too."""
    return [element for element in select.elements() if element.tag == "option"]


def selected_options(select: Element) -> list[Element]:
    """The chosen options; where one must show and none is chosen, the first that may be."""
    options = options_of(select)
    chosen = [
        option
        for option in options
        if ("selected" in option.attributes if option.checked is None else option.checked)
    ]
    if "multiple" in select.attributes:
        return chosen
    if chosen:
        return chosen[-1:]
    if is_list(select):
        return []
    return [option for option in options if not _is_off(option)][:1]


def selected_label(select: Element) -> str:
    """What a closed select shows."""
    chosen = selected_options(select)
    return label_of(chosen[0]) if chosen else ""


def label_of(option: Element) -> str:
    """What an option is called, with single spaces."""
    return option.get("label") or " ".join(option.text().split())


def is_disabled(element: Element) -> bool:
    """Whether a field is switched off, by itself or by its container."""
    if "disabled" in element.attributes:
        return True
    return any(_switches_off(parent, element) for parent in element.ancestors())


def is_date(value: str) -> bool:
    """Whether a text is a date as a date field takes it: YYYY-MM-DD."""
    try:
        return len(value) == 10 and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def fields_of(form: Element, root: Element) -> Iterator[Element]:
    """The fields that belong to a form, in document order, from inside or by their `form`."""
    name = form.get("id")
    for element in root.elements():
        if element.tag in ("button", "input", "select", "textarea") and (
            element.attributes["form"] == name
            if "form" in element.attributes
            else any(parent is form for parent in element.ancestors())
        ):
            yield element


def _is_off(option: Element) -> bool:
    group = option.parent
    off = group is not None and group.tag == "optgroup" and "disabled" in group.attributes
    return off or "disabled" in option.attributes


def _switches_off(parent: Element, element: Element) -> bool:
    if "disabled" not in parent.attributes:
        return False
    return parent.tag == "fieldset" or (
        element.tag == "option" and parent.tag in ("optgroup", "select")
    )
