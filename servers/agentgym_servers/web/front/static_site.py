"""A folder of files as a site, read-only and kept in memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from agentgym_servers.web.front.message import HttpReply, HttpRequest, Refused, quoted

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
    """The files below a folder. One may stand behind any number of doors."""

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
