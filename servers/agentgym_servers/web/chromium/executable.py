"""Where Chromium is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from agentgym_env.errors import MissingExtra

VARIABLE: Final = "AGENTGYM_CHROMIUM"
_NAMES: Final = (
    "chromium-headless-shell",  # twice as fast to reset as the others, and 200 MB lighter
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
_PLAYWRIGHTS: Final = (
    "chromium_headless_shell-*/chrome-*/headless_shell",
    "chromium-*/chrome-*/chrome",
)


def find_chromium() -> str:
    """The path of a Chromium; raises `MissingExtra` with how to get one."""
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise MissingExtra(f"{VARIABLE} is {named!r}, which is no program that can be run")
        return found
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or "~/.cache/ms-playwright")
    for pattern in _PLAYWRIGHTS:
        for path in sorted(folder.expanduser().glob(pattern), reverse=True):
            return str(path)
    raise MissingExtra(
        f"there is no Chromium in {VARIABLE}, on PATH or among Playwright's browsers: "
        "install one (Debian, Ubuntu: apt install chromium-headless-shell, or chromium; "
        "elsewhere: playwright install chromium)"
    )
