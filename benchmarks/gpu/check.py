"""What the GPU checks share: options, the machine, a time limit, one JSON file each."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from agentgym_env.run_store import RunStore

BENCHMARKS = Path(__file__).resolve().parents[1]
for _folder in (BENCHMARKS, BENCHMARKS.parent):
    sys.path.insert(0, str(_folder))

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
LIMIT_S = 500.0
"""What a check may take, so that it ends within nine minutes."""
_TOLD = ("torch", "transformers", "trl", "accelerate", "vllm", "flash-attn", "kernels")


class Check:
    """One run of a check."""

    def __init__(
        self,
        name: str,
        doc: str | None,
        argv: Sequence[str] | None = None,
        options: Sequence[tuple[str, str]] = (),
        flags: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`options` and `flags` are names of further ones, with what they are for."""
        parser = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0])
        parser.add_argument(
            "--out", type=Path, default=Path("runs/gpu"), help="folder of NAME.json"
        )
        parser.add_argument("--tiny", action="store_true", help="small sizes, to test it on a CPU")
        for option, purpose in options:
            parser.add_argument(f"--{option}", default="", help=purpose)
        for flag, purpose in flags:
            parser.add_argument(f"--{flag}", action="store_true", help=purpose)
        args = parser.parse_args(argv)
        self.options: dict[str, str] = {
            option: getattr(args, option.replace("-", "_")) for option, _ in options
        }
        self.flags = {flag for flag, _ in flags if getattr(args, flag.replace("-", "_"))}
        self.name = name
        self.tiny: bool = args.tiny
        self.out: Path = args.out
        self.out.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        if not (ON_GPU or self.tiny):
            parser.error("there is no GPU here; --tiny tests the script on a CPU")

    @property
    def left(self) -> float:
        """Seconds until the check has to end."""
        return LIMIT_S - (time.monotonic() - self._began)

    def write(self, **figures: Any) -> None:
        """Keep the figures, and show them."""
        found = {
            "check": self.name,
            "tiny": self.tiny,
            "machine": machine(),
            "seconds": round(time.monotonic() - self._began, 1),
            **figures,
        }
        path = self.out / f"{self.name}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(found, indent=1))

    def agentgym(self, *words: str, limit_s: float | None = None, cwd: Path | None = None) -> bool:
        """Run a command; whether it ended by itself. After the limit, Ctrl-C ends it in order."""
        command = "from agentgym_env.cli import main; main()"
        limit = min(self.left, limit_s or self.left)
        with subprocess.Popen([sys.executable, "-c", command, *words], cwd=cwd) as process:
            try:
                code = process.wait(max(1.0, limit))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait()
                return False
        if code != 0:
            raise SystemExit(f"agentgym {' '.join(words)} ended with {code}")
        return True


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {"python": platform.python_version(), "device": "CPU"}
    if ON_GPU:
        memory = torch.cuda.get_device_properties(0).total_memory
        found |= {"device": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count()}
        found |= {"cuda": torch.version.cuda, "gpu_memory_gib": round(memory / 2**30, 1)}
    for package in _TOLD:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            found[package] = None
    return found


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if ON_GPU:
        torch.cuda.synchronize()


def gpu_memory_mib() -> float:
    """Memory in use on the first GPU by all processes; 0 without one."""
    if not ON_GPU:
        return 0.0
    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 2**20


def steps_of(run: Path) -> dict[str, Any]:
    """What the steps of a run cost, the first left out where there are more."""
    rows, _ = RunStore.open(run).metrics()
    later = rows[1:] or rows
    return {
        "steps": len(rows),
        "seconds_per_step": fmean(row["seconds"] for row in later) if rows else None,
        "rollout_seconds_per_step": (
            fmean(row["rollout_seconds"] for row in later)
            if rows and "rollout_seconds" in rows[0]
            else None
        ),
        "env_steps": int(sum(row.get("env_steps", 0) for row in rows)),
        "sampled_tokens": int(sum(row.get("sampled_tokens", 0) for row in rows)),
    }


def success_of(run: Path) -> dict[str, Any]:
    """Success before and after; None where the run did not get so far."""
    summary = RunStore.open(run).read_json("summary.json") or {}
    return {name: summary.get(name) for name in ("success_before", "success_after")}
