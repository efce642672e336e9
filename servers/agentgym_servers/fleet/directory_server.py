"""The page of a fleet's controller that lists its servers, so that clients need no Ray."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

PATH: Final = "/v1/fleet"

Listing = dict[str, tuple[str, list[str]]]
"""Group -> its kind and its addresses."""


def serve_directory(listing: Callable[[], Listing], host: str, token: str) -> str:
    """Serve `listing` in threads, to those who send the token; the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30.0

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                self._answer(401, {"error": "the token is missing or wrong"})
            elif self.path != PATH:
                self._answer(404, {"error": f"only {PATH} is here"})
            else:
                self._answer(200, listing())

        def _answer(self, status: int, value: Any) -> None:
            body = msgspec.json.encode(value)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """One line per poll would fill the log."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{host}:{server.server_address[1]}"
