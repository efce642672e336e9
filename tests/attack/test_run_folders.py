"""Run folders with files that somebody else wrote: the viewer shows the others, and names these."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish
from tests.viewer.viewing import as_line, episode, small_run, viewer

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
CAPABILITIES = "-dac_override,-dac_read_search"
AS_A_USER = ["setpriv", f"--bounding-set={CAPABILITIES}", f"--inh-caps={CAPABILITIES}"]
UNPRIVILEGED = AS_A_USER if os.geteuid() == 0 else []
SHOWN = """
import json, sys
from pathlib import Path
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.runs import Runs
index = EpisodeIndex(Path(sys.argv[2]))
runs = Runs([Path(sys.argv[1])], index)
indexer = Indexer(index)
indexer.follow({number: runs.paths[name] for name, number in runs.ids.items()})
while indexer.read_batches():
    pass
facts = {name: runs.facts(name) for name in runs.paths}
from agentgym_viewer.api import _json
_json(facts)
count = "SELECT COUNT(*) AS n FROM episodes WHERE run = ?"
episodes = {name: index.rows(count, (number,))[0]["n"] for name, number in runs.ids.items()}
missing = {name: fact["missing"] for name, fact in facts.items()}
print(json.dumps({"episodes": episodes, "missing": missing}))
"""
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
            async with http.get(f"{address}/api/{path}", timeout=aiohttp.ClientTimeout(60)) as got:
                text = await got.text()
                assert got.status == 200, (path, got.status, text[:500])
                assert SECRET not in text, path
                return json.loads(text)

        while (await answer("status"))["busy"]:
            await asyncio.sleep(0.05)
        shown = {run["name"]: run for run in await answer("runs")}
        assert set(shown) == {"good", "bad"} and not shown["good"]["missing"]
        said = "\n".join(shown["bad"]["missing"])
        for name in ("run.json", "summary.json", "report.json", "metrics.jsonl: line 1"):
            assert name in said, said
        for name in ("pipe", "folder", "link", "endless"):
            assert f"trajectories/{name}.jsonl is not a readable file of this folder" in said, said
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


def unreadable(path: Path) -> None:
    path.chmod(0)


def circle(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(path.name)


HIDDEN_EPISODE = as_line(episode(4, task="in a file without a name"))
BAD_PLACES = {
    "tokens that link to themselves": lambda run: circle(run / "tokens"),
    "trajectories that link to themselves": lambda run: circle(run / "trajectories"),
    "a lone surrogate in run.json": lambda run: (run / "run.json").write_text(
        '{"config": {"env": "\\ud800", "policies": ["\\udfff"]}}'
    ),
    "a file that may not be read": lambda run: unreadable(run / "trajectories/train.jsonl"),
    "metrics that may not be read": lambda run: unreadable(run / "metrics.jsonl"),
    "a folder that may not be read": lambda run: unreadable(run / "trajectories"),
    "a run that may not be read": unreadable,
    "a file without a name": lambda run: (run / "trajectories/.jsonl").write_bytes(HIDDEN_EPISODE),
}


def test_a_bad_place_hides_no_other_run(tmp_path):
    """As a user without root's rights, who may read everything."""
    runs = tmp_path / "runs"
    small_run(runs / "good")
    for case, make_bad in BAD_PLACES.items():
        bad = small_run(runs / case.replace(" ", "-")).path
        (bad / "metrics.jsonl").write_text('{"step": 1}\n')
        make_bad(bad)
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", SHOWN, str(runs), str(tmp_path / "i")],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    for place in (runs / "a-run-that-may-not-be-read", *runs.glob("*/trajectories")):
        if not place.is_symlink():
            place.chmod(0o700)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["episodes"]["good"] == GOOD and not shown["missing"]["good"]
    silent = ("a run that may not be read", "a lone surrogate in run.json")
    for case in BAD_PLACES:
        name = case.replace(" ", "-")
        assert (case == "a run that may not be read") == (name not in shown["missing"]), case
        assert shown["missing"].get(name, []) or case in silent, case


def test_an_export_does_not_follow_links_out_of_the_folder(tmp_path):
    run = small_run(tmp_path / "run").path
    (tmp_path / "outside.jsonl").write_bytes(as_line(episode(7, task=SECRET)))
    (run / "trajectories/link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    out = tmp_path / "out.jsonl"
    status, said = finish(Command("export", run, "--format", "messages", "--out", out))
    assert status == 0 and "link.jsonl is not a readable file" in " ".join(said.split()), said
    assert out.read_text().strip() and SECRET not in out.read_text()


def test_metrics_of_any_shape_are_read_or_named(runs):
    rows, broken = RunStore(runs / "bad").metrics()
    assert [row["step"] for row in rows] == [3, 4, 5]
    assert [one.line for one in broken] == [1, 2, 3]
