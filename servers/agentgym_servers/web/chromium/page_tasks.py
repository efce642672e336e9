"""BrowserGym's tasks of MiniWoB++, with two things put right."""

from __future__ import annotations

from typing import Any, Final

import browsergym.miniwob
from browsergym.miniwob.base import AbstractMiniwobTask
from playwright.sync_api import Page


def _put_right(task: type[AbstractMiniwobTask]) -> type[AbstractMiniwobTask]:
    class PutRight(task):  # type: ignore[misc]
        def setup(self, page: Page) -> Any:
            begun = super().setup(page)
            # It zooms its screenshots and takes mouse positions for theirs; here they are the
            # page's own.
            page._bgym_scale_factor = 1.0
            return begun

        def validate(self, page: Page, chat_messages: list[dict[str, Any]]) -> Any:
            # It gives 0 where the address has changed, and the results of search-engine are links
            # to `#`: the page is the same, and its word counts.
            address, _, _ = page.url.partition("#")
            if address == self._address:
                self.url = page.url
            return super().validate(page, chat_messages)

        @property
        def _address(self) -> str:
            return str(self.url).partition("#")[0]

    return PutRight


PAGE_TASKS: Final = {
    task.subdomain: _put_right(task) for task in browsergym.miniwob.ALL_MINIWOB_TASKS
}
"""A task's name -> its class."""
