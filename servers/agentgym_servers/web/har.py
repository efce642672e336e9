"""What was asked of the embedded sites and what they answered, as entries of an HTTP archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from agentgym_servers.web.site import Request, Response

_FORM = "application/x-www-form-urlencoded"


class Exchange(msgspec.Struct, frozen=True):
    """A request and its answer."""

    request: Request
    response: Response
    referer: str = ""
    """The page that it was asked from."""


def url_of(request: Request) -> str:
    """The address of a request."""
    query = f"?{_encoded(request.query)}" if request.query else ""
    return f"http://{request.host}{quote(request.path)}{query}"


def har_entries(exchanges: Iterable[Exchange]) -> list[dict[str, Any]]:
    """One entry to an exchange, in order; times are not told, for none were taken."""
    return [_entry(one) for one in exchanges]


def _entry(exchange: Exchange) -> dict[str, Any]:
    request, response = exchange.request, exchange.response
    headers = {"Host": request.host, "Accept": "text/html", "Referer": exchange.referer}
    asked: dict[str, Any] = {
        "method": request.method,
        "url": url_of(request),
        "httpVersion": "HTTP/1.1",
        "headers": _pairs({name: text for name, text in headers.items() if text}),
        "queryString": _pairs_of_lists(request.query),
        "cookies": _pairs(request.cookies),
        "headersSize": -1,
        "bodySize": -1,
    }
    if request.method == "POST":
        asked["postData"] = {
            "mimeType": _FORM,
            "text": _encoded(request.form),
            "params": _pairs_of_lists(request.form),
        }
    return {
        "startedDateTime": "1970-01-01T00:00:00.000Z",
        "time": 0,
        "request": asked,
        "response": {
            "status": response.status,
            "statusText": "",
            "httpVersion": "HTTP/1.1",
            "headers": _pairs({"Content-Type": response.content_type}),
            "cookies": _pairs({name: text or "" for name, text in response.cookies.items()}),
            "content": {
                "size": len(response.body.encode()),
                "mimeType": response.content_type,
                "text": response.body,
            },
            "redirectURL": response.location or "",
            "headersSize": -1,
            "bodySize": -1,
        },
        "cache": {},
        "timings": {"send": 0, "wait": 0, "receive": 0},
    }


def _encoded(values: Mapping[str, Sequence[str]]) -> str:
    return urlencode({name: list(texts) for name, texts in values.items()}, doseq=True)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": text} for name, text in values.items()]


def _pairs_of_lists(values: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": text} for name, texts in values.items() for text in texts]
