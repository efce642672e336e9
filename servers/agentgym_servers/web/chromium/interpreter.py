"""Which Python runs the browser's process: BrowserGym's pins are not the trainer's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import agentgym_env
import agentgym_servers
from agentgym_env.errors import MissingExtra

VARIABLE: Final = "AGENTGYM_WEB_PYTHON"


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
        "Chromium is driven by BrowserGym, which wants an environment of its own: run "
        "`make setup-web` in a checkout, or make one with `python -m venv web-env && "
        "web-env/bin/pip install 'agentgym-sdk[chromium]'` and set "
        f"{VARIABLE}=web-env/bin/python"
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
