"""Run the trainer's tests with several versions of TRL.

    python tools/trl_versions.py                 # 1.12 to 1.16, about two minutes each
    python tools/trl_versions.py newest          # the newest of the package index

Each version is installed beside the environment and takes precedence there, so the environment
stays as it is. Prints a table and, with `--out FILE`, writes it as JSON. The status is 1 if a
version fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version as installed
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("1.12.0", "1.13.0", "1.14.2", "1.15.0", "1.16.0")
TESTS = (
    "test_update.py", "test_minibatches.py", "test_trainer.py", "test_critic.py",
    "test_imitation.py", "test_preference.py", "test_reference.py",
)  # fmt: skip
"""Steps of every method, and the comparisons with TRL's losses."""


def main() -> int:
    """Test each version and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    args = parser.parse_args()
    found = []
    for name in args.versions:
        row = tested(name)
        found.append(row)
        print(f"{row['trl']:<10}{row['passed']:>5} passed{row['failed']:>5} failed"
              f"{row['skipped']:>5} skipped{row['seconds']:>7.0f} s", flush=True)  # fmt: skip
    if args.out is not None:
        args.out.write_text(json.dumps(record(found), indent=2) + "\n", encoding="utf-8")
    return int(any(row["failed"] or not row["passed"] for row in found))


def tested(name: str) -> dict[str, object]:
    """The counts of the tests with a version; their output is shown if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = "trl" if name == "newest" else f"trl=={name}"
        install = ["install", "--quiet", "--no-deps", "--upgrade", "--target", folder, wanted]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True)
        path = [folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        began = time.monotonic()
        run = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow",
                *(str(ROOT / "tests" / "train" / test) for test in TESTS),
            ],
            cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )  # fmt: skip
        (info,) = Path(folder).glob("trl-*.dist-info")
    if run.returncode:
        print(run.stdout[-6000:], run.stderr[-2000:], file=sys.stderr)
    last = (run.stdout.strip().splitlines() or [""])[-1]
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return {
        "trl": info.name.removeprefix("trl-").removesuffix(".dist-info"),
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0) + int(not counts),
        "skipped": counts.get("skipped", 0),
        "seconds": round(time.monotonic() - began, 1),
    }


def record(rows: list[dict[str, object]]) -> dict[str, object]:
    """The table with what it was measured by."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    names = ("torch", "transformers", "accelerate", "peft", "datasets")
    return {
        "command": "python tools/trl_versions.py",
        "commit": commit.stdout.strip(),
        "versions": {name: installed(name) for name in names},
        "processor": platform.processor() or platform.machine(),
        "tests": list(TESTS),
        "results": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
