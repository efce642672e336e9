"""Addresses of embedded sites in pages and redirects, as those under which they are served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit


class Links:
    """Puts one host's address in the place of another's: of `http://shop.test` and its like.

    Absolute addresses stand in links (the homepage's, the forum's submissions), in text to copy
    (where a project is cloned from) and in redirects, so all of a page's text is looked through.
    """

    def __init__(self, shown: Mapping[str, str]) -> None:
        """`shown` gives, for hosts such as `shop.test`, roots such as `http://127.0.0.2:7770`."""
        self._shown = dict(shown)
        hosts = "|".join(re.escape(host) for host in shown)
        # What goes on as a longer host or a port is another address.
        self._pattern = re.compile(f"http://({hosts})(?![\\w:@-]|\\.\\w)") if shown else None

    def shown(self, text: str) -> str:
        """Text with the addresses under which sites are served."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._shown[found[1]], text)

    def shown_host(self, host: str) -> str:
        """The host, with its port, under which a site is served."""
        return urlsplit(self._shown[host]).netloc if host in self._shown else host
