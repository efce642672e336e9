"""An action on a web page, and BrowserGym's grammar: calls such as `fill("12", "red lamp")`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from agentgym_env.spaces import clean_text

Argument: TypeAlias = str | int | float | bool | tuple[str, ...]

ENDINGS: Final = frozenset({"send_msg_to_user", "report_infeasible"})
"""The kinds of action that end an episode."""

_Reader: TypeAlias = Callable[[object], Argument]

Signature: TypeAlias = Mapping[str, tuple[_Reader, object]]
"""An argument's name -> how it is read, and what it is where it is not given."""

_MAX_CALLS: Final = 40

_WAIT_MS: Final = 1000.0

_MAX_TYPED: Final = 1000
"""Characters that a browser types key by key well within a turn's time."""

_BUTTONS: Final = ("left", "middle", "right")

_MODIFIERS: Final = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")

_REQUIRED: Final = object()

_BARE_TEXTS: Final = (bool, int, float, type(None))
"""What is written without quotes and read as a text where one is wanted."""

_ARGUMENTS: Final = re.compile(
    r"""(?:[^()'"]|'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")*+\)""", re.DOTALL
)
"""The rest of a call; possessive, so that it never goes back."""

_LOOSE: Final = r"""'(?:\\.|[^'\\]|'(?!\s*[,)\]]))*+'|"(?:\\.|[^"\\]|"(?!\s*[,)\]]))*+\""""

_LOOSE_TEXT: Final = re.compile(_LOOSE, re.DOTALL)
"""A text that may contain its own quote, up to one that ends an argument."""

_LOOSE_ARGUMENTS: Final = re.compile(rf"(?:[^()'\"]|{_LOOSE})*+\)", re.DOTALL)

_ENDING: Final = re.compile(r"['\"]\s*\)")


class Action(msgspec.Struct, frozen=True):
    """One action, by BrowserGym's name and with its arguments in BrowserGym's order.

    `click` has (bid, button, modifiers), `fill` (bid, value, whether Enter follows),
    `select_option` (bid, options), `scroll` (pixels right, pixels down).
    """

    kind: str
    args: tuple[Argument, ...] = ()

    def text(self, at: int) -> str:
        """The argument `at`, which is a text."""
        return str(self.args[at])

    def texts(self, at: int) -> tuple[str, ...]:
        """The argument `at`, which is a row of texts."""
        found = self.args[at]
        return found if isinstance(found, tuple) else (str(found),)


class ActionProblem(msgspec.Struct, frozen=True):
    """Why a text is no action, and what to write instead."""

    message: str


class CallText(NamedTuple):
    """A call in a text, and its place there."""

    start: int
    end: int
    source: str
    """The call in Python's syntax, if it can be read."""


def _text(given: object) -> str:
    if isinstance(given, str):
        # JSON writes one character above U+FFFF as two escapes; a literal reads them as two.
        return clean_text(given)
    if isinstance(given, _BARE_TEXTS):
        return str(given)
    raise ValueError(f"expected a string, got {str(given)[:40]}.")


def _bid(given: object) -> str:
    if isinstance(given, bool | float | None):
        raise ValueError(f"expected an id, got {given}.")
    return _text(given)


_AT: Final[Signature] = {"bid": (_bid, _REQUIRED)}


def _number(given: object) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < 1e9:
        return float(given)
    raise ValueError(f"expected a number, got {str(given)[:40]}.")


_PLACE: Final[Signature] = {"x": (_number, _REQUIRED), "y": (_number, _REQUIRED)}


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


def _index(given: object) -> int:
    if type(given) is int and abs(given) < 1e9:
        return given
    raise ValueError(f"expected a whole number, got {str(given)[:40]}.")


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


class CallGrammar:
    """The calls that are understood: their names and arguments."""

    def __init__(self, signatures: Mapping[str, Signature]) -> None:
        self._signatures = signatures
        self.kinds = frozenset(signatures)
        """The names of its actions."""
        self.how_to_call = "Write one of: " + ", ".join(map(self._usage, signatures)) + "."
        """The reply to an agent whose text is no call."""
        self._name = re.compile(rf"\b(?:{'|'.join(signatures)})\(")

    def calls(self, text: str) -> list[CallText]:
        """The calls of known actions in a text, in order; of very many the last."""
        starts = [(found.start(), found.end()) for found in self._name.finditer(text)]
        starts = starts[-_MAX_CALLS:]
        calls: list[CallText] = []
        for number, (start, inside) in enumerate(starts, 1):
            following = starts[number][0] if number < len(starts) else len(text)
            if calls and start < calls[-1].end:
                continue
            calls.append(_call_at(text, start, inside, following))
        return calls

    def parse(self, text: str) -> Action | ActionProblem:
        """Read one call, such as `fill("12", "red lamp")`."""
        text = text.strip()
        call = _python(text)
        if call is None:
            return self._unreadable(text, text.partition("(")[0])
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return ActionProblem(
                f"This is not a call of an action: {text[:80]!r}. {self.how_to_call}"
            )
        kind = call.func.id
        if kind not in self._signatures:
            return ActionProblem(f"There is no action {kind!r}. {self.how_to_call}")
        signature = self._signatures[kind]
        try:
            given = _bind(kind, call, signature, text)
            args = tuple(
                read(given.get(name, default)) for name, (read, default) in signature.items()
            )
        except ValueError as error:
            return ActionProblem(f"ValueError: {error} Write: {self._usage(kind)}.")
        if kind == "fill":
            args += (False,)
        return Action(kind, args)

    def _unreadable(self, text: str, kind: str) -> ActionProblem:
        how = f"Write: {self._usage(kind)}." if kind in self._signatures else self.how_to_call
        return ActionProblem(
            f"ValueError: {text[:80]!r} is no call that can be read: its arguments are texts in "
            "quotes, numbers or lists. Close each quote and the parenthesis, and write a quote "
            f"within a text as \\' or \\\". {how}"
        )

    def _usage(self, kind: str) -> str:
        return f"{kind}({', '.join(self._signatures[kind])})"


SITES: Final = CallGrammar(_ON_SITES)
"""Calls on web sites: BrowserGym's subset webarena."""


def _typed(given: object) -> str:
    text = _text(given)
    if len(text) > _MAX_TYPED:
        raise ValueError(
            f"at most {_MAX_TYPED} characters are typed key by key, got {len(text)}; insert a "
            "longer text with keyboard_insert_text."
        )
    return text


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
        "keyboard_type": {"text": (_typed, _REQUIRED)},
        "keyboard_insert_text": {"text": (_text, _REQUIRED)},
}  # fmt: skip

WIDGETS: Final = CallGrammar(_ON_WIDGETS)
"""Calls on one page with widgets: BrowserGym's subsets bid and coord, without its uploads."""

ALL: Final = CallGrammar(_ON_SITES | _ON_WIDGETS)
"""Both."""


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


def _python(text: str) -> ast.expr | None:
    """The expression that a text is, if it is one."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call_at(text: str, start: int, inside: int, following: int) -> CallText:
    """The call whose name begins at `start`, with its arguments from `inside` on.

    What is no Python is read with unescaped quotes and line breaks in its texts, up to where the
    next call begins: a quote ends a text where a comma or a bracket follows it. If what follows the
    call could belong to it just as well, it stays as it is.
    """
    strict = _ARGUMENTS.match(text, inside)
    if strict is not None and _python(text[start : strict.end()]) is not None:
        return CallText(start, strict.end(), text[start : strict.end()])
    loose = _LOOSE_ARGUMENTS.match(text, inside, following)
    if loose is not None:
        end = loose.end()
        same_end = strict is not None and strict.end() == end
        escaped = text[start:inside] + _LOOSE_TEXT.sub(_escaped, loose[0])
        if (same_end or not _ENDING.search(text, end, following)) and _python(escaped) is not None:
            return CallText(start, end, escaped)
    end = strict.end() if strict is not None else following
    return CallText(start, end, text[start:end])


def _escaped(found: re.Match[str]) -> str:
    """A text with its quotes and line breaks written as Python wants them."""
    quote, inner = found[0][0], found[0][1:-1]

    def escape(one: re.Match[str]) -> str:
        return one[0] if one[0][0] == "\\" else {"\n": "\\n", "\r": "\\r"}.get(one[0], "\\" + quote)

    return quote + re.sub(rf"\\.|[\n\r{quote}]", escape, inner, flags=re.DOTALL) + quote


def _bind(kind: str, call: ast.Call, signature: Signature, text: str) -> dict[str, object]:
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
        given = {name: ast.literal_eval(node) for name, node in nodes.items()}
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError) as error:
        raise ValueError(f"{kind} takes only plain texts, numbers and lists.") from error
    for name, node in nodes.items():
        if signature[name][0] is _text and isinstance(given[name], _BARE_TEXTS):
            # As it is written: 84.80, not 84.8.
            given[name] = ast.get_source_segment(text, node)
    return given
