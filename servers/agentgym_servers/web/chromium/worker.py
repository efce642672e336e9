"""The process that holds a browser: answers one question after another on its standard input.

Run by `workers.Worker` as `python -m agentgym_servers.web.chromium.worker FOLDER` in an environment
that has BrowserGym; what the browser writes is in the folder, and goes with the process.
Playwright's objects belong to one thread, so there is one; a page that never returns holds it, and
whoever asked ends the process.
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
from importlib.metadata import version
from typing import IO, Final

import psutil
from playwright.sync_api import Error

from agentgym_servers.web.chromium.episode import Episode
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.family import kill_all
from agentgym_servers.web.chromium.messages import (
    Act,
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
from agentgym_servers.web.chromium.quick_stack import hurry_playwright
from agentgym_servers.web.chromium.shared_browser import SharedBrowser

_GRACE_S: Final = 5.0
_GONE: Final = ("has been closed", "Target closed", "Browser closed", "Connection closed")

logger = logging.getLogger(__name__)


class Desk:
    """The episodes of this process."""

    def __init__(self, browser: SharedBrowser) -> None:
        self._browser = browser
        self._episodes: dict[str, Episode] = {}

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
            self._episodes[name] = episode = Episode(question)
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


def _ask(episode: Episode, question: Question) -> Seen | Opened | Value:
    match question:
        case Act(calls=calls):
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
    """Answer until whoever asks is gone."""
    # Ctrl-C is for whoever asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    hurry_playwright()
    os.environ["TMPDIR"] = folder = sys.argv[1]
    asked: queue.Queue[Question | None] = queue.Queue()
    threading.Thread(target=_listen, args=(stdin, asked, folder), daemon=True).start()
    try:
        browser = SharedBrowser(find_chromium())
        desk = Desk(browser)
        send(stdout, Ready(version("agentgym-sdk"), browser.version))
        while (question := asked.get()) is not None:
            send(stdout, desk.answer(question))
        desk.close()
    finally:
        _clear(folder)


def _listen(stream: IO[bytes], asked: queue.Queue[Question | None], folder: str) -> None:
    """Read questions; at the end of them see to it that this process ends, with its browser."""
    try:
        while True:
            asked.put(receive(stream, Question))
    except EOFError:
        asked.put(None)
    time.sleep(_GRACE_S)
    # A page that never returns holds the main thread; nobody is left to wait for it. Without a
    # browser it is free to end, unless something else holds it.
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
