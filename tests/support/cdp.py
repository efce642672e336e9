"""A page in a real headless Chromium, driven over the Chrome DevTools Protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentgym_env.errors import MissingExtra
from agentgym_servers.web.chromium.executable import find_chromium
from waiting import LIMIT_S


def _missing() -> str:
    try:
        find_chromium()
    except MissingExtra as error:
        return str(error)
    return ""


needs_chromium = pytest.mark.skipif(bool(_missing()), reason=_missing() or "there is a browser")
_KEYS = {
    "Enter": (13, "\r"), "Space": (32, " "), "Escape": (27, ""), "Home": (36, ""), "End": (35, ""),
    "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""),
    "Tab": (9, ""),
}  # fmt: skip


class Page:
    """One tab; what its console complains of and what it asks for is kept."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return await self._browser.call(method, self._session, **params)

    def happened(self, method: str, params: dict[str, Any]) -> None:
        """Take note of an event."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            said = details.get("exception", {}).get("description", "")
            self.complaints.append(f"{details['text']} {said}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(" ".join(str(a.get("value")) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    async def goto(self, address: str) -> None:
        """Open an address and wait until its document is there."""
        await self.call("Page.navigate", url=address)
        here = f"location.href === new URL({json.dumps(address)}).href"
        await self.until(f"{here} && document.readyState === 'complete'")

    async def js(self, expression: str, **where: Any) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = await self.call(
            "Runtime.evaluate",
            expression=expression, awaitPromise=True, returnByValue=True, **where,
        )  # fmt: skip
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def in_frame(self, expression: str) -> Any:
        """The value of an expression in the document of the page's only frame."""
        tree = await self.call("Page.getFrameTree")
        (child,) = tree["frameTree"]["childFrames"]
        made = await self.call("Page.createIsolatedWorld", frameId=child["frame"]["id"])
        return await self.js(expression, contextId=made["executionContextId"])

    async def until(self, condition: str) -> Any:
        """Wait until an expression is true, and give it."""
        looking = (
            f"new Promise((found) => {{ const end = Date.now() + {LIMIT_S * 1000}; let v;"
            f"const look = () => {{ try {{ v = ({condition}) }} catch (e) {{ v = null }}"
            "if (v || Date.now() > end) found(typeof v === 'object' ? v !== null : v);"
            "else setTimeout(look, 10) }; look() })"
        )
        async with asyncio.timeout(LIMIT_S + 20):
            while True:
                try:
                    value = await self.js(looking)
                    break
                except AssertionError as error:
                    # The document was exchanged for the next while we looked.
                    if "context" not in str(error) and "navigated" not in str(error):
                        raise
        assert value, f"never true: {condition}\n{(await self.text())[:2000]}\n{self.complaints}"
        return value

    async def text(self, selector: str = "body") -> str:
        """What is written in an element."""
        return str(await self.js(f"document.querySelector({json.dumps(selector)})?.textContent"))

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            code, text = _KEYS[key] if key in _KEYS else (ord(key.upper()), key)
            name = " " if key == "Space" else key
            event = {"key": name, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def type(self, text: str) -> None:
        """Put text where the keyboard is."""
        await self.call("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse, once it stands still."""
        quoted = json.dumps(selector)
        await self.until(f"document.querySelector({quoted})?.getClientRects().length")
        x, y = await self.js(
            "new Promise((found) => { let before = '', still = 0; const look = () => {"
            f"const one = document.querySelector({quoted}); if (one) {{"
            "one.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = one.getBoundingClientRect(), now = `${r.x} ${r.y}`;"
            "still = now === before ? still + 1 : 0; before = now;"
            "if (still > 6) return found([r.x + r.width / 2, r.y + r.height / 2]) }"
            "requestAnimationFrame(look) }; look() })"
        )
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        await self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    async def look_like(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window, and the colors that the reader prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 700,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, calm])

    async def screenshot(self, path: Path) -> None:
        """What is in the window, as PNG."""
        taken = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self.reader = asyncio.create_task(self._read())

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command; raises AssertionError with Chromium's own words."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(LIMIT_S):
            found = await answer
        if "error" in found:
            raise AssertionError(f"{method}: {found['error']['message']}")
        return dict(found["result"])

    async def page(self) -> Page:
        """A new tab without cookies or storage of others."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        self._pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        await page.look_like(1280, 860)
        return page

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                waiting = self._waiting.pop(found["id"])
                if not waiting.done():
                    waiting.set_result(found)
            elif found.get("sessionId") in self._pages:
                self._pages[found["sessionId"]].happened(found["method"], found["params"])


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A Chromium of its own, ended with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            find_chromium(), "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = await _address(process, Path(profile) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                yield browser
                with suppress(AssertionError, TimeoutError, ConnectionError):
                    await browser.call("Browser.close")
                browser.reader.cancel()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, told: Path) -> str:
    """Where Chromium listens, which it writes into a file of its profile."""
    async with asyncio.timeout(LIMIT_S):
        while process.returncode is None:
            if told.is_file() and len(lines := told.read_text().split()) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.02)
    raise AssertionError(f"Chromium ended with {process.returncode} before it listened")
