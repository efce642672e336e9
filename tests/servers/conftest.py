"""What the servers' tests share: programs that run inside a test, and the embedded sites."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest

Ended = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module", autouse=True)
def quick_jvms() -> Iterator[None]:
    """JVMs compile quickly; their second compiler takes more time than the few episodes here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1", prepend=" ")
        yield


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Ended]:
    """Runs a program's `main` in this process: its exit status and what it wrote to stderr."""
    loggers = [logging.getLogger(), logging.getLogger("uvicorn")]
    before = [(logger, logger.level, logger.handlers) for logger in loggers]

    def run(main: Callable[[], object], *words: object) -> tuple[int, str]:
        logging.getLogger().handlers = []  # the program closes those that it replaces
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        said = capsys.readouterr().err
        return (1, f"{said}{code}\n") if isinstance(code, str) else (int(code or 0), said)

    yield run
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.fixture
def sites():
    """The embedded sites that `page_reader` reads; each call of `open` is a new session."""
    from own_sites import all_sites

    return all_sites()


@pytest.fixture
def reader(sites):
    """One session on the embedded sites."""
    return sites.open()
