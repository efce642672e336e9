"""Schemathesis against the OpenAPI document that a server serves."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_generated_calls_bring_no_server_error(run, tmp_path):
    served = run("worlds:Guess", "--port", "0")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "run",
            served.address() + "/openapi.json",
            "--max-examples", "800", "--seed", "1", "--phases", "coverage,fuzzing",
            # Whether a session, a task or a turn exists is nothing that a schema can know.
            "--exclude-checks", "positive_data_acceptance",
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    (cases,) = re.findall(r"(\d+) generated", done.stdout)
    assert int(cases) >= 5000
    assert served.stop() == 0
    assert "ERROR" not in served.errors and "Traceback" not in served.errors
