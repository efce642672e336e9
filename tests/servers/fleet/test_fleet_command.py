"""The commands where there is no cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (pip install 'agentgym-sdk[ray]')")


def test_a_cluster_that_was_killed_is_reported_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
    env = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    env.pop("RAY_ADDRESS", None)
    for words in (["status"], ["status", "--cluster", gone]):
        ended = subprocess.run(
            [Path(sys.executable).parent / "agentgym", *words],
            env=env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ended.returncode == 2
        assert f"{gone} does not answer" in ended.stderr
        assert "ray start --head" in ended.stderr
