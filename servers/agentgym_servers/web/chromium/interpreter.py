"""Which Python runs the browser's process: BrowserGym's pins are not the trainer's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

import agentgym_env
import agentgym_servers
from agentgym_env.errors import MissingExtra

VARIABLE: Final = "AGENTGYM_WEB_PYTHON"
SETUP: Final = (
    "run `make setup-web` in a checkout, or `python -m venv web-env && web-env/bin/pip install "
    f"'agentgym-sdk[chromium]'` and set {VARIABLE}=web-env/bin/python"
)
"""How to make the environment, for errors."""
_TIMEOUT_S: Final = 30.0


def web_python() -> str:
    """The interpreter of an environment with BrowserGym; raises `MissingExtra`.

    The one that `AGENTGYM_WEB_PYTHON` names, else this process's own if it has BrowserGym, else
    that of `make setup-web` beside the sources.
    """
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise MissingExtra(f"{VARIABLE} is {named!r}, which is no program that can be run")
        return found
    if importlib.util.find_spec("browsergym") is not None:
        return sys.executable
    beside = Path(agentgym_env.__file__).parents[1] / ".venv-web" / "bin" / "python"
    if beside.is_file():
        return str(beside)
    raise MissingExtra(
        f"BrowserGym, which controls Chromium, needs its own virtual environment: {SETUP}"
    )


def web_environment() -> dict[str, str]:
    """The variables of a process under that interpreter.

    It finds the sources that run here, and nothing that is installed for another interpreter.
    """
    roots = {
        str(Path(str(package.__file__)).parents[1]) for package in (agentgym_env, agentgym_servers)
    }
    sources = [root for root in sorted(roots) if not root.endswith("site-packages")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}


@cache
def package_folder(name: str) -> Path | None:
    """Where a package's files are, here or in the browser's environment; it is not imported."""
    here = _folder_of(importlib.util.find_spec(name))
    if here is not None:
        return here
    try:
        python = web_python()
    except MissingExtra:
        return None
    command = (
        f"import importlib.util as u; s = u.find_spec({name!r}); "
        "print(*(s.submodule_search_locations or ())[:1] if s else '')"
    )
    done = subprocess.run(
        [python, "-P", "-c", command],
        env=web_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    folder = Path(done.stdout.strip())
    return folder if folder.is_absolute() else None


def _folder_of(spec: ModuleSpec | None) -> Path | None:
    for folder in (spec and spec.submodule_search_locations) or ():
        return Path(folder)
    return None
