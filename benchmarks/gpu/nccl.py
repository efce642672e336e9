"""NCCL with one rank: the calls that a distributed run makes, on the weights of a model.

    python benchmarks/gpu/nccl.py

One rank tells whether NCCL works here and what its calls cost at least, not how fast links are. On
a CPU, gloo takes its place.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from check import DEVICE, ON_GPU, Check, steps_of, synchronize
from prefix_reuse import the_model


def main() -> None:
    """Measure the collectives, then train one step under a launcher."""
    check = Check("nccl", __doc__)
    model = the_model("random" if check.tiny else "smollm2").to(DEVICE)
    weights = [p.detach().clone() for p in model.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if ON_GPU else "gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0,
            world_size=1,
        )  # fmt: skip
        calls = {
            "broadcast": lambda w: dist.broadcast(w, 0),
            "all_reduce": lambda w: dist.all_reduce(w),
            "all_gather": lambda w: dist.all_gather([torch.empty_like(w)], w),
        }
        seconds = {}
        for name, call in calls.items():
            for _ in range(2):  # the first one opens the communicator
                synchronize()
                began = time.perf_counter()
                for weight in weights:
                    call(weight)
                synchronize()
                seconds[name] = time.perf_counter() - began
        backend = dist.get_backend()
        same = all(torch.equal(w, p) for w, p in zip(weights, model.parameters(), strict=True))
        dist.destroy_process_group()
    run = check.out / "nccl-run"
    processes = "single_gpu" if ON_GPU else "cpu_two_processes"
    launched = check.agentgym(
        "train", "starter:textcraft/rl.yaml", f"output_dir={run}", "steps=2",
        "eval.before=false", "eval.after=false", "prompts_per_step=2", "num_generations=2",
        "minibatches_per_rollout=1",
        "--accelerate", f"starter:accelerate/{processes}.yaml",
    )  # fmt: skip
    check.write(
        backend=backend, weights_unchanged=same, seconds_for_all_weights=seconds,
        launched_run={"complete": launched, **steps_of(run)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
