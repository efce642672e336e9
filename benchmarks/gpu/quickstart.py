"""The quickstart on a GPU: success before and after, and seconds a step.

python benchmarks/gpu/quickstart.py
"""

from __future__ import annotations

from check import Check, gpu_memory_mib, steps_of, success_of

TINY = ["steps=2", "prompts_per_step=2", "num_generations=2", "eval.samples=1", "eval.horizon=1",
        "minibatches_per_rollout=1"]  # fmt: skip


def main() -> None:
    """Run it and write what it did."""
    check = Check("quickstart", __doc__)
    run = check.out / "quickstart-run"
    words = ["train", "starter:textcraft/rl.yaml", f"output_dir={run}", "seed=0"]
    complete = check.agentgym(*words, *(TINY if check.tiny else []))
    check.write(
        complete=complete, **success_of(run), **steps_of(run), gpu_memory_after_mib=gpu_memory_mib()
    )


if __name__ == "__main__":
    main()
