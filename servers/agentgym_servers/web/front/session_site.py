"""A site of an episode's session as HTTP: requests in, pages out, and what to remember of both."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.front.message import Headers, HttpReply, HttpRequest, Refused, quoted
from agentgym_servers.web.sites.site import Request, Response, SiteSession
from agentgym_servers.web.text_browser.page import join_url


class Links:
    """Puts one host's address in the place of another's: of `http://shop.test` and its like.

    Absolute addresses are in links (the homepage's, the forum's submissions), in text to copy
    (where a project is cloned from) and in redirects, so all of a page's text is looked through.
    """

    def __init__(self, shown: Mapping[str, str]) -> None:
        """`shown` gives, for hosts such as `shop.test`, roots such as `http://127.0.0.2:7770`."""
        self._shown = dict(shown)
        hosts = "|".join(re.escape(host) for host in shown)
        # What continues as a longer host or a port is another address.
        self._pattern = re.compile(f"http://({hosts})(?![\\w:@-]|\\.\\w)") if shown else None

    def shown(self, text: str) -> str:
        """Text with the addresses under which sites are served."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._shown[found[1]], text)

    def shown_host(self, host: str) -> str:
        """The host, with its port, under which a site is served."""
        return urlsplit(self._shown[host]).netloc if host in self._shown else host


MAX_FIELDS: Final = 1_000

MAX_EXCHANGES: Final = 2_000
"""How many are remembered; beyond that the oldest are forgotten."""

_METHODS: Final = ("GET", "HEAD", "POST")

_REDIRECTS: Final = (301, 302, 303, 307, 308)

_KEPT: Final = "%/:?#[]@!$&'()*+,;=~"
"""What an address may have in it besides letters, digits and `-._`."""

Fields = Mapping[str, Sequence[str]]


class SessionSite:
    """One host of a session. Paths under `/rest/` are for evaluators alone.

    Those routes show the whole shop's data to anybody, so an agent's listener is `rest=False`.
    """

    def __init__(
        self,
        session: SiteSession,
        host: str,
        *,
        rest: bool = False,
        exchanges: list[Exchange] | None = None,
        links: Links | None = None,
    ) -> None:
        """`exchanges` is where to remember; `links` are the addresses to show for the sites'."""
        self._session = session
        self._host = host
        self._rest = rest
        self._exchanges = exchanges
        self._links = links or Links({})

    def answer(self, request: HttpRequest) -> HttpReply:
        """The site's page; raises `Refused` for what no page of ours requests."""
        if request.method not in _METHODS:
            raise Refused(405, f"{quoted(request.method)} is not served; use GET, HEAD or POST.")
        path = request.path
        is_rest = path == "/rest" or path.startswith("/rest/")
        if is_rest and not self._rest:
            raise Refused(403, f"{quoted(path)} is out of bounds; stay on the site's pages.")
        page_request = Request(
            "POST" if request.method == "POST" else "GET",
            self._host,
            path,
            _fields(request.query),
            _form(request, json=is_rest) if request.method == "POST" else {},
            _cookies(request),
        )
        given = self._shown(self._session.answer(page_request), request)
        if request.method != "HEAD":
            self._remember(page_request, given, request.header("referer"))
        return HttpReply(given.status, _headers(given, page_request.method), given.body.encode())

    def _shown(self, response: Response, request: HttpRequest) -> Response:
        """The answer as the client sees it: with whole addresses, and those that it knows."""
        location, body = response.location, response.body
        if location is not None and response.status in _REDIRECTS:
            whole = join_url(f"http://{self._host}{request.target}", location)
            location = self._links.shown(quote(whole, safe=_KEPT))
        if response.content_type.startswith("text/html"):
            body = self._links.shown(body)
        return msgspec.structs.replace(response, location=location, body=body)

    def _remember(self, page_request: Request, given: Response, referer: str) -> None:
        if self._exchanges is None:
            return
        shown = msgspec.structs.replace(page_request, host=self._links.shown_host(self._host))
        self._exchanges.append(Exchange(shown, given, referer))
        del self._exchanges[:-MAX_EXCHANGES]


def _headers(given: Response, method: str) -> Headers:
    headers = [("Content-Type", given.content_type), ("X-Content-Type-Options", "nosniff")]
    if method == "GET":
        # Going back shows the page as it is now; after a form, it would offer to send it again.
        headers.append(("Cache-Control", "no-store"))
    if given.location is not None:
        headers.append(("Location", given.location))
    for name, value in given.cookies.items():
        age = "; Max-Age=0" if value is None else ""
        headers.append(("Set-Cookie", f"{name}={value or ''}; Path=/{age}; HttpOnly; SameSite=Lax"))
    return tuple(headers)


def _form(request: HttpRequest, *, json: bool) -> Fields:
    kind = request.header("content-type").partition(";")[0].strip().lower()
    if kind == "application/json" and json:
        return _json_fields(request.body)
    if request.body and kind != "application/x-www-form-urlencoded":
        raise Refused(415, f"A body of {quoted(kind)} is not read; send a form, urlencoded.")
    return _fields(request.body.decode("utf-8", "replace"))


def _fields(text: str) -> Fields:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Refused(400, f"A query or form has at most {MAX_FIELDS} fields.") from error


def _json_fields(body: bytes) -> Fields:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refused(400, f"The body is no JSON object: {error}.") from error
    return {name: [value] for name, value in fields.items() if isinstance(value, str)}


def _cookies(request: HttpRequest) -> dict[str, str]:
    cookies: dict[str, str] = {}
    for name, value in request.headers:
        if name.lower() == "cookie":
            for pair in value.split(";"):
                key, _, text = pair.strip().partition("=")
                cookies.setdefault(key, text)
    return cookies


MAX_FILE_BYTES: Final = 16 * 2**20

MAX_KEPT_BYTES: Final = 64 * 2**20

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".gif": "image/gif",
    ".htm": "text/html; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".mp3": "audio/mpeg",
    ".mp4": "video/mp4",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webp": "image/webp",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".xml": "application/xml",
}


class StaticSite:
    """The files below a folder. One may serve any number of listeners."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._kept: dict[str, HttpReply] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def answer(self, request: HttpRequest) -> HttpReply:
        """The file at a path; a folder's is its `index.html`."""
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"{quoted(request.method)} is not served; these are files: use GET.")
        path = request.path
        with self._lock:
            reply = self._kept.get(path)
            if reply is None:
                reply = _read(self._find(path), path)
                if self._kept_bytes + len(reply.body) <= MAX_KEPT_BYTES:
                    self._kept[path] = reply
                    self._kept_bytes += len(reply.body)
        return reply

    def _find(self, path: str) -> Path:
        """The file itself, after all links; it must lie in the folder."""
        missing = Refused(404, f"There is no {quoted(path)} here.")
        # One path to a file, for each is kept by its path.
        names = f"{path}index.html" if path.endswith("/") else path
        first, *segments = names.split("/")
        if first or "\0" in path or "\\" in path or {"", ".", ".."} & set(segments):
            raise missing
        try:
            found = self._folder.joinpath(*segments).resolve(strict=True)
        except OSError as error:
            raise missing from error
        if not found.is_file() or not found.is_relative_to(self._folder):
            raise missing
        return found


def _read(file: Path, path: str) -> HttpReply:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise Refused(404, f"{quoted(path)} is longer than {MAX_FILE_BYTES} bytes.")
    kind = _TYPES.get(file.suffix.lower(), "application/octet-stream")
    headers = (
        ("Content-Type", kind),
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "max-age=3600"),
    )
    return HttpReply(200, headers, file.read_bytes())
