"""Run folders with files that somebody else wrote: the viewer shows the others, and names these."""

from __future__ import annotations

import asyncio
import json
import os
import time

import aiohttp
import pytest

from agentgym_env.run_store import RunStore
from tests.train.viewing import as_line, episode, small_run, viewer

GOOD = 9
"""Episodes of the good run."""
NESTED = b"[" * 50_000 + b"]" * 50_000
BAD_LINES = {
    "a step beyond 64 bits": as_line(episode(1)).replace(b'"step":0', b'"step":' + b"9" * 30),
    "a horizon of 2**63": as_line(episode(2)).replace(b'"horizon":5', b'"horizon":%d' % 2**63),
    "50,000 brackets": b'{"task": "x", "turns": ' + NESTED + b"}\n",
    "50,000 brackets where nobody looks": b'{"task": "x", "info": ' + NESTED + b"}\n",
    "a lone surrogate": b'{"task": "\\ud800"}\n',
    "bytes that are not UTF-8": b'{"task": "\xff\xfe"}\n',
    "a number of 5,000 digits": b'{"task": "x", "score": ' + b"9" * 5000 + b"}\n",
    "other types": b'{"task": ["x"], "turns": {"a": 1}, "step": "first"}\n',
}
BAD_METRICS = [
    {"step": "one", "loss": 1}, {"step": None}, {"step": [1], "loss": 2},
    {"step": 3, "loss": "high", "reward": 10**30}, {"step": 4, "loss": [1], "reward": 2**63},
    {"step": 5, "loss": 0.5, "reward": 10**400},
]  # fmt: skip
SECRET = "a secret outside of the run's folder"


@pytest.fixture
def runs(tmp_path):
    """A folder with a good run and one in which everything is bad."""
    small_run(tmp_path / "runs" / "good")
    (tmp_path / "outside.jsonl").write_bytes(as_line(episode(7, task=SECRET)))
    (tmp_path / "outside.json").write_text(json.dumps({"config": {"env": SECRET}}))
    bad = RunStore.create(tmp_path / "runs" / "bad", {"config": {}}).path
    (bad / "run.json").unlink()
    (bad / "run.json").symlink_to(tmp_path / "outside.json")
    os.mkfifo(bad / "summary.json")
    (bad / "report.json").write_bytes(b'{"reports": ' + NESTED + b"}")
    (bad / "eval_before.json").write_text('{"success": 1' + "0" * 400 + "}")
    (bad / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in BAD_METRICS))
    trajectories = bad / "trajectories"
    (trajectories / "train.jsonl").write_bytes(
        b"".join(BAD_LINES.values()) + as_line(episode(3, task="readable"))
    )
    os.mkfifo(trajectories / "pipe.jsonl")
    (trajectories / "folder.jsonl").mkdir()
    (trajectories / "link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    (trajectories / "endless.jsonl").symlink_to("/dev/zero")
    odd = os.fsencode(trajectories) + b"/\xff\xfe.jsonl"
    with open(odd, "wb") as file:
        file.write(as_line(episode(5)))
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/\xff-run")
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/\xff-run/trajectories")
    (bad / "tokens").mkdir()
    (bad / "tokens" / "train.jsonl").write_bytes(b'{"episode": %d}\n' % 2**70 + NESTED + b"\n")
    os.mkfifo(bad / "tokens" / "pieces.json.gz")
    return tmp_path / "runs"


async def test_bad_files_hide_nothing_else_and_are_named(runs, tmp_path):
    async with (
        viewer(runs, index=tmp_path / "i.sqlite") as address,
        aiohttp.ClientSession() as http,
    ):

        async def answer(path: str) -> dict:
            async with http.get(f"{address}/api/{path}", timeout=aiohttp.ClientTimeout(10)) as got:
                text = await got.text()
                assert got.status == 200, (path, got.status, text[:500])
                assert SECRET not in text, path
                return json.loads(text)

        until = time.monotonic() + 30
        while (await answer("status"))["busy"] and time.monotonic() < until:
            await asyncio.sleep(0.05)
        shown = {run["name"]: run for run in await answer("runs")}
        assert set(shown) == {"good", "bad"} and not shown["good"]["missing"]
        said = "\n".join(shown["bad"]["missing"])
        for name in ("run.json", "summary.json", "report.json", "metrics.jsonl: line 1"):
            assert name in said, said
        for name in ("pipe", "folder", "link", "endless"):
            assert f"trajectories/{name}.jsonl is not a file of this folder" in said, said
        assert "name that is not UTF-8" in said
        assert "trajectories/train.jsonl: line 1 and" in said
        good = await answer("trajectories?run=good")
        assert good["total"] == GOOD
        found = await answer("trajectories?run=bad")
        assert "readable" in [row["task"] for row in found["rows"]]
        for row in (*good["rows"], *found["rows"]):
            shown_episode = await answer(f"episode/{row['run']}/{row['name']}/{row['start']}")
            assert shown_episode["task"] == row["task"]
        columns = (await answer("metrics?run=bad"))["columns"]
        assert columns["loss"][-1] == 0.5


def test_metrics_of_any_shape_are_read_or_named(runs):
    rows, broken = RunStore(runs / "bad").metrics()
    assert [row["step"] for row in rows] == [3, 4, 5]
    assert [one.line for one in broken] == [1, 2, 3]
