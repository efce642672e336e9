"""Whether there is a browser to test with, and what is seen of its processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentgym_env.errors import MissingExtra
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.interpreter import web_python


def _missing() -> str:
    try:
        find_chromium()
        web_python()
    except MissingExtra as error:
        return str(error)
    return ""


needs_chromium = pytest.mark.skipif(bool(_missing()), reason=_missing() or "there is a browser")


def what_browsergym_needs(folder: Path) -> dict[str, str]:
    """What BrowserGym needs to start without a network: a browser where it looks, words' data."""
    browser = folder / "chromium-1117" / "chrome-linux" / "chrome"
    browser.parent.mkdir(parents=True)
    browser.symlink_to(find_chromium())
    words = folder / "nltk" / "tokenizers" / "punkt_tab" / "english"
    words.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (words / name).touch()
    addresses = {name: value for name, value in os.environ.items() if name.startswith("WA_")}
    return {
        **addresses,
        "PLAYWRIGHT_BROWSERS_PATH": str(folder),
        "NLTK_DATA": str(folder / "nltk"),
    }


def browser_processes(pid: int) -> list[psutil.Process]:
    """Chromium's processes below a browser's process."""
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "chrom" in one.name() or "headless_shell" in one.name():
                found.append(one)
    return found


def kind_of(process: psutil.Process) -> str:
    """`renderer`, `gpu-process`, or `gone`; empty for the browser's own process."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return "gone"
    kinds = [word.partition("=")[2] for word in words if word.startswith("--type=")]
    return kinds[0] if kinds else ""
