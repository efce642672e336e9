"""Makes classes of the main program, such as a notebook's, importable in other processes."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import cloudpickle

from agentgym_env.entry_points import load_named, split_name
from agentgym_env.errors import BadRequest

MAIN: Final = "__main__"
_LOADED: Final = """import pathlib, pickle
{name} = pickle.loads(pathlib.Path(__file__).with_suffix(".pickle").read_bytes())
"""


def folders() -> list[str]:
    """What other processes need in their path: the folder of this process's modules, if any."""
    return [_folder()] if _folder.cache_info().currsize else []


def importable(entry_point: str) -> str:
    """`module:Class` of another module than `__main__`, with the class as it is now.

    The module is in one of `folders`. Other entry points are returned as they are. Raises
    `BadRequest` if the class cannot be written to a file.
    """
    module, name = split_name(entry_point)
    if module != MAIN:
        return entry_point
    kind = load_named(entry_point)
    try:
        pickled = cloudpickle.dumps(kind)
    except Exception as error:  # what the class refers to may raise anything
        raise BadRequest(
            f"{entry_point} cannot be sent to its server process: {error}; define it in a module, "
            "or open what it uses in its constructor"
        ) from error
    written = f"agentgym_main_{hashlib.blake2b(pickled, digest_size=8).hexdigest()}"
    module_file = Path(_folder()) / f"{written}.py"
    if not module_file.exists():
        module_file.with_suffix(".pickle").write_bytes(pickled)
        module_file.write_text(_LOADED.format(name=name), encoding="utf-8")
    return f"{written}:{name}"


@cache
def _folder() -> str:
    made, owner = tempfile.mkdtemp(prefix="agentgym-main-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked process ends earlier
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
