"""BrowserGym's grammar of actions, subset webarena: one call with literals, never evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from agentgym_servers.web.action import Action, ActionProblem, Argument

_Reader: TypeAlias = Callable[[object], Argument]

_MOST_CALLS: Final = 40
_BUTTONS: Final = ("left", "middle", "right")
_MODIFIERS: Final = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")
_REQUIRED: Final = object()


def call_texts(text: str) -> list[str]:
    """The calls of known actions in a text, in order; the last ones where there are very many."""
    starts = [(found.start(), found.end()) for found in _NAME.finditer(text)][-_MOST_CALLS:]
    calls: list[str] = []
    done = 0
    for start, inside in starts:
        if start < done:
            continue
        rest = _ARGUMENTS.match(text, inside)
        if rest is not None:
            done = rest.end()
            calls.append(text[start:done])
    return calls


def parse_call(text: str) -> Action | ActionProblem:
    """Read one call, such as `fill("12", "red lamp")`."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ActionProblem(f"This is not a call: {text[:80]!r}. {HOW_TO_CALL}")
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return ActionProblem(f"This is not a call of an action: {text[:80]!r}. {HOW_TO_CALL}")
    kind = call.func.id
    if kind not in _SIGNATURES:
        return ActionProblem(f"There is no action {kind!r}. {HOW_TO_CALL}")
    try:
        given = _bind(kind, call)
        args = tuple(
            read(given.get(name, default)) for name, (read, default) in _SIGNATURES[kind].items()
        )
    except ValueError as error:
        return ActionProblem(f"ValueError: {error} Write: {_usage(kind)}.")
    if kind == "fill":
        args += (False,)
    return Action(kind, args)


def write_call(action: Action) -> str:
    """An action in this grammar; a fill with Enter is two calls, each on its line."""
    args = action.args
    enter = action.kind == "fill" and args[2]
    if action.kind == "fill":
        args = args[:2]
    elif action.kind == "click":
        args = args[: 3 if args[2] else 2 if args[1] != "left" else 1]
    elif action.kind == "noop":
        args = ()
    shown = ", ".join(repr(list(a) if isinstance(a, tuple) else a) for a in args)
    return f"{action.kind}({shown})" + ("\nkeyboard_press('Enter')" if enter else "")


def _bind(kind: str, call: ast.Call) -> dict[str, object]:
    names = list(_SIGNATURES[kind])
    if len(call.args) > len(names):
        raise ValueError(f"{kind} takes {len(names)} arguments, got {len(call.args)}.")
    nodes = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in names or keyword.arg in nodes:
            raise ValueError(f"{kind} has no argument {keyword.arg!r} to give here.")
        nodes[str(keyword.arg)] = keyword.value
    missing = [n for n in names if n not in nodes and _SIGNATURES[kind][n][1] is _REQUIRED]
    if missing:
        raise ValueError(f"{kind} needs {', '.join(missing)}.")
    try:
        return {name: ast.literal_eval(node) for name, node in nodes.items()}
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError) as error:
        raise ValueError(f"{kind} takes only plain texts, numbers and lists.") from error


def _usage(kind: str) -> str:
    return f"{kind}({', '.join(_SIGNATURES[kind])})"


def _text(given: object) -> str:
    if isinstance(given, str):
        return given
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


_SIGNATURES: Final[dict[str, dict[str, tuple[_Reader, object]]]] = {
    "noop": {"wait_ms": (_number, 1000)},
    "scroll": {"delta_x": (_number, _REQUIRED), "delta_y": (_number, _REQUIRED)},
    "keyboard_press": {"key": (_text, _REQUIRED)},
    "click": {
        "bid": (_bid, _REQUIRED),
        "button": (_button, "left"),
        "modifiers": (_modifiers, ()),
    },
    "fill": {"bid": (_bid, _REQUIRED), "value": (_text, _REQUIRED)},
    "hover": {"bid": (_bid, _REQUIRED)},
    "tab_focus": {"index": (_index, _REQUIRED)},
    "new_tab": {},
    "go_back": {},
    "go_forward": {},
    "goto": {"url": (_text, _REQUIRED)},
    "tab_close": {},
    "select_option": {"bid": (_bid, _REQUIRED), "options": (_options, _REQUIRED)},
    "send_msg_to_user": {"text": (_text, _REQUIRED)},
    "report_infeasible": {"reason": (_text, _REQUIRED)},
}
HOW_TO_CALL: Final = "Write one of: " + ", ".join(map(_usage, _SIGNATURES)) + "."
_NAME: Final = re.compile(rf"\b(?:{'|'.join(_SIGNATURES)})\(")
_ARGUMENTS: Final = re.compile(
    r"""(?:[^()'"]|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")*+\)""", re.DOTALL
)
"""The rest of a call; possessive, so that it never goes back."""
