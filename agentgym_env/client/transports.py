"""Transports: HTTP, asynchronous HTTP, and calls within the process.

A transport sends bytes to one address and returns the answer. It knows nothing about sessions or
messages. It raises `EnvironmentLost` if there is no answer.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp
import requests
import requests.adapters
import urllib3

from agentgym_env.client.sockets import CONNECT_S, new_socket, socket_options
from agentgym_env.errors import BadRequest, EnvironmentLost
from agentgym_env.wire import JSON

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 3.2

_jitter = random.Random()  # not the global one, whose draws a seeded program counts on


class Attempts:
    """Counts the attempts at a call and computes the pauses between them."""

    def __init__(
        self, address: str, retries: int, timeout_s: float, remedy: str = "increase timeout_s"
    ) -> None:
        self._remedy = remedy
        self._address = address
        self._left = retries
        self._made = 0
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Timeout of the next attempt in seconds."""
        return max(0.001, self._deadline - time.monotonic())

    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._deadline

    def pause_after(self, failure: str, *, final: bool = False) -> float:
        """Seconds to wait before the next attempt; raises `EnvironmentLost` if there is none.

        A `final` failure has no further attempt here: the caller knows what else to do.
        """
        self._made += 1
        pause_s = pause_before_attempt(self._made)
        if time.monotonic() + pause_s >= self._deadline:
            raise EnvironmentLost(
                f"{self._address} did not answer within {self._timeout_s:g} s ({failure}); "
                f"check whether it is overloaded, or {self._remedy}",
                code="timeout",
            )
        if final:
            raise EnvironmentLost(
                f"{self._address} did not answer ({failure}); check whether the server is running",
                code="unanswered",
            )
        if self._left <= 0:
            raise EnvironmentLost(
                f"{self._address} cannot be reached after {self._made} attempts ({failure}); "
                "check whether the server is running",
                code="unreachable",
            )
        self._left -= 1
        return pause_s


def pause_before_attempt(number: int) -> float:
    """Seconds to wait before a call is sent again for the `number`-th time."""
    # Jitter keeps clients that failed together from coming back together.
    return min(_FIRST_PAUSE_S * 2.0 ** (number - 1), _MAX_PAUSE_S) * _jitter.uniform(0.5, 1.0)


_GATEWAY_STATUS = frozenset({502, 503, 504})

_POOL_SIZE = 32

_CHUNK_BYTES = 2**18

MAX_REPLY_BYTES: Final = 256 * 2**20
"""The longest reply that is read; our servers' replies are shorter."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request: a GET if the body is empty, else a POST."""

    path: str
    body: bytes = b""
    repeats: bool = True
    """Whether it may be sent again when it is unknown whether the server received it."""
    wait_s: float = 0.0
    """Seconds to wait before it is sent."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "POST" if self.body else "GET"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    body: bytes


class Transport(Protocol):
    """Sends calls to one server."""

    address: str

    def send(self, call: Call) -> Answer:
        """Return the server's answer; raises `EnvironmentLost`."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class AsyncTransport(Protocol):
    """Sends calls to one server without blocking the event loop."""

    address: str

    async def send(self, call: Call) -> Answer:
        """Return the server's answer; raises `EnvironmentLost`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Handler(Protocol):
    """A host that answers calls within this process."""

    def handle(
        self, method: str, path: str, query: str = "", body: bytes = b"", content_type: str = ""
    ) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer."""
        ...


class HttpTransport:
    """HTTP over a pool of persistent connections.

    A call is repeated on a connection error and on 502, 503 and 504 only, which is safe: turns
    and episodes are numbered. Calls with `repeats=False` are repeated only where no connection was
    made. `timeout_s` bounds the call, its repeats included.
    """

    def __init__(
        self, address: str, *, token: str | None = None, timeout_s: float = 60.0, retries: int = 3
    ) -> None:
        self.address = checked_address(address)
        self.token = token
        self._timeout_s = timeout_s
        self._retries = retries
        self._http = requests.Session()
        adapter = _Adapter(pool_maxsize=_POOL_SIZE)
        self._http.mount(self.address, adapter)
        self._http.headers.update(_headers(token))
        if token is not None:
            # Otherwise an entry of ~/.netrc for the host would replace the token.
            self._http.auth = _keep_headers
        # Proxies are for other hosts, and looking them up takes time.
        self._http.trust_env = not _is_local(self.address)

    def send(self, call: Call) -> Answer:
        """Return the server's answer; raises `EnvironmentLost`."""
        attempts = Attempts(self.address, self._retries, self._timeout_s)
        while True:
            try:
                response = self._http.request(
                    call.method,
                    self.address + call.path,
                    data=call.body or None,
                    timeout=(min(CONNECT_S, left_s := attempts.left_s()), left_s),
                    allow_redirects=False,
                    stream=True,
                )
                with response:
                    answer = Answer(response.status_code, self._read(response.raw, attempts))
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                pause_s = attempts.pause_after(_name(error), final=_may_have_arrived(call, error))
            else:
                if not _is_gateway_failure(answer):
                    return answer
                pause_s = attempts.pause_after(f"status {answer.status}", final=not call.repeats)
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _read(self, raw: urllib3.HTTPResponse, attempts: Attempts) -> bytes:
        body = bytearray()
        # The timeout of a connection is that of each read; a reply may arrive a byte at a time.
        while chunk := raw.read1(_CHUNK_BYTES, decode_content=True):
            body += chunk
            _check_size(self.address, len(body))
            if attempts.is_over():
                raise requests.ReadTimeout
        return bytes(body)


class _Adapter(requests.adapters.HTTPAdapter):
    """Makes connections that notice when the server's machine is gone."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, socket_options=socket_options(), **options)


class AsyncHttpTransport:
    """`HttpTransport` for coroutines, with the same rules."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        remedy: str = "increase timeout_s",
    ) -> None:
        """`remedy` is what a user can do about a timeout."""
        self.address = checked_address(address)
        self.token = token
        self._remedy = remedy
        self._timeout_s = timeout_s
        self._retries = retries
        self._http: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, call: Call) -> Answer:
        """Return the server's answer; raises `EnvironmentLost`."""
        attempts = Attempts(self.address, self._retries, self._timeout_s, self._remedy)
        while True:
            http = await self._session()
            try:
                async with http.request(
                    call.method,
                    self.address + call.path,
                    data=call.body or None,
                    timeout=aiohttp.ClientTimeout(attempts.left_s(), sock_connect=CONNECT_S),
                    allow_redirects=False,
                ) as response:
                    body = bytearray()
                    async for chunk in response.content.iter_any():
                        body += chunk
                        _check_size(self.address, len(body))
                    answer = Answer(response.status, bytes(body))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                pause_s = attempts.pause_after(_name(error), final=_may_have_arrived(call, error))
            else:
                if not _is_gateway_failure(answer):
                    return answer
                pause_s = attempts.pause_after(f"status {answer.status}", final=not call.repeats)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _session(self) -> aiohttp.ClientSession:
        # Connections belong to one event loop; a program may run several, one after another.
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            old = self._http
            self._http = aiohttp.ClientSession(
                headers=_headers(self.token),
                connector=aiohttp.TCPConnector(limit=_POOL_SIZE, socket_factory=new_socket),
                trust_env=not _is_local(self.address),
            )
            self._loop = loop
            if old is not None:
                await old.close()
        return self._http


class InProcessTransport:
    """Calls a handler in this process, one call at a time."""

    def __init__(self, handler: Handler, address: str = "inprocess") -> None:
        self.address = address
        self._handler = handler
        self._lock = threading.Lock()

    def send(self, call: Call) -> Answer:
        """The handler's answer."""
        path, _, query = call.path.partition("?")
        with self._lock:
            status, _, body = self._handler.handle(call.method, path, query, call.body, JSON)
        return Answer(status, body)

    def close(self) -> None:
        """Does nothing."""


class AsyncInProcessTransport:
    """`InProcessTransport` for coroutines; the environment runs in the event loop's thread."""

    def __init__(self, handler: Handler, address: str = "inprocess") -> None:
        self.address = address
        self._inner = InProcessTransport(handler, address)

    async def send(self, call: Call) -> Answer:
        """The handler's answer."""
        return self._inner.send(call)

    async def close(self) -> None:
        """Does nothing."""


def checked_address(address: str) -> str:
    """An address without its last slash; raises `BadRequest` if it is not an HTTP address."""
    parts = urlsplit(address if isinstance(address, str) else "")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadRequest(f"a server address must look like http://host:port, got {address!r}")
    if "@" in parts.netloc:
        # It would be stored in run folders and shown in messages.
        raise BadRequest(
            f"the address of {parts.hostname} contains a user name or password; use a token "
            "(--token-file, AGENTGYM_TOKEN)"
        )
    return address.rstrip("/")


def _is_gateway_failure(answer: Answer) -> bool:
    # A list is the host's own answer about its items, not a gateway's about the host.
    return answer.status in _GATEWAY_STATUS and not answer.body.startswith(b"[")


def _check_size(address: str, size: int) -> None:
    if size > MAX_REPLY_BYTES:
        raise EnvironmentLost(
            f"{address} sent a reply of more than {MAX_REPLY_BYTES} bytes; check that it is an "
            "environment server",
            code="too_large",
        )


def _may_have_arrived(call: Call, error: BaseException) -> bool:
    """Whether the server may have received a call that must not be sent twice."""
    if call.repeats or isinstance(error, aiohttp.ClientConnectorError):
        return False
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return not isinstance(reason, urllib3.exceptions.NewConnectionError)


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Content-Type": JSON, "Accept": JSON}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _keep_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _name(error: BaseException) -> str:
    # The inner errors of HTTP libraries name addresses of objects and say little more.
    return type(error).__name__
