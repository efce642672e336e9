"""The viewer's server: who is let in, what is answered, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import aiohttp
import pytest

from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from tests.viewer.viewing import episode, place, small_run, viewer

COMMAND = "import typer; from agentgym_viewer.command import view; typer.run(view)"


async def asked(address, path, **headers):
    async with (
        aiohttp.ClientSession() as http,
        http.get(address + path, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


@pytest.fixture
async def served(tmp_path):
    """(address, run)"""
    run = small_run(tmp_path / "small")
    async with viewer(run.path, index=tmp_path / "i.sqlite") as address:
        await until_read(address, 9)
        yield address, run


async def until_read(address, count):
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{address}/api/trajectories?q=answer or") as answer:
                assert answer.status == 200
            async with http.get(f"{address}/api/trajectories") as answer:
                found = await answer.json()
            async with http.get(f"{address}/api/status") as answer:
                busy = (await answer.json())["busy"]
            if found["total"] == count and not busy:
                return


async def test_another_sites_name_is_not_answered(served):
    address, _ = served
    port = address.rpartition(":")[2]
    for host, status in {
        "evil.example": 421, f"evil.example:{port}": 421, "127.0.0.1.evil.example": 421,
        "": 421, f"localhost:{port}": 200, f"127.0.0.1:{port}": 200, f"[::1]:{port}": 200,
    }.items():  # fmt: skip
        got, _, body = await asked(address, "/api/runs", Host=host)
        assert got == status, host
        assert status == 200 or b"small" not in body


async def test_every_answer_forbids_what_the_page_does_not_need(served):
    address, _ = served
    for path in ("/", "/api/runs", "/static/app.js", "/nothing", "/api/episode/small/train/1"):
        _, headers, _ = await asked(address, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy, path
        assert "unsafe" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static//etc/passwd", "/static/index.html", "/api/episode/small/..%2frun/0",
        "/api/episode/..%2fsmall/train/0", "/api/episode/small/train/7", "/api/metrics?run=..",
        "/export/small/..%2f..%2frun/0.json", "/api/episode/small/train/99999999999999999999",
        "/api/episode/small/train/-1", "/api/episode/small/train/0/picture?turn=0",
    ],
)  # fmt: skip
async def test_no_path_leads_out_of_the_runs(path, served):
    status, _, body = await asked(served[0], path)
    assert status in (404, 400)
    assert b"root:" not in body and b"import" not in body and b"config" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(method, served):
    async with aiohttp.ClientSession() as http:
        for path in ("/", "/api/runs", "/api/episode/small/train/0"):
            async with http.request(method, served[0] + path) as answer:
                assert answer.status == 405


async def test_an_export_is_the_line_on_disk_and_lines_are_those_of_the_filter(served):
    address, run = served
    start = place(run, 3)
    _, headers, body = await asked(address, f"/export/small/train/{start}.json")
    lines = (run.path / "trajectories" / "train.jsonl").read_bytes().splitlines(keepends=True)
    assert body == lines[3]
    assert f'filename="train-{start}.json"' in headers["Content-Disposition"]
    _, _, body = await asked(address, "/export/trajectories.jsonl?file=train&step=1")
    assert body == b"".join(lines[4:8])
    status, headers, body = await asked(address, f"/export/small/train/{start}.html")
    assert status == 200 and b"answer 3 of 3" in body
    assert "attachment" in headers["Content-Disposition"]


async def test_a_seed_keeps_all_its_figures(served):
    _, _, body = await asked(served[0], "/api/episode/small/train/0")
    assert json.loads(body)["seed"] == str(2**63)


async def test_episodes_of_evaluation_show_the_tokens_that_they_hold(tmp_path):
    from agentgym_env.trajectory import Tokens

    run = small_run(tmp_path / "run")
    row = Tokens([0, 1], [4, 5, 2], [1, 1, 0], [-0.1, -0.2, 0.0], [7, 7, -1], [2])
    run.append_trajectories("mine", [episode(3, tokens=row, further_rows=[row])])
    async with viewer(run.path, index=tmp_path / "i.sqlite") as address:
        await until_read(address, 10)
        _, _, body = await asked(address, "/api/episode/run/mine/0/tokens")
    found = json.loads(body)
    assert [one["completion_ids"] for one in found["rows"]] == [[4, 5, 2]] * 2
    assert found["advantages"] is None
    assert found["pieces"] == {"0": "<s>", "1": "world", "2": " says", "4": "get", "5": " oak"}


async def test_a_world_that_a_file_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = RunStore.create(tmp_path / "run", {})
    run.append_trajectories("train", [episode(0, env="trap:Env")])
    async with viewer(run.path, index=tmp_path / "i.sqlite") as address:
        await until_read(address, 1)
        _, _, body = await asked(address, "/api/episode/run/train/0/pictures")
    assert json.loads(body) == {"count": 0, "why": ""}
    assert "trap" not in sys.modules


def test_the_command_serves_until_ctrl_c(tmp_path):
    run = small_run(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(run.path), "--port", "0"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert address is not None
        import requests

        assert requests.get(f"{address[0]}/api/runs", timeout=120).json()[0]["name"] == "run"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert (tmp_path / "agentgym-sdk" / "view.sqlite").is_file()
    finally:
        process.kill()
        process.communicate()


def test_the_viewer_loads_no_torch():
    code = (
        "import sys, agentgym_viewer.command, agentgym_env.token_store;"
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'trl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_made_up_run_is_a_run(tmp_path):
    found, broken = small_run(tmp_path / "run").trajectories("train")
    assert len(found) == 8 and not broken and isinstance(found[0], Trajectory)
