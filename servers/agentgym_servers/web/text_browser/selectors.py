"""CSS selectors over lxml elements, matched as a browser matches them.

cssselect translates them to XPath. As in a browser, what is left open at the end of a selector is
closed there. What is not CSS, or depends on a user, is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from agentgym_env.errors import MissingExtra
from agentgym_servers.web.evaluation.page_access import UnsupportedLocator

try:
    from cssselect import ExpressionError, HTMLTranslator, SelectorError
    from lxml import etree
except ModuleNotFoundError as error:
    raise MissingExtra(
        "The web sites need lxml and cssselect: pip install 'agentgym-sdk[web]'"
    ) from error

Element = Any
"""An lxml element; lxml brings no types."""

_CLOSING: Final = {"[": "]", "(": ")", '"': '"', "'": "'"}


class Selector:
    """A list of selectors; an element matches if any of them does."""

    def __init__(self, xpath: etree.XPath) -> None:
        self._xpath = xpath

    def matches(self, element: Element) -> bool:
        """Whether an element is selected in its document."""
        return any(one is element for one in self._selected(element))

    def below(self, root: Element) -> Iterator[Element]:
        """The selected descendants in the order of the document."""
        for element in self._selected(root):
            if any(above is root for above in element.iterancestors()):
                yield element

    def closest(self, element: Element) -> Element | None:
        """The element itself, or the nearest ancestor, that is selected."""
        selected = set(self._selected(element))
        return next((one for one in (element, *element.iterancestors()) if one in selected), None)

    def _selected(self, element: Element) -> list[Element]:
        """Every selected element of the document: what is selected depends on all of it."""
        found: list[Element] = self._xpath(element.getroottree().getroot())
        return found


class _Translator(HTMLTranslator):
    """Rejects what a page without a user cannot decide, and what cssselect adds to CSS."""

    def _reject(self, *_: Any, **__: Any) -> NoReturn:
        raise ExpressionError("it depends on a user, or is not CSS")

    xpath_active_pseudo = xpath_focus_pseudo = xpath_hover_pseudo = _reject
    xpath_target_pseudo = xpath_visited_pseudo = _reject
    xpath_contains_function = xpath_attrib_different = _reject


@functools.lru_cache(maxsize=512)
def read_selector(text: str) -> Selector:
    """Compile a selector; raises `UnsupportedLocator` for what is not supported."""
    try:
        return Selector(etree.XPath(_Translator().css_to_xpath(_closed(text))))
    except (SelectorError, etree.XPathError) as error:
        raise UnsupportedLocator(f"The selector {text!r} is not supported: {error}.") from error


def _closed(text: str) -> str:
    """A selector with the brackets and quotation marks that are open at its end closed."""
    open_signs: list[str] = []
    for sign in text:
        if open_signs and sign == open_signs[-1]:
            open_signs.pop()
        elif sign in _CLOSING and not (open_signs and open_signs[-1] in "\"'"):
            open_signs.append(_CLOSING[sign])
    return text + "".join(reversed(open_signs))
