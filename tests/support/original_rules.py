"""WebArena on our own sites with its original rules, which attackers exploit."""

from __future__ import annotations

import dataclasses

from agentgym_servers.worlds.webarena import WebArena


class OriginalRules(WebArena):
    """Judged as on the real sites."""

    def _reset(self, task: str) -> str:
        first = super()._reset(task)
        self._opened = dataclasses.replace(self._open, page_exists=None)
        return first
