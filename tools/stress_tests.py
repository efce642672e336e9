"""Runs the default tests in random order beside busy processes, as on slow and other machines.

python tools/stress_tests.py                       # ten runs beside four busy processes
python tools/stress_tests.py --runs 3 --busy 2 --out record.json
python tools/stress_tests.py --at-once 3 --busy 0  # each beside the workers of two other runs
python tools/stress_tests.py --instructions        # a run for each kind of vector instructions

A run takes as long as `make test`, and beside four busy processes on two cores two to three times
as long. Its output is in runs/stress-SEED.log. Files are in random order, and the tests of each
file as well.
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
from concurrent.futures import ThreadPoolExecutor
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--runs", type=int, default=10, help="how many; 10 by default")
    add("--busy", type=int, default=4, help="processes that use a whole core each; 4 by default")
    add("--at-once", type=int, default=1, help="runs at the same time; 1 by default")
    add(
        "--instructions",
        action="store_true",
        help=f"instead of --runs, one for each of {len(INSTRUCTIONS)} kinds of vector instructions "
        "and threads: none or AVX2, one thread or two",
    )
    add("--out", type=Path, help="JSON record, written after each run")
    arguments = parser.parse_args()
    environments = INSTRUCTIONS if arguments.instructions else [{}] * arguments.runs
    record: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "commit": git("rev-parse", "--short", "HEAD"),
        "changed": bool(git("status", "--porcelain")),
        "python": platform.python_version(),
        "processor": processor(),
        "busy": arguments.busy,
        "at_once": arguments.at_once,
        "runs": [],
    }
    with busy_processes(arguments.busy), ThreadPoolExecutor(arguments.at_once) as threads:
        seeds = random.sample(range(10**6), len(environments))
        for run in threads.map(one_run, seeds, environments):
            print(json.dumps(run), flush=True)
            record["runs"].append(run)
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(run["status"] for run in record["runs"]))


def one_run(seed: int, environ: dict[str, str]) -> dict[str, Any]:
    """Run `make test` once, in the random order of the seed."""
    began = time.monotonic()
    flags = f"--random-order --random-order-seed={seed}"
    words = ["make", "test", f"TEST_FLAGS={flags}", *(f"{k}={v}" for k, v in environ.items())]
    log = ROOT / "runs" / f"stress-{seed}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            words, cwd=ROOT, env=os.environ | environ, stdout=file, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text()
    summary = re.findall(r"^=+ (.* in [0-9.]+s.*?) =+$", text, re.M)
    return {
        "seed": seed,
        "environ": environ,
        "status": process.returncode,
        "summary": summary[-1] if summary else text[-300:],
        "failures": sorted(set(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.M))),
        "seconds": round(time.monotonic() - began),
        "processor_seconds": round(used.ru_utime + used.ru_stime),
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
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
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
