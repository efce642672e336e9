"""The messages between an environment and the process of its browser.

Both run this file, perhaps under different interpreters: it needs msgspec alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, Literal, TypeAlias

import msgspec

from agentgym_servers.web.sites.site import Account

_LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 256 * 2**20


class Cookie(msgspec.Struct, frozen=True):
    """A cookie that the browser has from the start."""

    url: str
    name: str
    value: str


class LogIn(msgspec.Struct, frozen=True):
    """A site to log in to by its own form, before the episode begins."""

    site: str
    """WebArena's name of it."""
    base: str
    account: Account


class StartSites(msgspec.Struct, frozen=True, tag=True):
    """Begin an episode on web sites; answered by `Seen`."""

    episode: str
    proxy: str
    """Through which every request goes, such as `http://127.0.0.1:4711`."""
    urls: Sequence[str]
    """Opened one to a tab."""
    cookies: Sequence[Cookie] = ()
    log_ins: Sequence[LogIn] = ()


class StartMiniWoB(msgspec.Struct, frozen=True, tag=True):
    """Begin an episode of a MiniWoB++ task; answered by `Seen`."""

    episode: str
    proxy: str
    base: str
    """Where its pages are."""
    task: str
    """Such as `click-test`."""
    seed: int


class StartTask(msgspec.Struct, frozen=True, tag=True):
    """Begin an episode of a task that BrowserGym has registered; answered by `Seen`."""

    episode: str
    proxy: str
    env_id: str
    """Such as `browsergym/miniwob.click-test`."""
    module: str
    """What registers it, such as `browsergym.miniwob`."""
    seed: int
    task_kwargs: Mapping[str, Any] = {}


class ActRequest(msgspec.Struct, frozen=True, tag=True):
    """Do BrowserGym's calls, one to a line; answered by `Seen`."""

    episode: str
    calls: str


class OpenPage(msgspec.Struct, frozen=True, tag=True):
    """Open an address beside the agent's tabs; answered by `Opened`."""

    episode: str
    url: str


class ClosePage(msgspec.Struct, frozen=True, tag=True):
    """Close a page that was opened; answered by `Value`."""

    episode: str
    page: int


class ReadPage(msgspec.Struct, frozen=True, tag=True):
    """Read the HTML of a page, 0 for the agent's own; answered by `Value`."""

    episode: str
    page: int


class Evaluate(msgspec.Struct, frozen=True, tag=True):
    """Evaluate JavaScript on a page, 0 for the agent's own; answered by `Value`."""

    episode: str
    page: int
    expression: str


class Screenshot(msgspec.Struct, frozen=True, tag=True):
    """Draw the agent's page; answered by `Value`, a PNG."""

    episode: str


class End(msgspec.Struct, frozen=True, tag=True):
    """End an episode, and what is left of it; answered by `Value`."""

    episode: str


Start: TypeAlias = StartSites | StartMiniWoB | StartTask
Question: TypeAlias = (
    Start | ActRequest | OpenPage | ClosePage | ReadPage | Evaluate | Screenshot | End
)


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first message of the process."""

    version: str
    """Of this distribution there."""
    browser: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """What the agent sees."""

    tabs: tuple[tuple[str, str], ...]
    """URL and title of each."""
    active: int
    tree: str
    error: str = ""
    """Of the last action, as BrowserGym words it."""
    goal: str = ""
    reward: float = 0.0
    done: bool = False
    """Where the task judges: in MiniWoB++, and in BrowserGym's own tasks."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A page that was opened beside the tabs."""

    page: int
    url: str


class Value(msgspec.Struct, frozen=True, tag=True):
    """What a page gave."""

    value: Any = None
    url: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Why there is no answer."""

    kind: Literal["script", "browser", "lost", "fault"]
    """A script failed, the browser rejected a request, the episode is gone, or it is our fault."""
    message: str


Answer: TypeAlias = Ready | Seen | Opened | Value | Failed


def send(stream: IO[bytes], message: Question | Answer) -> None:
    """Write one message."""
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    stream.flush()


def receive(stream: IO[bytes], kind: Any) -> Any:
    """Read one message; raises `EOFError` at the stream's end."""
    length = int.from_bytes(_exactly(stream, _LENGTH_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise EOFError(f"a message of {length} bytes is not one")
    return msgspec.msgpack.decode(_exactly(stream, length), type=kind)


def _exactly(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError("the other side is gone")
    return content
