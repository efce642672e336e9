"""WebArena's grammar of actions, such as `type [12] [red lamp] [1]`."""

from __future__ import annotations

import re
from typing import Final

from agentgym_servers.web.actions.calls import Action, ActionProblem, Argument

WINDOW_HEIGHT: Final = 720.0
"""The pixels that one `scroll` moves."""

HOW_TO_WRITE: Final = (
    "Write one of: click [id], type [id] [text] [1], select [id] [option], hover [id], "
    "press [keys], scroll [down], new_tab, tab_focus [index], close_tab, goto [url], go_back, "
    "go_forward, stop [answer]."
)

_BARE: Final = {
    "close_tab": "tab_close",
    "go_back": "go_back",
    "go_forward": "go_forward",
    "new_tab": "new_tab",
    "noop": "noop",
}

_ONE_TEXT: Final = {
    "goto": "goto",
    "hover": "hover",
    "stop": "send_msg_to_user",
}

_TWO_TEXTS: Final = frozenset({"select", "type"})

_OTHERS: Final = frozenset({"click", "press", "scroll", "tab_focus"})

_KEYS: Final = {
    "alt": "Alt",
    "arrowdown": "ArrowDown",
    "arrowleft": "ArrowLeft",
    "arrowright": "ArrowRight",
    "arrowup": "ArrowUp",
    "backspace": "Backspace",
    "cmd": "Meta",
    "ctrl": "Control",
    "control": "Control",
    "delete": "Delete",
    "end": "End",
    "enter": "Enter",
    "esc": "Escape",
    "escape": "Escape",
    "home": "Home",
    "meta": "Meta",
    "pagedown": "PageDown",
    "pageup": "PageUp",
    "shift": "Shift",
    "space": "Space",
    "tab": "Tab",
}

_VERB: Final = re.compile(r"[a-z_]+")

_ENTER: Final = re.compile(r"\s*\[(?:press_enter_after=)?([01])\]$")


def speaks_ids(text: str) -> bool:
    """Whether a text begins like an action of this grammar."""
    verb = _VERB.match(text)
    if verb is None:
        return False
    rest = text[verb.end() :].strip()
    if verb[0] in _BARE or verb[0] == "stop":
        return not rest or rest.startswith("[")
    return verb[0] in _ONE_TEXT.keys() | _TWO_TEXTS | _OTHERS and rest.startswith("[")


def parse_id_action(text: str) -> Action | ActionProblem:
    """Read one action, such as `type [12] [red lamp] [1]`; text may contain brackets and lines."""
    text = text.strip()
    match = _VERB.match(text)
    verb = match[0] if match else ""
    rest = text[len(verb) :].strip()
    if verb in _BARE:
        return Action(_BARE[verb], (1000.0,) if verb == "noop" else ())
    if verb == "stop" and not rest:
        return Action("send_msg_to_user", ("",))
    if not (rest.startswith("[") and rest.endswith("]")):
        return ActionProblem(f"What follows {verb!r} stands in brackets. {HOW_TO_WRITE}")
    inner = rest[1:-1]
    if verb in _ONE_TEXT:
        return Action(_ONE_TEXT[verb], (inner.strip(),))
    if verb in _TWO_TEXTS:
        return _two_texts(verb, rest)
    args = _other(verb, inner.strip())
    if args is None:
        return ActionProblem(f"{verb!r} cannot take [{inner[:40]}]. {HOW_TO_WRITE}")
    return Action("keyboard_press" if verb == "press" else verb, args)


def _two_texts(verb: str, rest: str) -> Action | ActionProblem:
    bid, _, value = rest[1:].partition("]")
    value = value.strip()
    enter = True
    flag = _ENTER.search(value) if verb == "type" else None
    if flag is not None and flag.start() > 0:
        enter, value = flag[1] == "1", value[: flag.start()]
    if not (value.startswith("[") and value.endswith("]") and len(value) > 1):
        return ActionProblem(f"{verb!r} takes an id and a text. {HOW_TO_WRITE}")
    value = value[1:-1]
    if verb == "select":
        return Action("select_option", (bid.strip(), (value,)))
    return Action("fill", (bid.strip(), value, enter))


def _other(verb: str, given: str) -> tuple[Argument, ...] | None:
    if verb == "click":
        return (given, "left", ())
    if verb == "press":
        return (_key_names(given),)
    if verb == "scroll":
        way = {"down": 1.0, "up": -1.0}.get(given.removeprefix("direction="))
        return None if way is None else (0.0, way * WINDOW_HEIGHT)
    return (int(given),) if given.isdecimal() and len(given) < 6 else None


def _key_names(given: str) -> str:
    """Keys as Playwright names them: `ctrl+a` is `Control+a`."""
    return "+".join(_KEYS.get(key.strip().lower(), key.strip()) for key in given.split("+"))
