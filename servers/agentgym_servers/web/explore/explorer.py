"""One person's visit to the embedded sites: logged in, on a task, and judged when they ask.

It knows nothing about HTTP; the addresses under which the sites are served are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from agentgym_servers.web.evaluation.evaluators import Judged, evaluate
from agentgym_servers.web.evaluation.page_views import HtmlPage, TextPages, Written
from agentgym_servers.web.front.session_site import Links
from agentgym_servers.web.sites.embedded import Embedded, page_exists, starting_cookies
from agentgym_servers.web.sites.rest import SiteRest
from agentgym_servers.web.sites.site import Request, Response, SiteSession
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.tasks import WebTask
from agentgym_servers.web.text_browser.browser import TextBrowser


class LoggedInSession(SiteSession):
    """Sites that keep their visitor's cookies themselves, so any client is logged in at once.

    A browser withholds `SameSite=Lax` cookies from a page in a frame, and does not tell ports
    apart. What is sent with the sites' served addresses is stored with their own ones.
    """

    def __init__(self, world: Embedded, own: Callable[[str], str]) -> None:
        """`own` puts the sites' own addresses in the place of those under which they are served."""
        super().__init__(world.sites, world.blobs)
        self._own = own
        self.restart()

    def restart(self) -> None:
        """Forget everything that was changed."""
        self.close()
        self._cookies = {host: dict(cookies) for host, cookies in starting_cookies().items()}

    def answer(self, request: Request) -> Response:
        """The answer to a request with the visitor's cookies, in place of its own ones."""
        cookies = self._cookies.setdefault(request.host, {})
        response = super().answer(
            msgspec.structs.replace(
                request,
                cookies=dict(cookies),
                query=self._own_fields(request.query),
                form=self._own_fields(request.form),
            )
        )
        for name, value in response.cookies.items():
            if value is None:
                cookies.pop(name, None)
            else:
                cookies[name] = value
        return msgspec.structs.replace(response, cookies={})

    def _own_fields(self, fields: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        return {name: [self._own(value) for value in values] for name, values in fields.items()}


class ShownPage(msgspec.Struct, frozen=True):
    """The page in the browser when the person asks for a verdict."""

    url: str
    html: str
    written: list[Written]
    """Text and tick of its controls, as `HtmlPage` takes them."""


class Explorer:
    """The sites, and a task on them. Not for several threads at once."""

    def __init__(self, world: Embedded, task_id: str, roots: Mapping[str, str]) -> None:
        """`roots` gives, for hosts such as `shop.test`, where they are served."""
        self.world = world
        self.links = Links(roots)
        self._hosts = {root: host for host, root in roots.items()}
        served = "|".join(map(re.escape, roots.values()))
        self._served = re.compile(f"(?:{served})(?!\\d)")
        self.session = LoggedInSession(world, self._own)
        self.start(task_id)

    def start(self, task_id: str) -> None:
        """Begin a task with all sites as they were first; raises `UnknownTask`."""
        self.world.task_set.split_of(task_id)
        self.task_id = task_id
        self.session.restart()

    @property
    def task(self) -> WebTask:
        """The current task, with the sites' own addresses."""
        return self.world.tasks[self.task_id]

    @property
    def start_url(self) -> str:
        """Where the task begins, as it is served."""
        return self.links.shown(embedded_sites().resolve(self.task.start_urls[0]))

    def check(self, page: ShownPage, answer: str) -> Judged:
        """The verdict of the task's evaluator on an answer and on what the person left behind."""
        shown = HtmlPage(self._own(page.html), self._own(page.url), page.written)
        return evaluate(
            self.task,
            self._own(answer),
            embedded_sites(),
            _Pages(shown, TextBrowser(self.session)),
            rest=SiteRest(self.session),
            page_exists=partial(page_exists, self.session),
        )

    def _own(self, text: str) -> str:
        return self._served.sub(lambda found: f"http://{self._hosts[found.group()]}", text)


class _Pages(TextPages):
    """The page in the person's browser, and any other as the sites give it."""

    def __init__(self, shown: HtmlPage, browser: TextBrowser) -> None:
        super().__init__(browser)
        self._shown = shown

    def current(self) -> HtmlPage:
        return self._shown
