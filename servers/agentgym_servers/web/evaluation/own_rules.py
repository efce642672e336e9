"""What the evaluation on our own sites requires beyond WebArena's rules, which can be exploited.

WebArena accepts any address that contains the target's, also that of a missing page, and any answer
that contains the reference, also one that quotes every page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, urlsplit

from agentgym_servers.web.tasks.tasks import ReferenceAnswers

PageExists = Callable[[str], bool]
"""Whether a site has a page at an address: it answers with the status 200."""

_TIMES: Final = 4
_MIN_CHARS: Final = 40


def answer_limit(rules: ReferenceAnswers) -> int:
    """Most characters of an answer: four times those of the references, and at least 40."""
    parts = [rules.exact_match or "", *(rules.must_include or ())]
    if isinstance(rules.fuzzy_match, list):
        parts += rules.fuzzy_match
    return max(_MIN_CHARS, _TIMES * sum(map(len, parts)))


def is_target(reference: str, url: str, *, below: bool) -> bool:
    """Whether an address is that of one of the references, which ` |OR| ` joins.

    Scheme, host and path are equal, and each key of the reference's query has its values and no
    others; more keys are allowed. With `below`, the path may continue with further segments, as
    that of an issue does below its project's issues.
    """
    return any(_is_at(one, url, below) for one in reference.split(" |OR| "))


def _is_at(reference: str, url: str, below: bool) -> bool:
    try:
        wanted, found = urlsplit(reference), urlsplit(url)
        values = parse_qs(found.query)
        wanted_values = parse_qs(wanted.query)
    except ValueError:  # an address that no browser opens
        return False
    base, path = wanted.path.rstrip("/"), found.path.rstrip("/")
    same_site = (wanted.scheme, wanted.netloc) == (found.scheme, found.netloc)
    same_path = path == base or (below and path.startswith(f"{base}/"))
    return (
        same_site
        and same_path
        and all(values.get(key) == given for key, given in wanted_values.items())
    )
