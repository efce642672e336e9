"""What a key does to the element that has the focus."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.dom import Element
from agentgym_servers.web.fields import is_disabled, options_of, selected_options, value_of
from agentgym_servers.web.gestures import BrowserError, click, require_usable, submit
from agentgym_servers.web.page import Page
from agentgym_servers.web.roles import input_type
from agentgym_servers.web.submission import (
    BUTTON_TYPES,
    Visit,
    default_button,
    enter_submits,
    form_of,
)

_NAMED_WORDS: Final = (
    "Alt ArrowDown ArrowLeft ArrowRight ArrowUp Backspace Control ControlOrMeta Delete End Enter "
    "Escape Home Insert Meta PageDown PageUp Shift Space Tab"
)
_NAMED: Final = frozenset(_NAMED_WORDS.split()) | {f"F{n}" for n in range(1, 13)}
_STEPS: Final = {"ArrowDown": 1, "ArrowUp": -1}
_TICKED: Final = frozenset({"checkbox", "radio"})


def press(page: Page, keys: str) -> Visit | None:
    """Press a key, such as `Enter`, `Shift+Tab` or `a`, where the focus is."""
    *held, key = keys.split("+") if keys != "+" else [keys]
    key = key or "+"
    for name in (*held, key):
        if name not in _NAMED and len(name) != 1 and not name.startswith(("Key", "Digit")):
            raise BrowserError(f'Error: Keyboard.press: Unknown key: "{name[:40]}"')
    focused = page.focused
    if key == "Tab":
        _move_focus(page, -1 if "Shift" in held else 1)
    elif focused is not None and not (set(held) - {"Shift"}):
        return _press_in(page, focused, key)
    return None


def _press_in(page: Page, element: Element, key: str) -> Visit | None:
    tag = element.tag
    kind = input_type(element) if tag == "input" else tag
    is_button = tag in ("button", "summary") or kind in BUTTON_TYPES
    if key == "Enter" and (is_button or tag == "a"):
        return click(page, element, "left", ())
    if key in ("Space", " ") and (is_button or kind in _TICKED):
        return click(page, element, "left", ())
    if key == "Enter" and tag == "input":
        return _enter(page, element)
    if tag == "select" and key in _STEPS:
        _step_option(page, element, _STEPS[key])
    elif tag in ("input", "textarea") and kind not in _TICKED:
        _type(page, element, key)
    return None


def _enter(page: Page, field: Element) -> Visit | None:
    form = form_of(field, page.document)
    if form is None:
        return None
    button = default_button(form, page.document)
    if button is not None:
        return None if is_disabled(button) else submit(page, form, button)
    return submit(page, form, None) if enter_submits(form, page.document) else None


def _type(page: Page, field: Element, key: str) -> None:
    if "readonly" in field.attributes:
        return
    value = value_of(field)
    if key == "Backspace":
        field.value = value[:-1]
    elif key == "Enter":
        field.value = value + "\n"
    elif key == "Space":
        field.value = value + " "
    elif len(key) == 1:
        field.value = value + key
    page.changed()


def _step_option(page: Page, box: Element, step: int) -> None:
    options = [option for option in options_of(box) if not is_disabled(option)]
    chosen = selected_options(box)
    at = options.index(chosen[0]) if chosen and chosen[0] in options else -1
    at = min(max(at + step, 0), len(options) - 1)
    for option in options_of(box):
        option.checked = option is options[at]
    page.changed()


def _move_focus(page: Page, step: int) -> None:
    stops = [element for element in page.document.root.elements() if _is_stop(element)]
    if not stops:
        return
    focused = page.focused
    at = next((n for n, stop in enumerate(stops) if stop is focused), -1 if step > 0 else 0)
    page.focus(stops[(at + step) % len(stops)])


def _is_stop(element: Element) -> bool:
    if element.tag == "a":
        if "href" not in element.attributes:
            return False
    elif element.tag not in ("button", "input", "select", "summary", "textarea"):
        return False
    try:
        require_usable(element, "press")
    except BrowserError:
        return False
    return True
