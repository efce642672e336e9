"""What clicking, writing, choosing and pressing keys does to a page, and where it leads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from agentgym_servers.web.text_browser.dom import Element, is_open, is_shown
from agentgym_servers.web.text_browser.fields import (
    fields_of,
    is_checked,
    is_date,
    is_disabled,
    label_of,
    options_of,
    selected_options,
    value_of,
)
from agentgym_servers.web.text_browser.page import Page, join_url
from agentgym_servers.web.text_browser.roles import input_type, is_list
from agentgym_servers.web.text_browser.submission import (
    BUTTON_TYPES,
    Visit,
    default_button,
    enter_submits,
    first_refused,
    form_of,
    visit_of,
)

_FIELDS: Final = frozenset({"button", "input", "select", "textarea"})

_UNFILLED: Final = BUTTON_TYPES | {"checkbox", "file", "hidden", "radio"}

_NEW_TAB_KEYS: Final = frozenset({"Control", "ControlOrMeta", "Meta", "Shift"})

_NUMBER: Final = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})(e[+-]?\d{1,3})?", re.I)


class BrowserError(Exception):
    """What went wrong with an action, as BrowserGym words it."""


def find(page: Page, bid: str) -> Element:
    """The element with a bid."""
    element = page.document.by_bid.get(bid)
    if element is None:
        raise BrowserError(f'ValueError: Could not find element with bid "{bid[:40]}"')
    return element


def click(page: Page, element: Element, button: str, modifiers: Sequence[str]) -> Visit | None:
    """Click an element: it, or the nearest around it that answers to a click, does its work."""
    require_usable(element, "click")
    if button == "right":
        return None
    new_tab = button == "middle" or not _NEW_TAB_KEYS.isdisjoint(modifiers)
    for target in (element, *element.ancestors()):
        tag = target.tag
        if tag == "a" and "href" in target.attributes:
            page.focus(target)
            return _follow(page, target, new_tab)
        if tag in _FIELDS:
            page.focus(None if is_disabled(target) else target)
            return _use_field(page, target)
        if tag == "option":
            _choose_in_list(page, target)
            return None
        if tag == "summary":
            _fold(page, target)
            return None
        if tag == "label":
            control = _labelled(page, target)
            if control is None or is_disabled(control):
                return None
            page.focus(control)
            return _use_field(page, control)
    page.focus(None)
    return None


def fill(page: Page, element: Element, value: str) -> None:
    """Write a value into a field, in place of its own."""
    element = _retarget(page, element)
    kind = input_type(element) if element.tag == "input" else element.tag
    if element.tag not in ("input", "textarea"):
        require_usable(element, "fill")
        raise BrowserError(
            "Error: Locator.fill: Error: Element is not an <input>, <textarea> or "
            "[contenteditable] element"
        )
    if kind in _UNFILLED:
        raise BrowserError(f'Error: Locator.fill: Error: Input of type "{kind}" cannot be filled')
    require_usable(element, "fill")
    if "readonly" in element.attributes:
        raise _timeout("fill", "element is not editable")
    if element.tag == "input":
        value = value.replace("\r", "").replace("\n", "")
    if kind == "number":
        value = value.strip()
        if value and _NUMBER.fullmatch(value) is None:
            raise BrowserError(
                "Error: Locator.fill: Error: Cannot type text into input[type=number]"
            )
    elif kind == "date":
        value = value.strip()
        if value and not is_date(value):
            page.focus(element)
            raise BrowserError(
                "Error: Locator.fill: Error: Malformed value. Write a date as YYYY-MM-DD."
            )
    most = element.get("maxlength")
    element.value = value[: int(most)] if most.isdecimal() else value
    page.focus(element)


def select(page: Page, element: Element, wanted: Sequence[str]) -> None:
    """Choose options of a select, by value or by label."""
    element = _retarget(page, element)
    if element.tag != "select":
        raise BrowserError("Error: Locator.select_option: Error: Element is not a <select> element")
    require_usable(element, "select_option")
    options = options_of(element)
    chosen = []
    for text in wanted:
        plain = " ".join(text.split())
        matching = [o for o in options if value_of(o) == text or label_of(o) == plain]
        if not matching:
            named = ", ".join(repr(label_of(option)) for option in options[:20])
            raise _timeout("select_option", f"did not find some options; it has {named}")
        chosen.append(matching[0])
    if "multiple" not in element.attributes:
        chosen = chosen[:1]
        if not chosen:
            raise _timeout("select_option", "one option must be chosen")
    for option in options:
        option.checked = any(option is one for one in chosen)
    page.changed()


def submit(page: Page, form: Element, submitter: Element | None) -> Visit | None:
    """Send a form, unless a field is invalid: then that has the focus and nothing is sent."""
    by = submitter.attributes if submitter is not None else {}
    if "novalidate" not in form.attributes and "formnovalidate" not in by:
        refused = first_refused(form, page.document)
        if refused is not None:
            page.focus(*refused)
            return None
    return visit_of(form, submitter, page.document, page.url)


def require_usable(element: Element, call: str) -> None:
    """Reject, as a browser's driver does, an element that is not drawn or is switched off."""
    inner: Element | None = None
    for part in (element, *element.ancestors()):
        folded = part.tag == "details" and not is_open(part)
        in_menu = part.tag == "select" and not is_list(part) and inner is not None
        if not is_shown(part) or in_menu or (folded and inner and inner.tag != "summary"):
            raise _timeout(call, "element is not visible")
        inner = part
    if element.tag in _FIELDS | {"option"} and is_disabled(element):
        raise _timeout(call, "element is not enabled")


def _timeout(call: str, reason: str) -> BrowserError:
    return BrowserError(f"TimeoutError: Locator.{call}: Timeout 500ms exceeded. {reason}")


def _follow(page: Page, link: Element, new_tab: bool) -> Visit | None:
    href = link.get("href").strip()
    if href.lower().startswith(("javascript:", "mailto:", "tel:")):
        return None
    opens = new_tab or link.get("target").lower() == "_blank"
    return Visit(join_url(page.url, href), None, opens)


def _use_field(page: Page, field: Element) -> Visit | None:
    """What a click does to a button, a box or a field."""
    kind = input_type(field) if field.tag == "input" else field.get("type").lower() or "submit"
    if is_disabled(field) or field.tag not in ("button", "input"):
        return None
    if kind == "checkbox":
        field.checked = not is_checked(field)
    elif kind == "radio":
        _tick(page, field)
    elif kind in BUTTON_TYPES:
        form = form_of(field, page.document)
        if form is not None and kind in ("submit", "image"):
            return submit(page, form, field)
        if form is not None and kind == "reset":
            _reset(page, form)
    page.changed()
    return None


def _tick(page: Page, radio: Element) -> None:
    form, name = form_of(radio, page.document), radio.get("name")
    for other in page.document.root.elements() if name else ():
        if (
            other.tag == "input"
            and other.get("name") == name
            and input_type(other) == "radio"
            and form_of(other, page.document) is form
        ):
            other.checked = False
    radio.checked = True


def _reset(page: Page, form: Element) -> None:
    for field in fields_of(form, page.document.root):
        field.value = field.checked = None
        for option in options_of(field) if field.tag == "select" else ():
            option.checked = None


def _choose_in_list(page: Page, option: Element) -> None:
    box = next((parent for parent in option.ancestors() if parent.tag == "select"), None)
    if box is not None:
        for other in options_of(box):
            other.checked = other is option
        page.focus(box)


def _fold(page: Page, summary: Element) -> None:
    details = summary.parent
    if details is not None and details.tag == "details":
        details.opened = not is_open(details)
    page.focus(summary)


def _labelled(page: Page, label: Element) -> Element | None:
    if "for" in label.attributes:
        found = page.document.by_id.get(label.get("for"))
        return found if found is not None and found.tag in _FIELDS else None
    return next((e for e in label.elements() if e.tag in _FIELDS), None)


def _retarget(page: Page, element: Element) -> Element:
    """The field of a label; of anything else, itself."""
    return (_labelled(page, element) or element) if element.tag == "label" else element


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
