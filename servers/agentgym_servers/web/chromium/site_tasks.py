"""WebArena's kind of task on sites of our own, as BrowserGym tasks: pages, and WebArena's verdict.

```python
names = register_site_tasks(split="test", n=20)
env = gymnasium.make(f"browsergym/{names[0]}")
```

Run where BrowserGym is installed. Each episode has its own sites, at its own addresses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import gymnasium
from browsergym.core.registration import register_task
from browsergym.core.task import AbstractBrowserTask
from playwright.sync_api import Error, Page

from agentgym_servers.web.evaluation.evaluators import evaluate
from agentgym_servers.web.evaluation.page_access import JsonValue, ScriptError
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.origins import Origins, open_origins
from agentgym_servers.web.sites.embedded import embedded, page_exists, starting_cookies
from agentgym_servers.web.sites.rest import SiteRest
from agentgym_servers.web.sites.site import HOSTS, SiteSession, host_of
from agentgym_servers.web.sites.site_map import SiteMap, embedded_sites

_PREFIX: Final = "agentgym.webarena"
_VIEWPORT: Final = {"width": 1280, "height": 720}
_TIMEOUT_MS: Final = 10_000
_NOT_DONE: Final = "N/A"


class SiteTask(AbstractBrowserTask):  # type: ignore[misc]
    """One task on embedded sites, such as `shopping/7101/0`; the data are drawn by `data_seed`.

    It ends, and is judged, when the agent sends the user a message or reports it infeasible.
    """

    nondeterministic = False

    def __init__(self, seed: int, task: str, data_seed: int = 0) -> None:
        super().__init__(seed)
        self.viewport, self.slow_mo, self.timeout = _VIEWPORT, 0, _TIMEOUT_MS
        self._world = embedded(data_seed)
        self._task = self._world.tasks[task]
        self._session: SiteSession | None = None
        self._origins: Origins | None = None

    @classmethod
    def get_task_id(cls) -> str:
        """BrowserGym's name of the kind of task."""
        return _PREFIX

    @property
    def sites(self) -> SiteMap:
        """The addresses of the episode's sites."""
        assert self._origins is not None
        return self._origins.sites

    def setup(self, page: Page) -> tuple[str, dict[str, Any]]:
        """Serve the sites, log in, and open the task's pages."""
        self._session = self._world.session()
        self._origins = open_origins(_front(), self._session, rest=True)
        bases = {host_of(site): self.sites.bases[site] for site in HOSTS}
        for host, cookies in starting_cookies().items():
            page.context.add_cookies(
                [{"name": name, "value": v, "url": bases[host]} for name, v in cookies.items()]
            )
        task = self.sites.resolve_task(self._task)
        for number, url in enumerate(task.start_urls):
            (page.context.new_page() if number else page).goto(url)
        return task.intent, {}

    def validate(
        self, page: Page, chat_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Judge the agent's last message, and what it left behind."""
        # BrowserGym's assistant greets the user first.
        messages = [m for m in chat_messages[1:] if m["role"] in ("assistant", "infeasible")]
        if not messages:
            return 0.0, False, "", {}
        answer = messages[-1]["message"] if messages[-1]["role"] == "assistant" else _NOT_DONE
        assert self._session is not None
        judged = evaluate(
            self._task,
            answer,
            self.sites,
            _Pages(page),
            rest=SiteRest(self._session),
            page_exists=self._page_exists,
        )
        return judged.score, True, "", {}

    def _page_exists(self, url: str) -> bool:
        assert self._session is not None
        return page_exists(self._session, embedded_sites().resolve(self.sites.unresolve(url)))

    def teardown(self) -> None:
        """Close the sites."""
        origins, self._origins = self._origins, None
        session, self._session = self._session, None
        if origins is not None:
            origins.close()
        if session is not None:
            session.close()


def register_site_tasks(split: str = "test", n: int | None = None, data_seed: int = 0) -> list[str]:
    """Register the first `n` tasks of a split with BrowserGym; their names, in the split's order.

    A name is the task's id with points, such as `agentgym.webarena.shopping.7101.0`.
    """
    names = []
    for task in embedded(data_seed).task_set.split(split)[:n]:
        name = f"{_PREFIX}.{re.sub('[^A-Za-z0-9_]', '.', task)}"
        if data_seed:
            name += f".data{data_seed}"
        if f"browsergym/{name}" not in gymnasium.registry:
            register_task(
                name,
                SiteTask,
                task_kwargs={"task": task, "data_seed": data_seed},
                nondeterministic=False,
            )
        names.append(name)
    return names


@cache
def _front() -> Front:
    return Front()


class _Pages:
    """The agent's pages as the evaluators ask for them."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def current(self) -> _Open:
        return _Open(self._page)

    def open(self, url: str) -> _Open:
        other = self._page.context.new_page()
        other.goto(url)
        return _Open(other)


class _Open:
    """One page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def url(self) -> str:
        return str(self._page.url)

    def content(self) -> str:
        return str(self._page.content())

    def evaluate(self, expression: str) -> JsonValue:
        try:
            found: JsonValue = self._page.evaluate(f"() => {expression}")
        except Error as error:
            raise ScriptError(error.message) from error
        return found

    def close(self) -> None:
        self._page.close()
