"""BrowserGym's grammar of actions: one call with literals, never evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from agentgym_env.spaces import clean_text
from agentgym_servers.web.action import Action, ActionProblem, Argument

_Reader: TypeAlias = Callable[[object], Argument]
Signature: TypeAlias = Mapping[str, tuple[_Reader, object]]
"""An argument's name -> how it is read, and what it is where it is not given."""

_MOST_CALLS: Final = 40
_WAIT_MS: Final = 1000.0
_BUTTONS: Final = ("left", "middle", "right")
_MODIFIERS: Final = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")
_REQUIRED: Final = object()


class CallGrammar:
    """The calls that are understood: their names and arguments."""

    def __init__(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = signatures
        self.kinds = frozenset(signatures)
        """The names of its actions."""
        self.how_to_call = "Write one of: " + ", ".join(map(self._usage, signatures)) + "."
        """What an agent is told whose call is none."""
        self._name = re.compile(rf"\b(?:{'|'.join(signatures)})\(")

    def call_texts(self, text: str) -> list[str]:
        """The calls of known actions in a text, in order; of very many the last."""
        starts = [(found.start(), found.end()) for found in self._name.finditer(text)]
        calls: list[str] = []
        done = 0
        for start, inside in starts[-_MOST_CALLS:]:
            if start < done:
                continue
            rest = _ARGUMENTS.match(text, inside)
            if rest is not None:
                done = rest.end()
                calls.append(text[start:done])
        return calls

    def parse(self, text: str) -> Action | ActionProblem:
        """Read one call, such as `fill("12", "red lamp")`."""
        try:
            call = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ActionProblem(f"This is not a call: {text[:80]!r}. {self.how_to_call}")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return ActionProblem(
                f"This is not a call of an action: {text[:80]!r}. {self.how_to_call}"
            )
        kind = call.func.id
        if kind not in self._signatures:
            return ActionProblem(f"There is no action {kind!r}. {self.how_to_call}")
        signature = self._signatures[kind]
        try:
            given = _bind(kind, call, signature)
            args = tuple(
                read(given.get(name, default)) for name, (read, default) in signature.items()
            )
        except ValueError as error:
            return ActionProblem(f"ValueError: {error} Write: {self._usage(kind)}.")
        if kind == "fill":
            args += (False,)
        return Action(kind, args)

    def _usage(self, kind: str) -> str:
        return f"{kind}({', '.join(self._signatures[kind])})"


def write_call(action: Action) -> str:
    """An action in this grammar; a fill with Enter is two calls, each on its line."""
    args = action.args
    enter = action.kind == "fill" and args[2]
    if action.kind == "fill":
        args = args[:2]
    elif action.kind in ("click", "dblclick"):
        args = args[: 3 if args[2] else 2 if args[1] != "left" else 1]
    elif action.kind == "noop" and args[:1] == (_WAIT_MS,):
        args = ()
    shown = ", ".join(repr(list(a) if isinstance(a, tuple) else a) for a in args)
    return f"{action.kind}({shown})" + ("\nkeyboard_press('Enter')" if enter else "")


def _bind(kind: str, call: ast.Call, signature: Signature) -> dict[str, object]:
    names = list(signature)
    if len(call.args) > len(names):
        raise ValueError(f"{kind} takes {len(names)} arguments, got {len(call.args)}.")
    nodes = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in names or keyword.arg in nodes:
            raise ValueError(f"{kind} has no argument {keyword.arg!r} to give here.")
        nodes[str(keyword.arg)] = keyword.value
    missing = [n for n in names if n not in nodes and signature[n][1] is _REQUIRED]
    if missing:
        raise ValueError(f"{kind} needs {', '.join(missing)}.")
    try:
        return {name: ast.literal_eval(node) for name, node in nodes.items()}
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError) as error:
        raise ValueError(f"{kind} takes only plain texts, numbers and lists.") from error


def _text(given: object) -> str:
    if isinstance(given, str):
        # JSON writes one character above U+FFFF as two escapes; a literal reads them as two.
        return clean_text(given)
    raise ValueError(f"expected a string, got {str(given)[:40]}.")


def _bid(given: object) -> str:
    return str(given) if type(given) is int else _text(given)


def _number(given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e9:
        return float(given)
    raise ValueError(f"expected a number, got {str(given)[:40]}.")


def _index(given: object) -> int:
    if type(given) is int and abs(given) < 1e9:
        return given
    raise ValueError(f"expected a whole number, got {str(given)[:40]}.")


def _options(given: object) -> tuple[str, ...]:
    if isinstance(given, list | tuple):
        return tuple(_text(option) for option in given)
    return (_text(given),)


def _button(given: object) -> str:
    if given in _BUTTONS:
        return str(given)
    raise ValueError(f"a button is one of {', '.join(_BUTTONS)}, got {str(given)[:40]}.")


def _modifiers(given: object) -> tuple[str, ...]:
    keys = _options(given)
    if set(keys) <= set(_MODIFIERS):
        return keys
    raise ValueError(f"modifiers are of {', '.join(_MODIFIERS)}, got {str(given)[:40]}.")


_AT: Final[Signature] = {"bid": (_bid, _REQUIRED)}
_PLACE: Final[Signature] = {"x": (_number, _REQUIRED), "y": (_number, _REQUIRED)}
_CLICK: Final[Signature] = {
    "button": (_button, "left"),
    "modifiers": (_modifiers, ()),
}
_KEY: Final[Signature] = {"key": (_text, _REQUIRED)}
_ON_A_PAGE: Final[dict[str, Signature]] = {
    "noop": {"wait_ms": (_number, _WAIT_MS)},
    "scroll": {"delta_x": (_number, _REQUIRED), "delta_y": (_number, _REQUIRED)},
    "keyboard_press": _KEY,
    "click": {**_AT, **_CLICK},
    "fill": {**_AT, "value": (_text, _REQUIRED)},
    "hover": _AT,
    "select_option": {**_AT, "options": (_options, _REQUIRED)},
}
_ON_SITES: Final[dict[str, Signature]] = {
    **_ON_A_PAGE,
    "tab_focus": {"index": (_index, _REQUIRED)},
    "new_tab": {},
    "go_back": {},
    "go_forward": {},
    "goto": {"url": (_text, _REQUIRED)},
    "tab_close": {},
    "send_msg_to_user": {"text": (_text, _REQUIRED)},
    "report_infeasible": {"reason": (_text, _REQUIRED)},
}
SITES: Final = CallGrammar(_ON_SITES)
"""Calls on web sites: BrowserGym's subset webarena."""

_ON_WIDGETS: Final[dict[str, Signature]] = {
        **_ON_A_PAGE,
        "dblclick": {**_AT, **_CLICK},
        "press": {**_AT, "key_comb": (_text, _REQUIRED)},
        "focus": _AT,
        "clear": _AT,
        "drag_and_drop": {"from_bid": (_bid, _REQUIRED), "to_bid": (_bid, _REQUIRED)},
        "scroll_at": {**_PLACE, "dx": (_number, _REQUIRED), "dy": (_number, _REQUIRED)},
        "mouse_move": _PLACE,
        "mouse_down": {**_PLACE, "button": (_button, "left")},
        "mouse_up": {**_PLACE, "button": (_button, "left")},
        "mouse_click": {**_PLACE, "button": (_button, "left")},
        "mouse_dblclick": {**_PLACE, "button": (_button, "left")},
        "mouse_drag_and_drop": {
            "from_x": (_number, _REQUIRED), "from_y": (_number, _REQUIRED),
            "to_x": (_number, _REQUIRED), "to_y": (_number, _REQUIRED),
        },
        "keyboard_down": _KEY,
        "keyboard_up": _KEY,
        "keyboard_type": {"text": (_text, _REQUIRED)},
        "keyboard_insert_text": {"text": (_text, _REQUIRED)},
}  # fmt: skip
WIDGETS: Final = CallGrammar(_ON_WIDGETS)
"""Calls on one page with widgets: BrowserGym's subsets bid and coord, without its uploads."""

ALL: Final = CallGrammar(_ON_SITES | _ON_WIDGETS)
"""Both."""

_ARGUMENTS: Final = re.compile(
    r"""(?:[^()'"]|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")*+\)""", re.DOTALL
)
"""The rest of a call; possessive, so that it never goes back."""
