"""Runs the default tests in random order beside busy processes, as on slow and other machines.

python tools/stress_tests.py                       # ten runs beside four busy processes
python tools/stress_tests.py --runs 3 --busy 2 --out record.json
python tools/stress_tests.py --instructions        # a run for each kind of vector instructions
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INSTRUCTIONS = [
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "THREADS": "1"},
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "THREADS": "2"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "THREADS": "1"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "THREADS": "2"},
]
"""What a processor offers PyTorch and oneDNN, and threads per process."""


def main() -> int:
    """Run the tests, report each run, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=4, help="processes that use a whole core each")
    parser.add_argument("--instructions", action="store_true", help="one run for each kind")
    parser.add_argument("--out", type=Path, help="JSON record")
    arguments = parser.parse_args()
    environments = INSTRUCTIONS if arguments.instructions else [{}] * arguments.runs
    record: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "commit": git("rev-parse", "--short", "HEAD"),
        "changed": bool(git("status", "--porcelain")),
        "python": platform.python_version(),
        "processor": processor(),
        "busy": arguments.busy,
        "runs": [],
    }
    with busy_processes(arguments.busy):
        for environ in environments:
            run = one_run(random.randrange(10**6), environ)
            print(json.dumps(run), flush=True)
            record["runs"].append(run)
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(run["status"] for run in record["runs"]))


def one_run(seed: int, environ: dict[str, str]) -> dict[str, Any]:
    """Run `make test` once, in the random order of the seed."""
    began, used = time.monotonic(), os.times()
    flags = f"--random-order --random-order-seed={seed}"
    done = subprocess.run(
        ["make", "test", f"TEST_FLAGS={flags}", *(f"{k}={v}" for k, v in environ.items())],
        cwd=ROOT, env=os.environ | environ, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    now = os.times()
    summary = re.findall(r"^=+ (.* in [0-9.]+s.*?) =+$", done.stdout, re.M)
    failures = sorted(set(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, re.M)))
    if done.returncode:
        (ROOT / f"stress-{seed}.log").write_text(done.stdout)
    return {
        "seed": seed,
        "environ": environ,
        "status": done.returncode,
        "summary": summary[-1] if summary else done.stdout[-300:],
        "failures": failures,
        "seconds": round(time.monotonic() - began),
        "processor_seconds": round(
            now.children_user + now.children_system - used.children_user - used.children_system
        ),
    }


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute all the time, beside what runs meanwhile."""
    processes = [multiprocessing.Process(target=compute, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def compute() -> None:
    """Use a whole core until killed."""
    while True:
        sum(range(10**6))


def processor() -> str:
    """The processor's name and those of its vector instructions that matter to PyTorch."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = sorted(set(re.findall(r"\b(avx2|avx512f|avx512_bf16|amx_tile)\b", text)))
    return f"{name[1] if name else platform.machine()}, {os.cpu_count()} cores, {' '.join(flags)}"


def git(*words: str) -> str:
    """What git prints."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
