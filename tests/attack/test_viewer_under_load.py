"""The viewer on a hundred thousand episodes while a run writes on: its pages come at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from itertools import islice

import psutil
import pytest
import requests

from agentgym_env.run_store import RunStore
from tests.viewer.viewing import made_up
from waiting import until

pytestmark = pytest.mark.slow
COUNT = 100_000
BATCH = 200
PAGES = (
    "/", "/api/runs", "/api/status", "/api/trajectories", "/api/facets", "/api/metrics?run=run",
    "/api/trajectories?outcome=failure&sort=-reward", "/api/trajectories?q=%22oak%20wool%20bed%22",
    "/api/episode/run/train/0",
)  # fmt: skip
MAX_GROWTH_MIB = 200


def test_pages_open_while_a_hundred_thousand_episodes_are_read_and_more_are_written(tmp_path):
    store = RunStore.create(tmp_path / "run", {"config": {"env": "tests/Guess-v0"}})
    command = "from agentgym_env.cli import main; main()"
    viewer = subprocess.Popen(
        [sys.executable, "-c", command, "view", str(store.path), "--port", "0"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    ended = threading.Event()
    written = [0]

    def write() -> None:
        episodes = made_up(10**9, seed=1)
        while not ended.is_set():
            count = 5_000 if written[0] < COUNT else BATCH
            store.append_trajectories("train", islice(episodes, count))
            store.append_metrics({"step": written[0], "seconds": 1.0, "reward": 0.5})
            written[0] += count
            if written[0] > COUNT:
                time.sleep(0.1)  # a run writes a few episodes at a time

    writer = threading.Thread(target=write)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+", viewer.stdout.readline())[0]
        # The first pages load what the others need.
        for page in PAGES[:-1]:
            assert requests.get(address + page, timeout=60).status_code < 500
        process = psutil.Process(viewer.pid)
        idle_mib = process.memory_info().rss / 2**20
        writer.start()
        slowest: dict[str, float] = {}
        growth = 0.0

        def asked_all() -> bool:
            nonlocal growth
            for page in PAGES:
                began = time.monotonic()
                answer = requests.get(address + page, timeout=60)
                slowest[page] = max(slowest.get(page, 0.0), time.monotonic() - began)
                assert answer.status_code in (200, 404), (page, answer.text[:200])
            growth = max(growth, process.memory_info().rss / 2**20 - idle_mib)
            told = requests.get(f"{address}/api/trajectories", timeout=60).json()
            return told["total"] > COUNT + 10 * BATCH

        until(asked_all, "not every episode is shown")
    finally:
        ended.set()
        writer.join()
        viewer.kill()
        viewer.communicate()
    page = max(slowest, key=lambda page: slowest[page])
    sys.stdout.write(
        f"{written[0]:,} episodes, {COUNT:,} of them at once: {page} took {slowest[page]:.2f} s at "
        f"most, memory {growth:+.0f} MiB\n"
    )
    assert growth < MAX_GROWTH_MIB
