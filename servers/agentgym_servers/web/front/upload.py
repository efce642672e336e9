"""Finds out whether a form carries a file."""

from __future__ import annotations

import re
from typing import Final

from agentgym_servers.web.front.message import HttpRequest, Refused, quoted

_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_FILENAME: Final = re.compile(
    rb'filename\*?\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\r\n]*))', re.IGNORECASE
)


def refuse_files(request: HttpRequest) -> None:
    """Raise `Refused` 415 for a multipart body with a file in it, or that cannot be looked through.

    A field for a file that was left empty has an empty name, and passes.
    """
    kind = request.header("content-type")
    if not request.body or not kind.lower().lstrip().startswith("multipart/"):
        return
    if request.header("content-encoding"):
        raise Refused(415, "A compressed form is not forwarded; send it as it is.")
    boundary = _BOUNDARY.search(kind)
    if boundary is None:
        raise Refused(415, f"{quoted(kind)} names no boundary, so the form cannot be checked.")
    mark = b"--" + (boundary[1] or boundary[2]).encode("latin-1")
    for part in request.body.split(mark):
        head = re.split(rb"\r?\n\r?\n", part, maxsplit=1)[0]
        for name in _FILENAME.finditer(head):
            if (name[1] or name[2] or b"").strip():
                raise Refused(415, f"The form has a file in it, {name[0][:100]!r}: no uploads.")
