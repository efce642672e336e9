"""Memory over 200 steps of RL: what the run holds after 20, 100 and 200 of them.

    python benchmarks/gpu/memory.py

A leak shows as growth between the last two figures.
"""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
from check import Check, gpu_memory_mib, steps_of

from agentgym_env.run_store import RunStore


class Watch(threading.Thread):
    """Reads memory whenever a step has ended."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self._run = run
        self.over = threading.Event()
        self.by_step: dict[int, dict[str, float]] = {}

    def run(self) -> None:
        """Look every half second."""
        me = psutil.Process()
        while not self.over.wait(0.5):
            if not (self._run / "metrics.jsonl").is_file():
                continue
            rows, _ = RunStore.open(self._run).metrics()
            trained = [p.memory_info().rss for p in me.children(recursive=True) if p.is_running()]
            if rows and trained:
                self.by_step[len(rows)] = {
                    "gpu_mib": gpu_memory_mib(),
                    "largest_process_mib": max(trained) / 2**20,
                }


def main() -> None:
    """Run it and write what it held."""
    check = Check("memory", __doc__)
    run = check.out / "memory-run"
    steps = 8 if check.tiny else 200
    watch = Watch(run)
    watch.start()
    complete = check.agentgym(
        "train", "starter:textcraft/rl.yaml", f"output_dir={run}", f"steps={steps}",
        "prompts_per_step=4", "num_generations=4", "minibatches_per_rollout=1",
        "admission=all", "horizon=[4]", "eval.before=false", "eval.after=false",
    )  # fmt: skip
    watch.over.set()
    watch.join()
    seen = sorted(watch.by_step)
    shown = {step: watch.by_step[step] for step in seen if step in seen[:: max(1, len(seen) // 10)]}
    if seen:
        shown[seen[-1]] = watch.by_step[seen[-1]]
    check.write(complete=complete, **steps_of(run), memory_by_step=shown)


if __name__ == "__main__":
    main()
