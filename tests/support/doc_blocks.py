"""The code blocks of the documentation, and how a reader would run those of one page.

A block runs unless an HTML comment above it states why it cannot; a page renders none of these:

    <!-- docs-test: skip, needs a GPU -->             the block is only checked, not run
    <!-- docs-test: skip make test, takes minutes --> so are its lines that begin with these words
    <!-- docs-test: with train steps=1 -->            append words to the lines of a program
    <!-- docs-test: replace Qwen/Qwen2.5-0.5B-Instruct => FOLDER -->
    <!-- docs-test: exit 1 -->                        the exit status that the last line has
    <!-- docs-test: shell                             run before the block, as is `python`
    touch token.txt
    -->

Blocks without a language, or with `console`, are shell commands; `text` is output. A Python block
whose first line is `# name.py` is that file, and a YAML block that begins with `# name.yaml` too.
The blocks of a page share one folder, one Python process and their shell variables. Lines that
install packages are only checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
PAGES = [
    *(page for page in sorted(ROOT.glob("*.md")) if page.name != "CHANGELOG.md"),
    *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/tutorials/*.md")),
    *sorted(ROOT.glob("docs/notes/*.md")), ROOT / "results/README.md",
    *sorted(ROOT.glob("examples/**/*.md")), ROOT / "servers/README.md",
    ROOT / "adapters/README.md", ROOT / "benchmarks/README.md",
    ROOT / "benchmarks/RESULTS.md",
]  # fmt: skip
"""Every page that people write; docs/reference and docs/worlds are generated."""

ELSEWHERE = {"docs/get_started.md": "tests/test_wheel.py runs it"}
"""Pages that another test runs."""
SHELL = ("", "console")
LANGUAGES = (*SHELL, "python", "yaml", "text")
SERVERS = re.compile(r"agentgym (serve|serve-retriever|sites|view)\b|python -m agentgym_servers\b")
"""Commands that run until they are stopped."""
INSTALLS = re.compile(r"(\S*pip|apt) install\b|make setup\S*")
"""Commands that would change the machine; they are only checked."""
_IN_A_ROW = 8
PORTS = {"8000", "8001", "8002", "8600", "36005"}
"""Ports that pages name; each page gets free ones instead."""
_PART = re.compile(r"^<!-- docs-test: (.*?) ?-->$|^```([^\n]*)\n(.*?)^```$", re.M | re.S)
_START_S = 240
_LINE_S = 300


@dataclass(frozen=True)
class Block:
    """A fenced block, with what the comments above it state."""

    line: int
    language: str
    text: str
    skipped: tuple[tuple[str, str], ...] = ()
    """(beginning of a line, reason)"""
    appended: tuple[tuple[str, str], ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    status: int = 0
    hidden: bool = False

    def why_skipped(self, command: str = "") -> str:
        """Why the block, or this line of it, is not run; nothing if it is."""
        for words, reason in self.skipped:
            if not words or (command and command.startswith(words)):
                return reason
        return "installs packages" if INSTALLS.match(command) else ""

    @property
    def file(self) -> str:
        """The name of the file that a Python or YAML block shows, or nothing."""
        ending = {"python": "py", "yaml": "yaml"}.get(self.language)
        named = re.match(rf"# (\w+\.{ending})\n", self.text) if ending else None
        return named[1] if named else ""

    def commands(self) -> list[str]:
        """The command lines of a shell block, without prompts, comments and output."""
        if self.language not in SHELL:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        found, waiting = [], ""
        for line in lines:
            if not waiting and prompted and not line.startswith("$ "):
                continue
            waiting += ("\n" if waiting else "") + (line if waiting else line.removeprefix("$ "))
            try:
                words = shlex.split(waiting, comments=True)
            except ValueError:  # a quotation that continues on the next line
                continue
            if words:
                found.append(waiting.strip())
            waiting = ""
        return found


def read_blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order, with the hidden ones."""
    notes: list[str] = []
    end = 0
    for part in _PART.finditer(text):
        if text[end : part.start()].strip():
            notes = []
        end = part.end()
        line = text.count("\n", 0, part.start()) + 1
        if part[1] is None:
            if not part[2].startswith("{"):
                yield _with_notes(Block(line, part[2], part[3]), notes)
            notes = []
        elif part[1].startswith(("shell\n", "python\n")):
            kind, _, code = part[1].partition("\n")
            language = kind.replace("shell", "")
            yield _with_notes(Block(line, language, code + "\n", hidden=True), [])
        else:
            notes.append(part[1])


def _with_notes(block: Block, notes: list[str]) -> Block:
    for note in notes:
        kind, _, rest = note.partition(" ")
        words, comma, reason = note.removeprefix("skip").partition(", ")
        if note.startswith(("skip ", "skip, ")) and comma:
            # A single word does not say what is missing.
            assert len(reason.split()) > 1, f"line {block.line}: why is it skipped? {note}"
            block = replace(block, skipped=(*block.skipped, (words.strip(), reason)))
        elif kind == "with" and " " in rest:
            program, _, words = rest.partition(" ")
            block = replace(block, appended=(*block.appended, (program, words)))
        elif kind == "replace" and " => " in rest:
            old, _, new = rest.partition(" => ")
            assert old in block.text, f"line {block.line}: {old!r} is not in the block"
            block = replace(block, replaced=(*block.replaced, (old, new)))
        elif kind == "exit":
            block = replace(block, status=int(rest))
        else:
            raise ValueError(f"line {block.line}: unknown comment docs-test: {note}")
    return block


class Page:
    """Runs the blocks of one page in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.cwd = folder
        self.ports = {port: str(_free_ports()) for port in sorted(PORTS)}
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.python: subprocess.Popen[str] | None = None
        self.seconds: list[tuple[float, str]] = []
        self.installed = folder / ".installed"
        shutil.copytree(ROOT / "examples", folder / "examples")
        for name in ("benchmarks", "tools", "tests", "docs", "Makefile", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)
        (folder / ".variables").touch()
        self.environ = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                [str(self.installed), *map(str, (ROOT, ROOT / "servers", ROOT / "adapters"))]
            ),
            "OMP_NUM_THREADS": "1", "COLUMNS": "120", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1",
        }  # fmt: skip

    def __enter__(self) -> Page:
        """Return the page."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything that a block started."""
        for server in self.servers.values():
            _stop(server)
        if self.python is not None:
            assert self.python.stdin is not None
            self.python.stdin.close()
            self.python.wait(LIMIT_S)
            assert self.python.stdout is not None
            self.python.stdout.close()

    def run(self, block: Block) -> None:
        """Run a block; raises an `AssertionError` with the output of what failed."""
        began = time.monotonic()
        self.started: set[str] = set()
        if block.file:
            (self.cwd / block.file).write_text(self._changed(block, block.text))
        if block.language == "python":
            self._python(block)
        commands = block.commands()
        for command in commands:
            last = command is commands[-1]
            self._command(block, command, block.status if last else 0)
        self.seconds.append((time.monotonic() - began, f"line {block.line}"))

    def _changed(self, block: Block, text: str) -> str:
        for old, new in block.replaced:
            text = text.replace(old, new)
        return re.sub(
            r"(?<=[: =])(\d{4,5})\b", lambda found: self.ports.get(found[0], found[0]), text
        )

    def _command(self, block: Block, command: str, status: int) -> None:
        command = _without_comment(self._changed(block, command))
        for program, words in block.appended:
            if re.search(rf"(^|[ /]){re.escape(program)}( |$)", command):
                command += f" {words}"
        installed = re.fullmatch(r"(.*&& )?pip install -e (\S+)", command)
        if installed:
            command = (
                f"{installed[1] or ''}{sys.executable} -m pip install --quiet --no-deps "
                f"--no-build-isolation --target {self.installed} ./{installed[2]}"
            )
        elif block.why_skipped(command):
            return
        if SERVERS.search(command):
            self._serve(command)
            return
        where, variables = self.folder / ".cwd", self.folder / ".variables"
        script = (  # no `set -e`, which a failing part of `A && B` does not end
            f"set -a -o pipefail\n. {variables}\n{command}\nstatus=$?\n"
            f"pwd > {where}; export -p > {variables}; exit $status"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.cwd, env=self.environ, stdin=subprocess.DEVNULL, timeout=_LINE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\nexit {done.returncode}\n{done.stdout}"
        if not status:
            self.cwd = Path(where.read_text().strip())
        sys.stdout.write(f"$ {command}\n{done.stdout}")

    def _serve(self, command: str) -> None:
        if "--port" not in command:
            command += f" --port {self.ports['8600' if ' view' in command else '8000']}"
        found = re.search(r"--port (\d+)", command)
        assert found is not None
        if found[1] in self.servers and found[1] not in self.started:
            _stop(self.servers.pop(found[1]))
        assert found[1] not in self.started, f"{command}\nthe line before it has this port"
        self.started.add(found[1])
        log = self.folder / f".server-{found[1]}"
        with log.open("wb") as file:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.cwd, env=self.environ,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.servers[found[1]] = server
        until = time.monotonic() + _START_S
        while f":{found[1]}" not in log.read_text(errors="replace"):
            failed = server.poll() is not None or time.monotonic() > until
            assert not failed, f"{command}\n{log.read_text(errors='replace')}"
            time.sleep(0.05)
        sys.stdout.write(f"$ {command} &\n{log.read_text(errors='replace')}")

    def _python(self, block: Block) -> None:
        code = self._changed(block, block.text)
        if self.python is None:
            self.python = subprocess.Popen(
                [sys.executable, "-c", _SHELL], cwd=self.cwd, env=self.environ, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self.python.stdin is not None and self.python.stdout is not None
        self.python.stdin.write(json.dumps([code, str(self.cwd), block.line]) + "\n")
        self.python.stdin.flush()
        answer = self.python.stdout.readline()
        output, failed = json.loads(answer) if answer else ("", "the process ended")
        assert not failed, f"{code}\n{output}\n{failed}"
        sys.stdout.write(f">>> {code}\n{output}")


_SHELL = """
import contextlib, io, json, os, sys, traceback
answers, space = os.fdopen(os.dup(1), "w"), {"__name__": "__main__"}
os.dup2(2, 1)  # what child processes print is no answer
sys.path.insert(0, "")
for line in sys.stdin:
    code, folder, number = json.loads(line)
    os.chdir(folder)
    printed, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile("\\n" * number + code, "the page", "exec"), space)
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failed]), file=answers, flush=True)
"""
"""A Python process that runs one block after the other in one namespace."""


def _without_comment(command: str) -> str:
    """The command without the remark behind it, which would hide appended words."""
    return re.sub(r"\s+# .*$", "", command)


def _free_ports() -> int:
    """The first of `_IN_A_ROW` free ports: `agentgym sites` takes those after its own as well.

    They are below the ports that the system gives to connections, which may take one meanwhile.
    """
    for _ in range(1000):
        first = random.randrange(10_000, 32_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + _IN_A_ROW):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            return first
    raise AssertionError(f"no {_IN_A_ROW} free ports in a row")


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20)
