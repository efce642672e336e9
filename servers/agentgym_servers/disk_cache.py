"""Where worlds keep what took long to make; deleting it loses nothing but time."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`agentgym-sdk` in the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "agentgym-sdk"


def read_cached(path: Path) -> bytes | None:
    """What was kept at `path`, or None."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("the cache %s cannot be read: %s", path, error)
        return None


def write_cached(path: Path, content: bytes) -> None:
    """Keep something; readers see all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("the cache %s cannot be written: %s", path, error)
