"""Reads the JavaScript of a locator: one expression of the subset that WebArena's tasks use.

Literals, names, properties, calls, `?.`, indices, arrays with `...`, arrow functions of one
expression, `+ ! && || ?? ?:` and comparisons. Anything else is rejected; nothing runs here.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Final, TypeAlias

import msgspec

from agentgym_servers.web.evaluation.page_access import UnsupportedLocator


class Undefined(enum.Enum):
    """JavaScript's `undefined`, which is not its `null`."""

    UNDEFINED = "undefined"


UNDEFINED: Final = Undefined.UNDEFINED


class Literal(msgspec.Struct, frozen=True):
    """A string, a number, `true`, `false`, `null` or `undefined`."""

    value: str | int | float | bool | Undefined | None


class Name(msgspec.Struct, frozen=True):
    """`document`, or a parameter."""

    name: str


class Member(msgspec.Struct, frozen=True):
    """`whole.name`, or `whole?.name`."""

    whole: Node
    name: str
    optional: bool


class Index(msgspec.Struct, frozen=True):
    """`whole[place]`."""

    whole: Node
    place: Node


class Call(msgspec.Struct, frozen=True):
    """`whole.name(...)`."""

    method: Member
    arguments: tuple[Node, ...]


class Chain(msgspec.Struct, frozen=True):
    """A run of members, indices and calls: `?.` on nothing makes all of it undefined."""

    inner: Node


class Array(msgspec.Struct, frozen=True):
    """`[a, ...b]`; each item with whether it is spread."""

    items: tuple[tuple[Node, bool], ...]


class Arrow(msgspec.Struct, frozen=True):
    """`(a, b) => body`."""

    parameters: tuple[str, ...]
    body: Node


class Not(msgspec.Struct, frozen=True):
    """`!operand`."""

    operand: Node


class Binary(msgspec.Struct, frozen=True):
    """`left operator right`."""

    operator: str
    left: Node
    right: Node


class Conditional(msgspec.Struct, frozen=True):
    """`test ? then : otherwise`."""

    test: Node
    then: Node
    otherwise: Node


Node: TypeAlias = (
    Literal | Name | Member | Index | Call | Chain | Array | Arrow | Not | Binary | Conditional
)

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<name>[A-Za-z_$][\w$]*)
      | (?P<sign>\.\.\.|=>|===|!==|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|[.,()\[\]?:+!<>;-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_LITERALS: Final = {"true": True, "false": False, "null": None, "undefined": UNDEFINED}
_POWERS: Final = {
    "||": 1, "??": 1, "&&": 2, "===": 3, "!==": 3, "==": 3, "!=": 3,
    "<": 4, ">": 4, "<=": 4, ">=": 4, "+": 5,
}  # fmt: skip
_DEEPEST: Final = 40


@functools.lru_cache(maxsize=512)
def read_locator(text: str) -> Node:
    """Read one expression; raises `UnsupportedLocator` for what is beyond the subset."""
    return _Reader(text).whole()


class _Reader:
    """Reads an expression from left to right, by the power of its operators."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize()
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        """The expression, with nothing after it but a semicolon."""
        node = self._expression()
        self._take(";")
        if self._peek()[0] != "end":
            raise self._refusal()
        return node

    def _tokenize(self) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        at = 0
        while not tokens or tokens[-1][0] != "end":
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                raise UnsupportedLocator(
                    f"The locator {self._text!r} is not supported at {self._text[at:]!r}."
                )
            tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        return tokens

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._refusal()
        parameters = self._parameters()
        node: Node
        if parameters is not None:
            node = Arrow(parameters, self._expression())
        else:
            node = self._binary(0)
            if self._take("?"):
                then = self._expression()
                self._need(":")
                node = Conditional(node, then, self._expression())
        self._depth -= 1
        return node

    def _parameters(self) -> tuple[str, ...] | None:
        """The parameters of an arrow function, if one begins here."""
        texts = [text for _, text in self._tokens[self._at :]]
        if self._peek()[0] == "name" and texts[1:2] == ["=>"]:
            self._at += 2
            return (texts[0],)
        if texts[0] != "(" or ")" not in texts:
            return None
        close = texts.index(")")
        inside = self._tokens[self._at + 1 : self._at + close]
        if texts[close + 1 : close + 2] != ["=>"]:
            return None
        if any(kind != "name" for kind, _ in inside[::2]) or any(
            text != "," for _, text in inside[1::2]
        ):
            raise self._refusal()
        self._at += close + 2
        return tuple(text for _, text in inside[::2])

    def _binary(self, power: int) -> Node:
        left = self._unary()
        while (own := _POWERS.get(self._peek()[1], 0)) > power and self._peek()[0] == "sign":
            operator = self._next()[1]
            left = Binary(operator, left, self._binary(own))
        return left

    def _unary(self) -> Node:
        if self._take("!"):
            return Not(self._unary())
        if self._take("-"):
            kind, text = self._next()
            if kind != "number":
                raise self._refusal()
            return Literal(-_number(text))
        return self._chain()

    def _chain(self) -> Node:
        node = self._primary()
        optional = False
        while True:
            if self._peek() in (("sign", "."), ("sign", "?.")):
                asks = self._next()[1] == "?."
                kind, name = self._next()
                if kind != "name":
                    raise self._refusal()
                node, optional = Member(node, name, asks), optional or asks
            elif self._take("["):
                node = Index(node, self._expression())
                self._need("]")
            elif self._peek()[1] == "(" and isinstance(node, Member):
                self._take("(")
                node = Call(node, tuple(one for one, _ in self._list(")", spread=False)))
            else:
                return Chain(node) if optional else node

    def _primary(self) -> Node:
        kind, text = self._next()
        if kind == "string":
            return Literal(_ESCAPE.sub(_unescaped, text[1:-1]))
        if kind == "number":
            return Literal(_number(text))
        if kind == "name":
            return Literal(_LITERALS[text]) if text in _LITERALS else Name(text)
        if (kind, text) == ("sign", "["):
            return Array(tuple(self._list("]", spread=True)))
        if (kind, text) == ("sign", "("):
            node = self._expression()
            self._need(")")
            return node
        raise self._refusal()

    def _list(self, close: str, *, spread: bool) -> list[tuple[Node, bool]]:
        items: list[tuple[Node, bool]] = []
        while not self._take(close):
            if items:
                self._need(",")
            spreads = spread and self._take("...")
            items.append((self._expression(), spreads))
        return items

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        if token[0] == "end":
            raise self._refusal()
        self._at += 1
        return token

    def _take(self, sign: str) -> bool:
        taken = self._peek() == ("sign", sign)
        self._at += taken
        return taken

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._refusal()

    def _refusal(self) -> UnsupportedLocator:
        return UnsupportedLocator(
            f"The locator {self._text!r} is not supported at {self._peek()[1]!r}."
        )


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[3], found[3])
