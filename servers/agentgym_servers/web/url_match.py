"""WebArena's rule for addresses, "GOLD in PRED"; knows nothing about pages."""

from __future__ import annotations

from urllib.parse import parse_qs, urlparse


def url_match(reference: str, url: str) -> bool:
    """Whether the page's address holds a reference's.

    References are joined by ` |OR| `. Host and path of any one must be part of the page's host and
    path (so `/p` matches `/p/4`), and for every key in any reference's query the page has one of
    the values that the references give it.
    """
    path, query = _parts(url)
    references = [_parts(one) for one in reference.split(" |OR| ")]
    allowed: dict[str, set[str]] = {}
    for _, wanted in references:
        for key, values in wanted.items():
            allowed.setdefault(key, set()).update(values)
    return any(base in path for base, _ in references) and all(
        values & set(query.get(key, ())) for key, values in allowed.items()
    )


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    # Not `urlsplit`: what follows a `;` in the last segment is no part of the path here.
    parts = urlparse(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)
