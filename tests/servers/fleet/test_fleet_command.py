"""The commands where there is no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosting import nobody

pytest.importorskip("ray", reason="Ray is not installed (pip install 'agentgym-sdk[ray]')")


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_cluster_that_was_killed_is_reported(tmp_path: Path, named: bool) -> None:
    with nobody() as gone:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
        env = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
        env.pop("RAY_ADDRESS", None)
        words = ["status", "--cluster", gone] if named else ["status"]
        ended = subprocess.run(
            [Path(sys.executable).parent / "agentgym", *words],
            env=env, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert ended.returncode == 2
    assert f"{gone} does not answer" in ended.stderr
    assert "ray start --head" in ended.stderr
