"""What an agent does with a browser; one reads pages itself, one has a Chromium."""

from __future__ import annotations

from typing import Final, Protocol

from agentgym_servers.web.actions.parse import Action

MAX_TREE_CHARS: Final = 40_000


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
        """The shown page's tree; what is too long is cut at a line, and says so."""
        ...

    def act(self, action: Action) -> str:
        """Do an action; the error as BrowserGym words it, empty if there is none."""
        ...


def cut_tree(tree: str, most: int = MAX_TREE_CHARS) -> str:
    """A tree's first lines, at most so many characters of them, and how much is left out."""
    if len(tree) <= most:
        return tree
    end = max(tree.rfind("\n", 0, most), 0)
    return f"{tree[:end]}\n... {len(tree) - end} more characters are left out"
