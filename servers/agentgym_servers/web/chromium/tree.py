"""The accessibility tree of a page in Chromium, as BrowserGym reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final
from weakref import WeakKeyDictionary

from browsergym.core.constants import BROWSERGYM_ID_ATTRIBUTE
from browsergym.core.observation import extract_merged_axtree
from browsergym.utils.obs import IGNORED_AXTREE_PROPERTIES, flatten_axtree_to_str
from playwright.sync_api import CDPSession, Error, Frame, Page

IGNORED_ROLES: Final = ("LineBreak", "InlineTextBox", "ListMarker")

IGNORED_PROPERTIES: Final = (*IGNORED_AXTREE_PROPERTIES, "url")
"""Current Chromiums report more than the one of BrowserGym's defaults; with it a text
would be nearly twice as long."""

_MARK: Final = files(__package__).joinpath("mark.js").read_text(encoding="utf-8")

_UNMARK: Final = files(__package__).joinpath("unmark.js").read_text(encoding="utf-8")

# What BrowserGym calls standard HTML: https://www.w3schools.com/tags/
_LISTED: Final = """
    a abbr acronym address applet area article aside audio b base basefont bdi bdo big blockquote
    body br button canvas caption center cite code col colgroup data datalist dd del details dfn
    dialog dir div dl dt em embed fieldset figcaption figure font footer form frame frameset h1 h2
    h3 h4 h5 h6 head header hgroup hr html i iframe img input ins kbd label legend li link main map
    mark menu meta meter nav noframes noscript object ol optgroup option output p param picture pre
    progress q rp rt ruby s samp script search section select small source span strike strong style
    sub summary sup svg table tbody td template textarea tfoot th thead time title tr track tt u ul
    var video wbr
"""

_TAGS: Final = _LISTED.split()

_PASSING: Final = (
    "Frame was detached",
    "Frame has been detached",
    "Frame with the given frameId is not found",
    "Execution context was destroyed",
    "Cannot find context with specified id",
)
"""Playwright's errors about a page that is being left for another."""

_TRIES: Final = 5

_sessions: WeakKeyDictionary[Page, CDPSession] = WeakKeyDictionary()


def tree_of(page: Page) -> str:
    """The current tree of a page; of a page that is being left, the tree of the next."""
    return when_settled(page, lambda: _tree(page))


def when_settled(page: Page, read: Callable[[], str]) -> str:
    """What is read of a page; once more where it was just being left for another."""
    for left in reversed(range(_TRIES)):
        try:
            return read()
        except Error as error:
            if not left or not any(text in error.message for text in _PASSING):
                raise
            page.wait_for_load_state("domcontentloaded")
    raise AssertionError("unreachable")


def _tree(page: Page) -> str:
    _mark(page.main_frame, "")
    try:
        nodes: Mapping[str, Any] = extract_merged_axtree(_Kept(page))
    finally:
        for frame in page.frames:
            if _is_open_to_scripts(frame):
                frame.evaluate(_UNMARK)
    text: str = flatten_axtree_to_str(
        nodes, ignored_roles=IGNORED_ROLES, ignored_properties=IGNORED_PROPERTIES
    )
    return text


def _mark(frame: Frame, own_id: str) -> None:
    frame.evaluate(_MARK, [own_id, BROWSERGYM_ID_ATTRIBUTE, _TAGS])
    for child in frame.child_frames:
        if not child.is_detached() and _is_open_to_scripts(child):
            child_id = child.frame_element().get_attribute(BROWSERGYM_ID_ATTRIBUTE)
            if child_id is not None:
                _mark(child, child_id)


def _is_open_to_scripts(frame: Frame) -> bool:
    """Whether a frame may be read by scripts: some are sandboxed, some show no document."""
    if frame.parent_frame is None:
        return True
    # In a frame whose load was rejected a script would wait for ever.
    if not frame.url.startswith(("http://", "https://", "about:")):
        return False
    element = frame.frame_element()
    sandbox = element.get_attribute("sandbox")
    allowed = sandbox is None or "allow-scripts" in sandbox.split()
    return allowed and element.content_frame() == frame


class _Kept:
    """A page as BrowserGym's reader wants it, with one DevTools session for all its looks."""

    def __init__(self, page: Page) -> None:
        self.context = self
        self._session = _sessions.get(page)
        if self._session is None:
            _sessions[page] = self._session = page.context.new_cdp_session(page)

    def new_cdp_session(self, page: object) -> _Kept:
        return self

    def send(self, method: str, params: dict[str, Any] | None = None) -> Any:
        assert self._session is not None
        return self._session.send(method, params)

    def detach(self) -> None:
        """Keep it."""
