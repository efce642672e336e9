"""One Chromium for all of BrowserGym's environments in a process.

BrowserGym starts a browser for each environment's reset, and a second one to show a chat in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import browsergym.core
import browsergym.core.env
from playwright.sync_api import Browser, BrowserContext, Error, Playwright, sync_playwright

RECYCLE_AFTER: Final = 200
"""Contexts after which a browser is let go when nobody uses it: it grows slowly."""

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
    """BrowserGym's chat without a browser of its own."""

    def __init__(self, **options: Any) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.recording_start_time = None

    def add_message(self, role: str, msg: str) -> None:
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def wait_for_user_message(self) -> None:
        raise Error("nobody answers in this chat")

    def close(self) -> None:
        """There is nothing to close."""
