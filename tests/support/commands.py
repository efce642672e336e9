"""Runs a command of `agentgym` in this process, where it costs a small part of another process."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from agentgym_env.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command returned and wrote."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both outputs."""
        return self.out + self.err


def agentgym(*words: str, folder: Path | None = None, stdin: str = "") -> Ran:
    """Run a command in a folder; the search path and the log level are as before afterwards."""
    # Encoded as by a real terminal, which has no lone surrogates.
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    server_log = logging.getLogger("agentgym_servers")
    level, status = server_log.level, 0
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        patch.object(sys, "path", [*sys.path]),
        chdir(folder) if folder is not None else nullcontext(),
    ):
        try:
            main(words)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            server_log.setLevel(level)
    return Ran(status, _written(out), _written(err))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode("utf-8")
