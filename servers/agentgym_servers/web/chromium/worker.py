"""The process of a browser: answers one question after another from its standard input.

Run by `workers.Worker` as `python -m agentgym_servers.web.chromium.worker FOLDER` in an environment
that has BrowserGym; what the browser writes is in the folder, and goes with the process.
Playwright's objects belong to one thread, so there is one; a page that never returns blocks
it, and the caller ends the process.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import IO, Any, Final

import browsergym.core
import browsergym.core.env
import psutil
from playwright.sync_api import Browser, BrowserContext, Error, Playwright, sync_playwright

from agentgym_servers.web.chromium.episode import BrowserEpisode
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.family import kill_all
from agentgym_servers.web.chromium.messages import (
    ActRequest,
    Answer,
    ClosePage,
    End,
    Evaluate,
    Failed,
    Opened,
    OpenPage,
    Question,
    ReadPage,
    Ready,
    Screenshot,
    Seen,
    Start,
    Value,
    receive,
    send,
)
from agentgym_servers.web.chromium.quick_stack import speed_up_playwright

RECYCLE_AFTER: Final = 200
"""Contexts after which an idle browser is replaced: its memory grows slowly."""

_SWITCHES: Final = (
    # Everything goes through a proxy on 127.0.0.1: no name may be looked up beside it, and no
    # packet sent beside it.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=OverlayScrollbars,ExtendedOverlayScrollbars,DnsOverHttps,Translate",
    "--dns-prefetch-disable",
)


class SharedBrowser:
    """Starts Chromium when it is needed, and again when it died."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._playwright = sync_playwright().start()
        self._browser: Browser | None = None
        self._contexts = 0
        # BrowserGym looks both names up when an environment is reset.
        browsergym.core._set_global_playwright(_Facade(self._playwright, self))
        browsergym.core.env.Chat = _Chat

    @property
    def version(self) -> str:
        """Of the browser."""
        return str(self._running().version)

    def new_context(self, **options: Any) -> BrowserContext:
        """A context in the running browser."""
        if self._contexts >= RECYCLE_AFTER and not self._running().contexts:
            self.close()
        context = self._running().new_context(**options)
        self._contexts += 1
        return context

    def close(self) -> None:
        """End the browser; the next context starts another."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.close()

    def stop(self) -> None:
        """End the browser and what drives it."""
        self.close()
        self._playwright.stop()

    def _running(self) -> Browser:
        if self._browser is None or not self._browser.is_connected():
            self._contexts = 0
            self._browser = self._playwright.chromium.launch(
                executable_path=self._executable,
                args=list(_SWITCHES),
                ignore_default_args=["--hide-scrollbars"],
            )
        return self._browser


class _Facade:
    """Playwright as BrowserGym's environment uses it, where a browser is the shared one."""

    def __init__(self, playwright: Playwright, shared: SharedBrowser) -> None:
        self.selectors = playwright.selectors
        self.chromium = self
        self._shared = shared

    def launch(self, **options: Any) -> _Facade:
        return self

    def new_context(self, **options: Any) -> BrowserContext:
        return self._shared.new_context(**options)

    def close(self) -> None:
        """Leave it to the others."""


class _Chat:
    """BrowserGym's chat without a second browser."""

    def __init__(self, **options: Any) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.recording_start_time = None

    def add_message(self, role: str, msg: str) -> None:
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def wait_for_user_message(self) -> None:
        raise Error("nobody answers in this chat")

    def close(self) -> None:
        """There is nothing to close."""


_GRACE_S: Final = 5.0

_GONE: Final = ("has been closed", "Target closed", "Browser closed", "Connection closed")

logger = logging.getLogger(__name__)


class Desk:
    """The episodes of this process."""

    def __init__(self, browser: SharedBrowser) -> None:
        self._browser = browser
        self._episodes: dict[str, BrowserEpisode] = {}

    def answer(self, question: Question) -> Answer:
        """Answer one question; what goes wrong is an answer too."""
        try:
            return self._answer(question)
        except KeyError:
            return Failed("lost", "the browser has no such episode")
        except Error as error:
            if any(text in error.message for text in _GONE):
                self._drop(question.episode)
                return Failed("lost", f"the browser died: {_short(error.message)}")
            if isinstance(question, Evaluate):
                return Failed("script", _short(error.message))
            return Failed("browser", _short(error.message))
        except Exception as error:
            logger.exception("%s failed", type(question).__name__)
            return Failed("fault", _short(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """End all episodes and the browser."""
        for name in list(self._episodes):
            self._drop(name)
        self._browser.stop()

    def _answer(self, question: Question) -> Answer:
        name = question.episode
        if isinstance(question, Start):
            self._drop(name)
            self._episodes[name] = episode = BrowserEpisode(question)
            return episode.look()
        if isinstance(question, End):
            self._drop(name)
            return Value()
        return _ask(self._episodes[name], question)

    def _drop(self, name: str) -> None:
        episode = self._episodes.pop(name, None)
        if episode is not None:
            try:
                episode.close()
            except Error as error:
                logger.debug("episode %s was gone already: %s", name, error)


def _ask(episode: BrowserEpisode, question: Question) -> Seen | Opened | Value:
    match question:
        case ActRequest(calls=calls):
            return episode.look(episode.act(calls))
        case OpenPage(url=url):
            number = episode.open(url)
            return Opened(number, episode.page(number).url)
        case ClosePage(page=number):
            episode.close_page(number)
            return Value()
        case ReadPage(page=number):
            page = episode.page(number)
            return Value(page.content(), page.url)
        case Evaluate(page=number, expression=expression):
            page = episode.page(number)
            return Value(page.evaluate(f"() => {expression}"), page.url)
        case Screenshot():
            return Value(episode.page(0).screenshot())
    raise TypeError(f"{type(question).__name__} is no question about an episode")


def main() -> None:
    """Answer until the caller is gone."""
    # Ctrl-C is for the caller.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    speed_up_playwright()
    os.environ["TMPDIR"] = folder = sys.argv[1]
    questions: queue.Queue[Question | None] = queue.Queue()
    threading.Thread(target=_listen, args=(stdin, questions, folder), daemon=True).start()
    try:
        browser = SharedBrowser(find_chromium())
        desk = Desk(browser)
        send(stdout, Ready(version("agentgym-sdk"), browser.version))
        while (question := questions.get()) is not None:
            send(stdout, desk.answer(question))
        desk.close()
    finally:
        _clear(folder)


def _listen(stream: IO[bytes], questions: queue.Queue[Question | None], folder: str) -> None:
    """Read questions; at the end of them see to it that this process ends, with its browser."""
    try:
        while True:
            questions.put(receive(stream, Question))
    except EOFError:
        questions.put(None)
    time.sleep(_GRACE_S)
    # A page that never returns blocks the main thread; nothing waits for it. Without a
    # browser it is free to end, unless something else blocks it.
    try:
        _clear(folder)
        time.sleep(_GRACE_S)
    finally:
        os._exit(1)


def _clear(folder: str) -> None:
    """End the browser, and remove what it wrote."""
    kill_all(psutil.Process().children(recursive=True))
    shutil.rmtree(folder, ignore_errors=True)


def _short(text: str) -> str:
    return text.partition("\n")[0][:500]


if __name__ == "__main__":
    main()
