"""A subset of CSS selectors over lxml elements, matched as a browser matches them.

Types, `*`, `#id`, `.class`, attributes, the four combinators, lists, and the pseudo-classes of
`_PSEUDO`. As in a browser, what is left open at the end of a selector is closed there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from agentgym_servers.web.evaluation.page_access import UnsupportedLocator

Element = Any
"""An lxml element; lxml brings no types."""

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"-?(?:[^\W\d]|[_\u0080-\uffff])(?:[\w-]|[\u0080-\uffff])*|--[\w-]*")
_STRING: Final = re.compile(r"\"([^\"\\]*)(?:\"|\Z)|'([^'\\]*)(?:'|\Z)")
_OPERATOR: Final = re.compile(r"[~|^$*]?=")
_NTH: Final = re.compile(r"\s*(?:(odd|even)|(?:([+-]?\d*)n\s*)?([+-]?\s*\d+)?)\s*(?:\)|\Z)")


class Compound(msgspec.Struct, frozen=True):
    """Tests of one element, and how the compound before it must stand to it."""

    tests: tuple[Callable[[Element], bool], ...]
    combinator: str
    """What joins it to the compound on its left: a blank, `>`, `+`, `~`, or nothing."""


class Selector(msgspec.Struct, frozen=True):
    """A list of chains of compounds; an element matches where any chain does."""

    chains: tuple[tuple[Compound, ...], ...]

    def matches(self, element: Element) -> bool:
        """Whether an element is selected in its document."""
        return any(_chain_matches(chain, element) for chain in self.chains)

    def below(self, root: Element) -> Iterator[Element]:
        """The selected descendants in the order of the document."""
        for element in root.iterdescendants():
            if isinstance(element.tag, str) and self.matches(element):
                yield element


@functools.lru_cache(maxsize=512)
def read_selector(text: str) -> Selector:
    """Compile a selector; raises `UnsupportedLocator` for what is beyond the subset."""
    return _Reader(text).selector()


def _chain_matches(chain: tuple[Compound, ...], element: Element) -> bool:
    last = chain[-1]
    if not all(test(element) for test in last.tests):
        return False
    rest = chain[:-1]
    match last.combinator:
        case "":
            return True
        case ">":
            return element.getparent() is not None and _chain_matches(rest, element.getparent())
        case "+":
            before = next(_elements_before(element), None)
            return before is not None and _chain_matches(rest, before)
        case "~":
            return any(_chain_matches(rest, before) for before in _elements_before(element))
        case _:
            return any(_chain_matches(rest, above) for above in element.iterancestors())


def _elements_before(element: Element) -> Iterator[Element]:
    return (one for one in element.itersiblings(preceding=True) if isinstance(one.tag, str))


def _position(element: Element, *, last: bool = False, of_type: bool = False) -> int:
    beside: list[object] = [one.tag for one in element.itersiblings(preceding=not last)]
    counted = [tag for tag in beside if isinstance(tag, str)]
    return 1 + (counted.count(element.tag) if of_type else len(counted))


_PSEUDO: Final[dict[str, Callable[[Element], bool]]] = {
    "first-child": lambda element: _position(element) == 1,
    "last-child": lambda element: _position(element, last=True) == 1,
    "first-of-type": lambda element: _position(element, of_type=True) == 1,
    "last-of-type": lambda element: _position(element, last=True, of_type=True) == 1,
    "checked": lambda element: "checked" in element.attrib or "selected" in element.attrib,
    "disabled": lambda element: "disabled" in element.attrib,
    "empty": lambda element: not len(element) and not element.text,
}


class _Reader:
    """Reads one selector from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def selector(self) -> Selector:
        """The whole text as a list of chains."""
        chains = [self._chain()]
        while self._take(","):
            self._match(_SPACE)
            chains.append(self._chain())
        if self._at < len(self._text):
            raise self._refusal()
        return Selector(tuple(chains))

    def _chain(self) -> tuple[Compound, ...]:
        self._match(_SPACE)
        compounds = [Compound(self._tests(), "")]
        while True:
            blank = bool(self._match(_SPACE))
            combinator = next((sign for sign in ">+~" if self._take(sign)), " " if blank else "")
            self._match(_SPACE)
            if not combinator or self._peek() in ("", ","):
                if combinator.strip():
                    raise self._refusal()
                return tuple(compounds)
            compounds.append(Compound(self._tests(), combinator))

    def _tests(self) -> tuple[Callable[[Element], bool], ...]:
        tests: list[Callable[[Element], bool]] = []
        if self._take("*"):
            tests.append(lambda element: True)
        elif tag := self._match(_NAME):
            tests.append(functools.partial(_has_tag, tag.lower()))
        while self._peek() in ("#", ".", "[", ":"):
            tests.append(self._simple())
        if not tests:
            raise self._refusal()
        return tuple(tests)

    def _simple(self) -> Callable[[Element], bool]:
        if self._take("#"):
            return functools.partial(_attribute_is, "id", "=", self._name())
        if self._take("."):
            return functools.partial(_attribute_is, "class", "~=", self._name())
        if self._take("["):
            return self._attribute()
        self._take(":")
        name = self._name().lower()
        if name in _PSEUDO:
            return _PSEUDO[name]
        if name == "not" and self._take("("):
            inner = self._tests()
            if not self._take(")") and self._peek():
                raise self._refusal()
            return lambda element: not all(test(element) for test in inner)
        if name in ("nth-child", "nth-of-type") and self._take("("):
            return self._nth(of_type=name == "nth-of-type")
        raise self._refusal()

    def _attribute(self) -> Callable[[Element], bool]:
        self._match(_SPACE)
        name = self._name().lower()
        self._match(_SPACE)
        operator = self._match(_OPERATOR)
        value = ""
        if operator:
            self._match(_SPACE)
            quoted = _STRING.match(self._text, self._at)
            if quoted is not None:
                self._at = quoted.end()
                value = quoted[1] if quoted[1] is not None else quoted[2]
            else:
                value = self._name()
            self._match(_SPACE)
        if not self._take("]") and self._peek():
            raise self._refusal()
        return functools.partial(_attribute_is, name, operator, value)

    def _nth(self, *, of_type: bool) -> Callable[[Element], bool]:
        found = _NTH.match(self._text, self._at)
        if found is None or not found[0].strip(") "):
            raise self._refusal()
        self._at = found.end()
        step, start = {"odd": (2, 1), "even": (2, 0)}.get(found[1] or "", (0, 0))
        if found[1] is None:
            step = (
                int({"": "1", "+": "1", "-": "-1"}.get(found[2], found[2]))
                if found[2] is not None
                else 0
            )
            start = int((found[3] or "0").replace(" ", ""))

        def holds(element: Element) -> bool:
            ahead = _position(element, of_type=of_type) - start
            return ahead == 0 if step == 0 else ahead % step == 0 and ahead // step >= 0

        return holds

    def _name(self) -> str:
        name = self._match(_NAME)
        if not name:
            raise self._refusal()
        return name

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _take(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self._at)
        self._at += len(sign) * taken
        return taken

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _refusal(self) -> UnsupportedLocator:
        return UnsupportedLocator(
            f"The selector {self._text!r} is beyond the subset at {self._text[self._at :]!r}."
        )


def _has_tag(tag: str, element: Element) -> bool:
    return bool(element.tag == tag)


def _attribute_is(name: str, operator: str, value: str, element: Element) -> bool:
    found: str | None = element.get(name)
    if found is None:
        return False
    match operator:
        case "":
            return True
        case "=":
            return found == value
        case "~=":
            return value in found.split()
        case "|=":
            return found == value or found.startswith(f"{value}-")
        case "^=":
            return bool(value) and found.startswith(value)
        case "$=":
            return bool(value) and found.endswith(value)
        case _:
            return bool(value) and value in found
