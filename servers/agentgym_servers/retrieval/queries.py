"""What of a query is searched for: a policy may write anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentgym_env.errors import BadRequest

MAX_QUERY_CHARS: Final = 10_000


def checked_queries(queries: Sequence[str], k: int) -> list[str]:
    """Each query, cut to `MAX_QUERY_CHARS` and fit to be encoded; raises where `k` is below 1."""
    if k < 1:
        raise BadRequest(f"a search is for at least 1 passage, got k {k}")
    return [q[:MAX_QUERY_CHARS].encode(errors="replace").decode() for q in queries]
