"""Clients of a listener, from raw bytes to a browser's habits, and a site with canned answers."""

from __future__ import annotations

import http.client
import socket
import socketserver
import threading
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

import requests


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def place(listener):
    parts = urlsplit(listener.address)
    return parts.hostname, parts.port


def connect(listener):
    return socket.create_connection(place(listener), timeout=60)


def ask(listener, url, method="GET", body=None, headers=None):
    """One request, its address in the request line just as it is given."""
    with closing(http.client.HTTPConnection(*place(listener), timeout=60)) as client:
        client.request(method, url, body, headers or {})
        answer = client.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def send(listener, data):
    """All that a listener has to say to these bytes, until it hangs up."""
    with connect(listener) as client:
        client.sendall(data)
        return rest_of(client)


def rest_of(client):
    read = b""
    while piece := client.recv(65_536):
        read += piece
    return read


def read_exactly(client, count):
    """So many bytes of a connection that goes on."""
    read = b""
    while len(read) < count:
        piece = client.recv(count - len(read))
        assert piece, f"it ended after {read!r}"
        read += piece
    return read


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


def through(listener):
    """A client with cookies that follows redirects, and asks everything of a proxy."""
    client = requests.Session()
    client.trust_env = False
    client.proxies = {"http": listener.address, "https": listener.address}
    return client


class CannedSite:
    """A site of raw bytes: `answers` by path, `asked` are the requests as they came."""

    def __init__(self, answers=None, host="127.0.0.1"):
        self.answers = answers or {}
        self.asked = []
        canned = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                lines = list(iter(self.rfile.readline, b"\r\n"))
                head = b"".join(lines)
                if not head:
                    return
                length = [
                    line.split(b":")[1] for line in lines if b"content-length" in line.lower()
                ]
                canned.asked.append(
                    head + b"\r\n" + self.rfile.read(int(length[0]) if length else 0)
                )
                path = lines[0].split(b" ")[1].decode()
                answer = canned.answers.get(path, b"HTTP/1.1 404 Not Found\r\n\r\n")
                if callable(answer):
                    answer(self)
                else:
                    self.wfile.write(answer)

        self._server = socketserver.ThreadingTCPServer((host, 0), Handler)
        self._server.daemon_threads = False
        self.place = self._server.server_address
        self.base = f"http://{self.place[0]}:{self.place[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
