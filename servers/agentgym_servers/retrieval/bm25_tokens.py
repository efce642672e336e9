"""Cuts text into BM25's tokens as an index's settings say."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentgym_servers.retrieval.manifest import Bm25Settings


def splitter(settings: Bm25Settings) -> Callable[[str], list[str]]:
    """A function from text to its tokens, stop words included."""
    find = re.compile(settings.token_pattern).findall
    if settings.lowercase:
        return lambda text: find(text.lower())
    return find
