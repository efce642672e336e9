"""One process writes to a run folder, and the lock of a dead one blocks nobody."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgym_env import run_lock
from agentgym_env.errors import BadRequest, FolderInUse
from agentgym_env.run_lock import LOCK_FILE, Holder, check_unlocked, folder_lock
from agentgym_env.run_store import RunStore
from processes import all_gone
from waiting import LIMIT_S

HOLD = """
import sys
from pathlib import Path
from agentgym_env.run_lock import folder_lock
with folder_lock(Path(sys.argv[1]), "--out"):
    {before}
    print("locked", flush=True)
    sys.stdin.readline()
"""
FORK = "import os, time; os.fork() or time.sleep(300)"

Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def holder_of() -> Iterator[Hold]:
    """Starts processes that have the lock of a folder until they are sent a line or killed."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, before: str = "pass") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(before=before), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        return process

    yield start
    for process in started:
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        process.wait()


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(LIMIT_S) == 0


def named_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / LOCK_FILE).read_text())
    return found


def leave_lock(folder: Path, **values: object) -> str:
    """A lock file that nobody has locked, with what this process would write changed."""
    folder.mkdir(exist_ok=True)
    own = Holder.this_process()
    named = {name: getattr(own, name) for name in ("host", "pid", "boot_id", "process_start")}
    (folder / LOCK_FILE).write_text(json.dumps({**named, **values}))
    return (folder / LOCK_FILE).read_text()


def test_a_second_process_is_rejected_with_pid_host_folder_and_what_to_do(tmp_path, holder_of):
    folder = tmp_path / "run"
    first = holder_of(folder)
    assert (named_in(folder)["host"], named_in(folder)["pid"]) == (platform.node(), first.pid)
    expected = (
        f"{folder} is in use by process {first.pid} on host {platform.node()}; wait until it ends "
        "or stop it, or choose another folder with --out"
    )
    with pytest.raises(FolderInUse) as error, folder_lock(folder, "--out"):
        pass
    assert str(error.value) == expected
    with pytest.raises(FolderInUse) as error:
        check_unlocked(folder, "--out")
    assert str(error.value) == expected
    assert named_in(folder)["pid"] == first.pid, "the lock is as it was"
    let_go(first)
    check_unlocked(folder, "--out")


def test_the_lock_ends_with_its_block_and_an_empty_folder_with_it(tmp_path):
    folder = tmp_path / "runs" / "mine"
    with folder_lock(folder, "--out"):
        assert named_in(folder)["pid"] == os.getpid()
    assert not (tmp_path / "runs").exists()
    with pytest.raises(KeyboardInterrupt), folder_lock(folder, "--out"):
        (folder / "run.json").write_text("{}")
        raise KeyboardInterrupt
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with folder_lock(empty, "--out"):
        pass
    assert empty.is_dir(), "it was there before"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["gone", "zombie"])
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder_of, end):
    folder = tmp_path / "run"
    first = holder_of(folder)
    first.send_signal(end)
    if end == signal.SIGTERM:
        first.wait()
    else:
        assert all_gone([psutil.Process(first.pid)])
    assert named_in(folder)["pid"] == first.pid, "it left its lock"
    check_unlocked(folder, "--out")
    with folder_lock(folder, "--out"):
        assert named_in(folder)["pid"] == os.getpid()
    assert not (folder / LOCK_FILE).exists()


def test_a_process_that_runs_keeps_its_lock_where_its_flock_is_not_seen(tmp_path):
    """As on a network file system without `flock` between processes."""
    before = leave_lock(tmp_path / "run")
    with pytest.raises(FolderInUse, match=f"process {os.getpid()} on host"):
        check_unlocked(tmp_path / "run", "--out")
    with pytest.raises(FolderInUse), folder_lock(tmp_path / "run", "--out"):
        pass
    assert (tmp_path / "run" / LOCK_FILE).read_text() == before


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the start is read from /proc")
@pytest.mark.parametrize("other", [{"process_start": 1}, {"boot_id": "another boot"}])
def test_a_recycled_pid_is_another_process(tmp_path, other):
    leave_lock(tmp_path / "run", **other)
    with folder_lock(tmp_path / "run", "--out"):
        assert named_in(tmp_path / "run") == json.loads(leave_lock(tmp_path / "expected"))


def test_a_lock_of_another_host_is_rejected_with_how_to_remove_it(tmp_path):
    folder = tmp_path / "run"
    before = leave_lock(folder, host="node-7\x1b[2J", pid=4242, process_start=1)
    with pytest.raises(FolderInUse) as error, folder_lock(folder, "--out"):
        pass
    assert str(error.value) == (
        f"{folder} is locked by process 4242 on host node-7\\x1b[2J, which cannot be checked from "
        f"here (host {platform.node()}); if that process has ended, remove {folder / LOCK_FILE}; "
        "if it runs, wait until it ends, or choose another folder with --out"
    )
    assert (folder / LOCK_FILE).read_text() == before
    (folder / LOCK_FILE).unlink()
    with folder_lock(folder, "--out"):
        assert named_in(folder)["host"] == platform.node()


@pytest.fixture
def settles_soon(monkeypatch):
    """Shortens the time after which what should not last counts as lasting."""
    monkeypatch.setattr(run_lock, "_SETTLE_S", 0.2)


@pytest.mark.parametrize("content", ["", '{"host": "a", "pi', "[]"])
def test_a_lock_without_a_name_is_taken_over(tmp_path, content, settles_soon):
    """A process that is killed between creating the file and writing leaves one."""
    (tmp_path / LOCK_FILE).write_text(content)
    with folder_lock(tmp_path, "--out"):
        assert named_in(tmp_path)["pid"] == os.getpid()


def test_a_child_that_outlives_its_killed_parent_still_has_the_folder(
    tmp_path, holder_of, settles_soon
):
    first = holder_of(tmp_path, before=FORK)
    (child,) = psutil.Process(first.pid).children()
    first.kill()
    first.wait()
    said = f"in use by a child of process {first.pid} .* has ended"
    with pytest.raises(FolderInUse, match=said), folder_lock(tmp_path, "--out"):
        pass
    child.kill()
    assert all_gone([child])
    with folder_lock(tmp_path, "--out"):
        assert named_in(tmp_path)["pid"] == os.getpid()


def test_a_lock_that_was_removed_by_hand_is_not_released_for_its_next_owner(tmp_path, holder_of):
    first = holder_of(tmp_path)
    (tmp_path / LOCK_FILE).unlink()
    second = holder_of(tmp_path)
    let_go(first)
    assert named_in(tmp_path)["pid"] == second.pid
    let_go(second)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_folder_or_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder, said in (
        (tmp_path / "file", "file is a file; choose a folder with --out"),
        (tmp_path / "file" / "run", "cannot lock .*; choose a folder that you can write to"),
    ):
        with pytest.raises(BadRequest, match=said), folder_lock(folder, "--out"):
            pass


@pytest.mark.parametrize("through_link", [False, True], ids=["folder", "link"])
def test_a_run_that_is_moved_aside_leaves_its_lock_at_the_path(tmp_path, through_link):
    real = tmp_path / "disk" / "run" if through_link else tmp_path / "run"
    RunStore.create(real, {"seed": 1})
    path = tmp_path / "run"
    if through_link:
        path.symlink_to(real)
    with folder_lock(path, "--out"):
        for seed in (2, 3):
            RunStore.create(path, {"seed": seed})
            with pytest.raises(FolderInUse, match=f"process {os.getpid()} on host"):
                check_unlocked(path, "--out")
    runs = {p.name: RunStore(p).read_json("run.json") for p in real.parent.glob("run*")}
    assert runs == {"run": {"seed": 3}, "run.old-1": {"seed": 1}, "run.old-2": {"seed": 2}}
    assert path.is_symlink() == through_link
    assert list(real.parent.rglob(".*")) == [], "no lock and no unfinished folder is left"


def test_a_folder_that_is_locked_while_a_run_is_moved_aside_is_not_shared(
    tmp_path, holder_of, monkeypatch
):
    """The moment between the renames: another process creates the folder and locks it."""
    RunStore.create(tmp_path / "run", {"seed": 1})
    others: list[subprocess.Popen[str]] = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if path.name.startswith(".run.new-"):
            others.append(holder_of(tmp_path / "run"))
        return rename(path, target)

    with folder_lock(tmp_path / "run", "--out"):
        monkeypatch.setattr(Path, "rename", renamed)
        with pytest.raises(FolderInUse, match="was locked by another process at this moment"):
            RunStore.create(tmp_path / "run", {"seed": 2})
    assert named_in(tmp_path / "run")["pid"] == others[0].pid
    assert RunStore(tmp_path / "run.old-1").read_json("run.json") == {"seed": 1}
    let_go(others[0])
    assert [path.name for path in tmp_path.iterdir()] == ["run.old-1"]


ROUNDS, PROCESSES, TURNS = 12, 3, 40


def _start_together(folder: Path, barrier: Any, winners: Any) -> None:
    """Each round: start at the same instant, and keep what was won until all have an answer."""
    for number in range(ROUNDS):
        barrier.wait(LIMIT_S)
        try:
            with folder_lock(folder / str(number), "--out"):
                winners.put(number)
                barrier.wait(LIMIT_S)
        except FolderInUse:
            barrier.wait(LIMIT_S)


def _take_turns(folder: Path) -> None:
    """Lock, write alone, release; as often as it is told, whatever the others do."""
    done = 0
    while done < TURNS:
        try:
            with folder_lock(folder / "run", "--out"):
                alone = os.open(folder / "alone", os.O_CREAT | os.O_EXCL)
                os.close(alone)
                os.unlink(folder / "alone")
                done += 1
        except FolderInUse:
            continue


def _compete(folder: Path, barrier: Any, winners: Any) -> None:
    # What settles late on a busy machine is looked at again until it has settled.
    run_lock._SETTLE_S = LIMIT_S
    _start_together(folder, barrier, winners)
    _take_turns(folder)


def test_of_processes_that_compete_for_a_lock_exactly_one_has_it(tmp_path):
    """Half of the folders have the lock of a dead process; the last is removed at each release."""
    for number in range(0, ROUNDS, 2):
        leave_lock(tmp_path / str(number), process_start=1)
    context = multiprocessing.get_context("spawn")
    barrier, winners = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=_compete, args=(tmp_path, barrier, winners), daemon=True)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    won = [winners.get(timeout=LIMIT_S) for _ in range(ROUNDS)]
    for process in processes:
        process.join(LIMIT_S)
        assert process.exitcode == 0, "two had the lock, or one waited for ever"
    assert sorted(won) == list(range(ROUNDS)) and winners.empty()
    assert list(tmp_path.rglob(LOCK_FILE)) == []


def test_a_folder_that_is_removed_while_it_is_looked_at_is_no_file(tmp_path, monkeypatch):
    """Another process releases its lock, and removes the empty folder with it."""
    folder = tmp_path / "run"
    folder.mkdir()
    stat = Path.stat

    def then_removed(path: Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if path == folder:
            monkeypatch.undo()
            folder.rmdir()
        return found

    monkeypatch.setattr(Path, "stat", then_removed)
    with folder_lock(folder, "--out"):
        assert named_in(folder)["pid"] == os.getpid()


def test_a_link_in_place_of_the_lock_is_not_written_through(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK_FILE).symlink_to(precious)
    with pytest.raises(BadRequest, match="cannot lock"), folder_lock(folder, "--out"):
        pass
    assert precious.read_text() == "mine" and (folder / LOCK_FILE).is_symlink()


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path):
    lock = run_lock._acquire(tmp_path / LOCK_FILE, tmp_path, "--out")
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert named_in(tmp_path)["pid"] == os.getpid()
    lock.release()
    assert not (tmp_path / LOCK_FILE).exists()
