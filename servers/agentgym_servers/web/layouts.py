"""What an agent does with a browser, and reads each turn: BrowserGym's layout or AgentGym's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.sites.site import HOSTS

MAX_TREE_CHARS: Final = 40_000

PUBLIC_ADDRESSES: Final = {
    "shopping": "http://onestopmarket.com",
    "shopping_admin": "http://luma.com/admin",
    "reddit": "http://reddit.com",
    "gitlab": "http://gitlab.com",
    "wikipedia": "http://wikipedia.org",
    "map": "http://openstreetmap.org",
    "homepage": "http://homepage.com",
}
"""WebArena's name of a site -> the address under which AgentGym shows it."""

_PUBLIC_HOSTS: Final = frozenset(
    address.removeprefix("http://").partition("/")[0] for address in PUBLIC_ADDRESSES.values()
)


class Browser(Protocol):
    """The browser of one episode, open on the task's pages."""

    @property
    def tabs(self) -> tuple[tuple[str, str], ...]:
        """URL and title of each tab."""
        ...

    @property
    def active(self) -> int:
        """Which tab is shown."""
        ...

    def tree(self) -> str:
        """The shown page's tree; a tree that is too long is cut at a line, with a note."""
        ...

    def act(self, action: Action) -> str:
        """Do an action; the error as BrowserGym words it, empty if there is none."""
        ...


class View(msgspec.Struct, frozen=True):
    """What an observation contains of a browser."""

    objective: str
    tabs: tuple[tuple[str, str], ...]
    """URL and title of each."""
    active: int
    tree: str
    last_action: str = ""
    error: str = ""
    """Of the last action."""
    bases: Mapping[str, str] = msgspec.field(default_factory=lambda: HOSTS)
    """WebArena's name of a site -> its address."""


def browsergym_text(view: View) -> str:
    """Goal, tabs, tree and the last action with its error, under headings."""
    parts = [f"# Goal\n{view.objective}", "# Currently open tabs"]
    for at, (url, title) in enumerate(view.tabs):
        mark = " (active tab)" if at == view.active else ""
        parts.append(f"Tab {at}{mark}:\n    Title: {title}\n    URL: {url}")
    parts.append(f"# Current page accessibility tree\n{view.tree}")
    if view.last_action:
        parts.append(f"# Last action\n{view.last_action}")
    if view.error:
        parts.append(f"# Error message from last action\n{view.error}")
    return "\n\n".join(parts)


def agentgym_text(view: View) -> str:
    """AgentGym's observation, with the sites under their public addresses.

    Deviation: the tree's lines are BrowserGym's, and an error precedes them.
    """
    tabs = " | ".join(
        f"Tab {at}{' (current)' if at == view.active else ''}: {title}"
        for at, (_, title) in enumerate(view.tabs)
    )
    error = f"{view.error}\n\n" if view.error else ""
    url = public_url(view.tabs[view.active][0], view.bases)
    return (
        f"OBSERVATION:\n{tabs}\n\n{error}{view.tree}\nURL: {url}\nOBJECTIVE: {view.objective}\n"
        f"PREVIOUS ACTION: {view.last_action or 'None'}"
    )


def public_url(url: str, bases: Mapping[str, str] = HOSTS) -> str:
    """The address of one of the sites as AgentGym shows it; any other as it is."""
    return _moved(url, bases, PUBLIC_ADDRESSES)


def own_url(url: str, bases: Mapping[str, str] = HOSTS) -> str:
    """An address that AgentGym shows as the address of the site; any other as it is."""
    if "://" not in url and url.partition("/")[0] in _PUBLIC_HOSTS:
        url = f"http://{url}"
    return _moved(url.replace("https://", "http://", 1), PUBLIC_ADDRESSES, bases, url)


def own_action(action: Action, bases: Mapping[str, str] = HOSTS) -> Action:
    """An action of an agent that reads AgentGym's layout; `goto` leads to the site itself."""
    return Action("goto", (own_url(action.text(0), bases),)) if action.kind == "goto" else action


def _moved(
    url: str, before: Mapping[str, str], after: Mapping[str, str], otherwise: str | None = None
) -> str:
    # The longest first: one site's address may contain another's.
    for site, address in sorted(before.items(), key=lambda item: -len(item[1])):
        rest = url.removeprefix(address)
        if rest != url and (not rest or rest[0] in "/?#"):
            return after[site] + rest
    return url if otherwise is None else otherwise


def cut_tree(tree: str, most: int = MAX_TREE_CHARS) -> str:
    """A tree's first lines, at most so many characters of them, and how much is left out."""
    if len(tree) <= most:
        return tree
    end = max(tree.rfind("\n", 0, most), 0)
    return f"{tree[:end]}\n... {len(tree) - end} more characters are left out"
