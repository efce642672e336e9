"""One episode in a browser: BrowserGym's environment, in its own context."""

from __future__ import annotations

import time
from typing import Any, Final

import browsergym.miniwob
import playwright.sync_api
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.env import BrowserEnv
from browsergym.core.task import AbstractBrowserTask
from browsergym.miniwob.base import AbstractMiniwobTask
from playwright.sync_api import BrowserContext, Error, Frame, Page, Request

from agentgym_servers.web.chromium.messages import LogIn, Seen, Start, StartMiniWoB, StartSites
from agentgym_servers.web.chromium.task_list import registered_task
from agentgym_servers.web.chromium.tree import tree_of, when_settled

_ACTION_TIMEOUT_MS: Final = 10_000

_TAB_TIMEOUT_S: Final = 3.0

_NAVIGATION_TIMEOUT_S: Final = 3.0

_NEXT_TASK: Final = "() => new Promise(done => setTimeout(done, 0))"
"""Resolves after the tasks that a page has scheduled by now."""

_LOOKS: Final = 3

_VIEWPORT: Final = {"width": 1280, "height": 720}

_SCHEMES: Final = ("http://", "https://", "about:", "chrome-error:")

_NOT_OPENED: Final = "Error: this address is out of bounds: {}"

_CRASHED: Final = "Error: the page crashed, and was opened again."


def _fixed(task: type[AbstractMiniwobTask]) -> type[AbstractMiniwobTask]:
    class Fixed(task):  # type: ignore[misc]
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

    return Fixed


PAGE_TASKS: Final = {task.subdomain: _fixed(task) for task in browsergym.miniwob.ALL_MINIWOB_TASKS}
"""MiniWoB++'s name of a task -> its class, with two things put right."""


def _without_uploads(subsets: list[str]) -> Any:
    actions = HighLevelActionSet(subsets, multiaction=True, strict=True)
    for name in [name for name in actions.action_set if "upload" in name]:
        del actions.action_set[name]
    return actions.to_python_code


_ON_SITES: Final = _without_uploads(["webarena"])

_ON_MINIWOB: Final = _without_uploads(["bid", "coord"])

_ON_ANY: Final = _without_uploads(["webarena", "bid", "coord"])


class BrowserEpisode:
    """A context with its tabs, and pages beside them."""

    def __init__(self, start: Start) -> None:
        task: dict[str, Any]
        if isinstance(start, StartSites):
            task = {"task_entrypoint": _Sites, "task_kwargs": {"start": start}}
            task["action_mapping"] = _ON_SITES
        elif isinstance(start, StartMiniWoB):
            task = {"task_entrypoint": PAGE_TASKS[start.task]}
            task |= {"task_kwargs": {"base_url": start.base}, "action_mapping": _ON_MINIWOB}
        else:
            task = {"task_entrypoint": registered_task(start.env_id, start.module)}
            task |= {"task_kwargs": dict(start.task_kwargs), "action_mapping": _ON_ANY}
        self._env = _Unseen(
            **task,
            pre_observation_delay=0,
            pw_context_kwargs={
                "proxy": {"server": start.proxy},
                "accept_downloads": False,
                "service_workers": "block",
            },
        )
        self._beside: dict[int, Page] = {}
        self._opened = 0
        self._crashed: list[Page] = []
        self._leaving: set[Page] = set()
        """Tabs whose next page was requested and is not there yet."""
        self._looking = False
        self._reward, self._done = 0.0, False
        seed = None if isinstance(start, StartSites) else start.seed
        try:
            self._env.reset(seed=seed)
            self._context = self._env.context
            self._context.route(lambda url: not url.startswith(_SCHEMES), _abort)
            session = self._context.new_cdp_session(self._env.page)
            self._own = session.send("Target.getTargetInfo")["targetInfo"]["browserContextId"]
            session.detach()
            self._devtools = self._context.browser.new_browser_cdp_session()
            self._context.on("page", self._watch)
            for page in self._context.pages:
                self._watch(page)
        except BaseException:
            self._env.close()
            raise
        texts = [part["text"] for part in self._env.goal_object if part["type"] == "text"]
        self.goal = "\n".join(texts)

    def act(self, calls: str) -> str:
        """Do BrowserGym's calls; the error as it words it, empty if there is none."""
        _, self._reward, self._done, _, _ = self._env.step(calls)
        self._await_tabs()
        self._await_navigation()
        return str(self._env.last_action_error).partition("\nCall log:")[0]

    def look(self, error: str = "") -> Seen:
        """What there is to see; once more where a page crashed under the look."""
        for left in reversed(range(_LOOKS)):
            error = self._mend() or error
            self._looking = True
            try:
                return self._look(error)
            except Error as broken:
                if not left or not (self._crashed or "crashed" in broken.message):
                    raise
            finally:
                self._looking = False
        raise AssertionError("unreachable")

    def _look(self, error: str) -> Seen:
        tabs = [page for page in self._context.pages if page not in self._beside.values()]
        titles = [when_settled(page, page.title) for page in tabs]
        tree = tree_of(self._env.page)
        return Seen(
            # Addresses come last: a page that was still loading may have a new one by now.
            tabs=tuple(zip((page.url for page in tabs), titles, strict=True)),
            active=tabs.index(self._env.page),
            tree=tree,
            error=error,
            goal=self.goal,
            reward=float(self._reward),
            done=bool(self._done),
        )

    def page(self, number: int) -> Page:
        """The agent's own page for 0, else one that was opened beside it."""
        page: Page = self._beside[number] if number else self._env.page
        return page

    def open(self, url: str) -> int:
        """Open a page beside the agent's tabs and give its number."""
        # The environment takes a page that shows itself for the agent's.
        mine, history = self._env.page, dict(self._env.page_history)
        page = self._context.new_page()
        try:
            page.goto(url)
        finally:
            self._env.page, self._env.page_history = mine, history
            self._opened += 1
            self._beside[self._opened] = page
        return self._opened

    def close_page(self, number: int) -> None:
        """Close a page that was opened beside the tabs."""
        self._beside.pop(number).close()

    def close(self) -> None:
        """End the context, with all its pages."""
        try:
            self._devtools.detach()
        finally:
            self._env.close()

    def _await_tabs(self) -> None:
        """Wait for tabs that the last action opened: Playwright reports them a little later."""
        opening = self._tabs_there() - len(self._context.pages)
        if opening <= 0:
            return
        began = time.monotonic()
        while self._tabs_there() > len(self._context.pages):
            if time.monotonic() - began > _TAB_TIMEOUT_S:
                return
            self._env.page.wait_for_timeout(10)
        self._env._wait_dom_loaded()
        self._context.cookies()  # lets BrowserGym hear which tab shows
        self._env._active_page_check()

    def _await_navigation(self) -> None:
        """Wait until the active tab shows the page that the last action asked for, if any.

        A form that Enter submits is sent by a later task of the page, and Playwright hears of its
        request later still; without this the page before would be observed.
        """
        page = self._env.page
        if page in self._crashed:
            return
        self._looking = True
        try:
            page.evaluate(_NEXT_TASK)
            began = time.monotonic()
            while page in self._leaving and time.monotonic() - began < _NAVIGATION_TIMEOUT_S:
                page.wait_for_timeout(5)
        except Error:
            pass  # the page is being left or has crashed; `look` handles both
        finally:
            self._looking = False
            self._leaving.discard(page)

    def _tabs_there(self) -> int:
        """How many tabs of this episode the browser itself has."""
        targets = self._devtools.send("Target.getTargets")["targetInfos"]
        mine = [t for t in targets if t["type"] == "page" and t["browserContextId"] == self._own]
        return len(mine)

    def _watch(self, page: Page) -> None:
        page.on("crash", self._note_crash)
        page.on("request", self._note_request)
        page.on("requestfailed", self._note_end)
        page.on("framenavigated", self._note_navigation)

    def _note_request(self, request: Request) -> None:
        self._leaving |= _leaves(request)

    def _note_end(self, request: Request) -> None:
        self._leaving -= _leaves(request)

    def _note_navigation(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self._leaving.discard(frame.page)

    def _note_crash(self, page: Page) -> None:
        self._crashed.append(page)
        if self._looking:
            # Playwright would wait for ever for the answer.
            page.close()

    def _mend(self) -> str:
        """Make sure that the agent has a page; return what had to be done."""
        note = ""
        while self._crashed:
            page = self._crashed.pop()
            other = self._context.new_page()
            if page.url.startswith(("http://", "https://")):
                other.goto(page.url)
            if self._env.page == page:
                self._env.page = other
            page.close()
            note = _CRASHED
        for page in self._context.pages:
            if not page.url.startswith(_SCHEMES):
                note = _NOT_OPENED.format(page.url[:200])
                page.goto("about:blank")
        return note


def log_in(context: BrowserContext, how: LogIn) -> None:
    """Log in on a separate page; sites without accounts are skipped."""
    fill = {
        "shopping": _shopping,
        "shopping_admin": _shopping_admin,
        "reddit": _reddit,
        "gitlab": _gitlab,
    }.get(how.site)
    if fill is None:
        return
    page = context.new_page()
    try:
        fill(page, how)
        page.wait_for_load_state("domcontentloaded")
    finally:
        page.close()


def _leaves(request: Request) -> set[Page]:
    """The tab whose whole page a request replaces, if it does."""
    if not request.is_navigation_request():
        return set()
    try:
        frame = request.frame
    except Error:  # the first request of a tab that is just being opened
        return set()
    return {frame.page} if frame.parent_frame is None else set()


class _Sites(AbstractBrowserTask):  # type: ignore[misc]
    """Pages that are opened, and judged elsewhere."""

    def __init__(self, seed: int | None, start: StartSites) -> None:
        super().__init__(seed or 0)
        self.viewport, self.slow_mo, self.timeout = _VIEWPORT, 0, _ACTION_TIMEOUT_MS
        self._start = start

    def setup(self, page: Page) -> tuple[str, dict[str, Any]]:
        context = page.context
        context.add_cookies(
            [{"name": c.name, "value": c.value, "url": c.url} for c in self._start.cookies]
        )
        for how in self._start.log_ins:
            log_in(context, how)
        for number, url in enumerate(self._start.urls):
            (context.new_page() if number else page).goto(url)
        return "", {}

    def validate(
        self, page: Page, chat_messages: list[dict[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        return 0.0, False, "", {}

    def teardown(self) -> None:
        """Nothing is left but the context."""


class _Unseen(BrowserEnv):  # type: ignore[misc]
    """BrowserGym's environment without its observation: a text is read on request."""

    def _get_obs(self) -> dict[str, Any]:
        return {}


def _abort(route: playwright.sync_api.Route) -> None:
    route.abort("blockedbyclient")


def _shopping(page: Page, how: LogIn) -> None:
    page.goto(f"{how.base}/customer/account/login/")
    page.get_by_label("Email", exact=True).fill(how.account.username)
    page.get_by_label("Password", exact=True).fill(how.account.password)
    page.get_by_role("button", name="Sign In").click()


def _shopping_admin(page: Page, how: LogIn) -> None:
    page.goto(how.base)
    page.get_by_label("Username").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Sign in").click()


def _reddit(page: Page, how: LogIn) -> None:
    page.goto(how.base)
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Username").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Log in").click()


def _gitlab(page: Page, how: LogIn) -> None:
    page.goto(f"{how.base}/users/sign_in")
    page.get_by_label("Username or email").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Sign in").click()
