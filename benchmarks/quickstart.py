"""Run the quickstart with several seeds, and write its two records in results/.

    python benchmarks/quickstart.py --seeds 0,1,2,3,4
    python benchmarks/quickstart.py --seeds 0 --where "fresh clone"

Each run is `agentgym train starter:quickstart seed=SEED` in a process of its own, and is added to
the runs that are recorded. Its time is that of the whole command, evaluations and start included;
the processor time is that of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentgym_train.sampling_version import SAMPLING

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = "agentgym train starter:quickstart seed=SEED"
POLICIES = {
    "before training": "start policy",
    "as much more SFT": "as much more SFT",
    "after training": "RL",
    "expert": "expert",
}
"""Label in comparison.json -> name in tables."""


def main() -> int:
    """Run each seed and write the records after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--where", default="", help="what is special about these runs")
    args = parser.parse_args()
    path = RESULTS / "quickstart_runs.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    for seed in map(int, args.seeds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            run = one(seed, Path(folder) / "run")
        where = f", {args.where}" if args.where else ""
        rows.append({"name": f"seed {seed}{where}", **run})
        write(rows)
        sys.stdout.write(f"{json.dumps(rows[-1])}\n")
        sys.stdout.flush()
    return 0


def write(rows: list[dict[str, Any]]) -> None:
    """Write both records."""
    last = rows[-1]
    shared = {
        "command": f"{COMMAND} (python benchmarks/quickstart.py)",
        **{name: last[name] for name in ("commit", "date", "versions", "processor")},
        "sampling": SAMPLING,
    }
    first: dict[int, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row["seed"], row)
    seeds = sorted(first)
    summary = [
        {"name": name, "seeds": seeds, "success": [first[s]["success"][name] for s in seeds]}
        for name in POLICIES.values()
    ]
    above = {"key": "success", "against": "RL", "reverse": True, "digits": 2, "right": True}
    _write(
        "quickstart",
        {
            "title": "The quickstart: success on 60 held-out tasks", **shared,
            "columns": [
                {"title": "", "show": "value", "key": "name"},
                {"title": f"success, {len(seeds)} seeds", "show": "mean", "key": "success",
                 "digits": 2, "right": True},
                {"title": "RL above it", "show": "difference", **above},
            ],
            "rows": summary,
        },
    )  # fmt: skip
    runs = [
        {**row, **{f"success of {name}": row["success"][name] for name in POLICIES.values()}}
        for row in rows
    ]
    names = [
        *((name, f"success of {name}", 3) for name in POLICIES.values()),
        ("RL above SFT", "above_sft", 2), ("from", "above_sft_low", 2), ("to", "above_sft_high", 2),
        ("seconds", "seconds", 0), ("processor seconds", "processor_seconds", 0),
    ]  # fmt: skip
    _write(
        "quickstart_runs",
        {
            "title": "The quickstart: every run", **shared,
            "columns": [
                {"title": "", "show": "value", "key": "name"},
                *({"title": title, "show": "value", "key": key, "digits": digits, "right": True}
                  for title, key, digits in names),
            ],
            "rows": runs,
        },
    )  # fmt: skip


def _write(name: str, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


def one(seed: int, folder: Path) -> dict[str, Any]:
    """Train once and return the figures of the run."""
    words = ["train", "starter:quickstart", f"seed={seed}", f"output_dir={folder}"]
    code = "from agentgym_env.cli import main; main()"
    began, used = time.monotonic(), _processor_seconds()
    subprocess.run([sys.executable, "-c", code, *words], check=True)
    seconds, processor = time.monotonic() - began, _processor_seconds() - used
    compared = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    above = compared["as much more SFT"]["difference"]
    low, high = above["interval"]
    return {
        "seed": seed,
        "success": {name: compared[label]["success"] for label, name in POLICIES.items()},
        "intervals": {n: compared[label]["success_interval"] for label, n in POLICIES.items()},
        "above_sft": above["effect"],
        "above_sft_low": low,
        "above_sft_high": high,
        "by_floors": {
            when: {name: part["success"] for name, part in summary[when]["categories"].items()}
            for when in ("before", "after")
        },
        "env_steps": summary["env_steps"],
        "sampled_tokens": summary["sampled_tokens"],
        "train_seconds": summary["train_seconds"],
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": facts["git_revision"],
        "versions": facts["versions"],
        "processor": _processor(),
    }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    flags = [
        flag for flag in ("avx2", "avx512f", "amx_tile") if flag in facts.get("flags", "").split()
    ]
    name = facts.get("model name", platform.processor() or platform.machine())
    return f"{name}, {os.cpu_count()} cores, {' '.join(flags)}"


if __name__ == "__main__":
    sys.exit(main())
