"""A browser whose pages are in a Chromium, in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym_env.errors import EnvironmentFault
from agentgym_servers.web.actions.calls import ENDINGS, Action, write_call
from agentgym_servers.web.chromium.messages import (
    ActRequest,
    ClosePage,
    End,
    Evaluate,
    Failed,
    Opened,
    OpenPage,
    Question,
    ReadPage,
    Screenshot,
    Seen,
    Start,
    StartTask,
    Value,
)
from agentgym_servers.web.chromium.workers import Worker, worker_for
from agentgym_servers.web.evaluation.page_access import JsonValue, ScriptError
from agentgym_servers.web.layouts import cut_tree
from agentgym_servers.web.sites.site_map import bounds_error, typed_error

_MAX_WAIT_MS = 5_000.0


class ChromiumBrowser:
    """The browser of one episode. Each call raises `EnvironmentFault` where the browser is lost."""

    def __init__(self, start: Start, is_known: Callable[[str], bool]) -> None:
        """`is_known` decides whether an origin, such as `http://shop.test`, may be opened."""
        self.name = start.episode
        """Of the episode."""
        self._is_known = is_known
        self._ends_it = not isinstance(start, StartTask)
        self._worker: Worker | None = worker_for(start.episode)
        try:
            self.seen = self._seen(start)
        except BaseException:
            self.close()
            raise

    @property
    def tabs(self) -> tuple[tuple[str, str], ...]:
        """URL and title of each tab."""
        return self.seen.tabs

    @property
    def active(self) -> int:
        """Which tab is shown."""
        return self.seen.active

    def tree(self) -> str:
        """The shown page's tree; a tree that is too long is cut at a line, with a note."""
        return cut_tree(self.seen.tree)

    def act(self, action: Action) -> str:
        """Do an action; the error as BrowserGym words it, empty if there is none."""
        if action.kind in ENDINGS and self._ends_it:
            return ""
        if action.kind == "goto":
            url = action.text(0)
            error = typed_error(url) or bounds_error(url, self._is_known)
            if error:
                return error
        if action.kind == "noop" and action.args:
            action = Action("noop", (min(float(action.text(0)), _MAX_WAIT_MS),))
        self.seen = self._seen(ActRequest(self.name, write_call(action)))
        return self.seen.error

    def screenshot(self) -> bytes:
        """The shown page as a PNG."""
        return bytes(self._value(Screenshot(self.name)).value)

    def current(self) -> ChromiumPage:
        """The page the agent is on."""
        return ChromiumPage(self, 0, self.tabs[self.active][0])

    def open(self, url: str) -> ChromiumPage:
        """A page as the agent's session sees it now, beside its tabs."""
        error = bounds_error(url, self._is_known)
        if error:
            raise EnvironmentFault(f"{url} cannot be judged: {error}", "environment_error")
        answer = self.ask(OpenPage(self.name, url))
        if not isinstance(answer, Opened):
            raise EnvironmentFault(f"{url} did not open: {answer.message}", "environment_error")
        return ChromiumPage(self, answer.page, answer.url)

    def close(self) -> None:
        """End the episode; its browser stays for the next."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end(End(self.name))

    def ask(self, question: Question) -> Any:
        """The browser's answer."""
        if self._worker is None:
            raise EnvironmentFault("the browser is closed; reset it", "environment_error")
        return self._worker.ask(question)

    def _seen(self, question: Question) -> Seen:
        answer = self.ask(question)
        if isinstance(answer, Seen):
            return answer
        raise EnvironmentFault(f"the browser failed: {answer.message}", "environment_error")

    def _value(self, question: Question) -> Value:
        answer = self.ask(question)
        if isinstance(answer, Value):
            return answer
        raise EnvironmentFault(f"the page failed: {answer.message}", "environment_error")


class ChromiumPage:
    """One page, for evaluators."""

    def __init__(self, browser: ChromiumBrowser, number: int, url: str) -> None:
        self._browser = browser
        self._number = number
        self.url = url

    def content(self) -> str:
        """Its HTML."""
        return str(self._answer(ReadPage(self._browser.name, self._number)).value)

    def evaluate(self, expression: str) -> JsonValue:
        """The value of a JavaScript expression; raises `ScriptError`."""
        question = Evaluate(self._browser.name, self._number, expression)
        found: JsonValue = self._answer(question).value
        return found

    def close(self) -> None:
        """Close it; the agent's own page stays open."""
        if self._number:
            self._answer(ClosePage(self._browser.name, self._number))

    def _answer(self, question: Question) -> Value:
        answer = self._browser.ask(question)
        if isinstance(answer, Failed) and answer.kind == "script":
            raise ScriptError(answer.message)
        if isinstance(answer, Value):
            return answer
        raise EnvironmentFault(f"a page could not be read: {answer.message}", "environment_error")
