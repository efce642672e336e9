"""The lock of a run folder: one process at a time writes to it, and a dead process blocks nobody.

The writer keeps an `flock` on `FOLDER/.lock` until it ends. The kernel grants it to one process and
releases it when that process ends, however it ends. The file contains its holder as JSON, for the
error message and because not every file system shows the `flock` of another host.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from agentgym_env.errors import BadRequest, FolderInUse
from agentgym_env.printable import one_line

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE: Final = ".lock"
_SETTLE_S: Final = 2.0
"""How long to look again at a lock whose holder is unknown or dead although it is in use: a process
that is about to write its name, or a child that is about to notice that its parent was killed."""
_PAUSE_S: Final = 0.05
_MAX_BYTES: Final = 4096

Flock = Literal["granted", "denied", "unsupported"]
Verdict = Literal["free", "busy", "unsettled"]
Identity = tuple[int, int]
"""Device and inode of a file."""


class Holder(msgspec.Struct, frozen=True):
    """The process that a lock file names."""

    host: str
    pid: int
    boot_id: str = ""
    process_start: int | None = None
    """Clock ticks from boot to the start of the process, which differ from those of a later process
    with the same pid; None where there is no /proc."""

    @classmethod
    def this_process(cls) -> Holder:
        """The current process."""
        pid = os.getpid()
        return cls(platform.node(), pid, _boot_id(), _process_start(pid))

    @property
    def is_here(self) -> bool:
        """Whether the process is one of this host."""
        return self.host == platform.node()

    def runs(self) -> bool | None:
        """Whether the process runs; None where that is not known from here."""
        if not self.is_here or self.process_start is None:
            return None
        return self.boot_id == _boot_id() and _process_start(self.pid) == self.process_start

    def __str__(self) -> str:
        return f"process {self.pid} on host {one_line(self.host, 100)}"


@contextmanager
def folder_lock(folder: Path, option: str) -> Iterator[None]:
    """Lock `folder` for the block. Creates it, and removes it again if it stays empty.

    Raises `FolderInUse` when another process has the lock; `option` is how to choose another
    folder.
    """
    if folder.is_file():  # one look: another process may remove the folder between two
        raise BadRequest(f"{folder} is a file; choose a folder with {option}")
    path = folder.absolute()
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    try:
        try:
            lock = _acquire(path / LOCK_FILE, folder, option)
        except OSError as error:
            raise BadRequest(
                f"cannot lock {folder} ({error}); choose a folder that you can write to with "
                f"{option}"
            ) from error
        try:
            yield
        finally:
            lock.release()
    finally:
        for made in missing:
            with suppress(OSError):
                made.rmdir()


def check_unlocked(folder: Path, option: str) -> None:
    """Raise `FolderInUse` when another process has the lock of `folder`; takes no lock itself."""
    try:
        fd = _open_existing(folder / LOCK_FILE)
    except OSError:
        return
    try:
        flock, holder = _flock(fd), _read(fd)
    finally:
        os.close(fd)
    if _verdict(flock, holder, is_new=False) == "busy":
        raise FolderInUse(_reason(flock, holder, folder, option))


def is_unused(folder: Path) -> bool:
    """Whether a folder is missing, or contains nothing but a lock and what a killed start leaves.

    That is an empty folder for episodes, and files that were not written to their end.
    """
    try:
        return all(_is_left_over(path) for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return not folder.is_file()


def _is_left_over(path: Path) -> bool:
    if path.name == "trajectories" and path.is_dir():
        return not any(path.iterdir())
    return path.name == LOCK_FILE or (path.suffix == ".partial" and path.is_file())


@dataclass(frozen=True, slots=True)
class _Lock:
    """A lock that this process has."""

    path: Path
    fd: int | None
    """None where there is no `flock`: there the existence of the file is the lock."""
    identity: Identity
    pid: int
    """The process that took it; a child that was forked since does not release it."""

    def release(self) -> None:
        """Remove the file, unless somebody replaced it, and then release the `flock`."""
        if os.getpid() != self.pid:
            return
        with suppress(OSError):
            if _identity(os.stat(self.path)) == self.identity:
                self.path.unlink()
        if self.fd is not None:
            os.close(self.fd)


def _acquire(path: Path, folder: Path, option: str) -> _Lock:
    deadline = time.monotonic() + _SETTLE_S
    created: Identity | None = None
    while True:
        is_last = time.monotonic() > deadline
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, is_new = _open(path)
        except (FileExistsError, FileNotFoundError):
            # Another process released its lock, and removed the folder at this moment.
            if is_last:
                raise
            time.sleep(_PAUSE_S)
            continue
        lock: _Lock | None = None
        try:
            identity = _identity(os.fstat(fd))
            created = identity if is_new else created
            flock, holder = _flock(fd), _read(fd)
            verdict = _verdict(flock, holder, is_new=identity == created)
            if verdict == "unsettled" and is_last:
                # Without a name and without an `flock`: left by a process that died early.
                verdict = "free" if flock == "granted" else "busy"
            if verdict == "busy":
                raise FolderInUse(_reason(flock, holder, folder, option))
            # A file that was removed meanwhile is no lock: others would create it anew.
            if verdict == "free" and _is_at(path, identity):
                _write(fd, Holder.this_process())
                lock = _Lock(path, fd if flock == "granted" else None, identity, os.getpid())
                return lock
        finally:
            if lock is None or lock.fd is None:
                os.close(fd)
        time.sleep(_PAUSE_S)


def _verdict(flock: Flock, holder: Holder | None, *, is_new: bool) -> Verdict:
    """Whether a lock file may be taken; `is_new` when this process created it."""
    if holder is not None:
        runs = holder.runs()
        # Without /proc the `flock` of a process of this host is all there is to go by.
        if runs or (runs is None and (flock != "granted" or not holder.is_here)):
            return "busy"
    if flock == "unsupported":
        return "free" if is_new else "busy"
    if flock == "granted" and (is_new or holder is not None):
        return "free"
    return "unsettled"


def _reason(flock: Flock, holder: Holder | None, folder: Path, option: str) -> str:
    """What is wrong with the lock, in one sentence, and what to do about it."""
    other = f"choose another folder with {option}"
    if holder is None:
        return f"{folder} is in use by another process; wait until it ends, or {other}"
    runs = holder.runs()
    if runs or (runs is None and flock == "denied"):
        return f"{folder} is in use by {holder}; wait until it ends or stop it, or {other}"
    if flock == "denied":
        return (
            f"{folder} is in use by a child of {holder}, which has ended; stop the child, or "
            f"{other}"
        )
    return (
        f"{folder} is locked by {holder}, which cannot be checked from here (host "
        f"{platform.node()}); if that process has ended, remove {folder / LOCK_FILE}; if it runs, "
        f"wait until it ends, or {other}"
    )


def _open(path: Path) -> tuple[int, bool]:
    """(descriptor, whether this call created the file)."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return _open_existing(path), False


def _open_existing(path: Path) -> int:
    """Open a lock file that is there; raises `OSError` for a link, which may lead anywhere."""
    return os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))


def _flock(fd: int) -> Flock:
    if fcntl is None:
        return "unsupported"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "denied"
    except OSError:
        return "unsupported"
    return "granted"


def _read(fd: int) -> Holder | None:
    """The holder; None where the file is empty or damaged."""
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        return msgspec.json.decode(os.read(fd, _MAX_BYTES), type=Holder)
    except msgspec.DecodeError:
        return None


def _write(fd: int, holder: Holder) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.ftruncate(fd, 0)
    os.write(fd, msgspec.json.encode(holder) + b"\n")
    os.fsync(fd)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _is_at(path: Path, identity: Identity) -> bool:
    try:
        return _identity(os.stat(path)) == identity
    except FileNotFoundError:
        return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process_start(pid: int) -> int | None:
    """Clock ticks from boot to a process's start; None where it has ended or cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain anything. After it: the third field, 19 before the start.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])
