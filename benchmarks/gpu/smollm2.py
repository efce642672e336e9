"""SmolLM2-135M learns TextCraft as in docs/pretrained.md: SFT, GRPO, and a control.

    python benchmarks/gpu/smollm2.py --out runs/gpu

The configs and the commands are those of examples/train/textcraft. `--start MODEL` begins after
SFT, with this policy. Every stage that has ended is kept: the same command with the same folder
resumes. It takes half an hour or more, so four calls or more. Evaluated on `paper`, horizon 30.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from check import BENCHMARKS, Check, steps_of

from agentgym_env.run_store import RunStore
from agentgym_train.config.read import read_config
from agentgym_train.rollout.policy_spec import parse_policy

RECIPE = BENCHMARKS.parent / "examples" / "train" / "textcraft"
EVAL_S = 150.0
"""Kept for an evaluation after RL."""
EXPERT = "--split paper_train --policy expert --mix-policy random --mix-rate 0.15 --horizon 40"
WORLDS = {
    "expert": ("variants:ReactiveTextCraft", "500"),
    "renamed": ("variants:RenamedTextCraft", "700"),
}
"""Environments with the seeds of their episodes; with the same seed they would be the same ones."""
ON_GPU = ["max_tokens_per_microbatch=24576", "trainer_args.torch_compile=false"]
TINY_ROWS = ["steps=2", "rows_per_step=2", "trainer_args.warmup_steps=0"]
TINY_RL = [
    "steps=2", "horizon=[2]", "prompts_per_step=2", "num_generations=2",
    "trainer_args.warmup_steps=0",
    "minibatches_per_rollout=1", "turn_max_tokens=8",
]  # fmt: skip


class Recipe:
    """The stages in their order; each returns whether it has ended."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.start = check.options["start"]
        """The policy that RL starts from; empty for the one that SFT makes here."""
        self.folder = (check.out / self._name()).resolve()
        self.folder.mkdir(exist_ok=True)
        self.config = read_config(RECIPE / "smollm2_rl.yaml")
        self.graphs = "cuda-graphs" in check.flags
        self.found: dict[str, Any] = (
            {"sft": {"model": self.start, "steps": 0}} if self.start else {}
        )

    def _name(self) -> str:
        """The name of the folder: what was made of another start, or in tiny, is not resumed."""
        weights = parse_policy(self.start).weights() if self.start else ""
        return "-".join(
            ["smollm2", *(["tiny"] if self.check.tiny else []), *([weights[:8]] if weights else [])]
        )

    def run(self) -> None:
        """Every stage that is left, as long as there is time."""
        sft = [
            *(["model=starter:textcraft/warm_policy"] if self.check.tiny else []),
            f"data=[{','.join(str(self.folder / name) for name in WORLDS)}]",
            *ON_GPU,
            *(TINY_ROWS if self.check.tiny else []),
        ]  # fmt: skip
        rl = [
            f"model={self.start or self.folder / 'sft' / 'model'}",
            *ON_GPU,
            f"engine={{type: hf, cuda_graphs: {str(self.graphs).lower()}}}",
            *(TINY_RL if self.check.tiny else []),
        ]  # fmt: skip
        imitation = [
            *(lambda name=name: self.collect(name) for name in WORLDS),
            lambda: self.train("sft", "smollm2_sft.yaml", [*sft, "eval.after=false"]),
        ]
        stages = [
            *([] if self.start else imitation),
            lambda: self.evaluate("sft"),
            lambda: self.train("rl", "smollm2_rl.yaml", rl, self.check.left - EVAL_S),
            lambda: self.evaluate("rl"),
            lambda: self.train("control", "smollm2_rl.yaml", [*rl, "learning_rate=0"]),
            lambda: self.evaluate("control"),
        ]
        for stage in stages:
            ended = stage()
            self.check.write(**self.found)
            if not ended:
                break

    def collect(self, name: str) -> bool:
        """Half of the expert's episodes."""
        env, seed = WORLDS[name]
        return self._agentgym(
            "collect", "--env", env, "--seed", seed, *shlex.split(EXPERT), "--n",
            "4" if self.check.tiny else "4000", "--out", str(self.folder / name),
        )  # fmt: skip

    def train(
        self, name: str, config: str, changes: list[str], limit_s: float | None = None
    ) -> bool:
        """A training stage, from its last checkpoint if it has begun."""
        run = self.folder / name
        if not (run / "model").is_dir():
            begun = (run / "run.json").is_file()
            words = ["--resume", str(run)] if begun else [config, *changes, f"output_dir={run}"]
            ended = self._agentgym("train", *words, limit_s=limit_s)
        else:
            ended = True
        if RunStore.open(run).metrics()[0]:
            self.found[name] = {"complete": ended, **steps_of(run)}
        # What an interrupted run of RL has learned is in its last checkpoint.
        return ended or (name == "rl" and self.model(name) is not None)

    def model(self, name: str) -> str | Path | None:
        """The policy of a stage: its model, or its last checkpoint."""
        if name == "sft" and self.start:
            return self.start
        run = self.folder / name
        checkpoints = sorted((run / "checkpoints").glob("*"), key=lambda path: path.stat().st_mtime)
        found = [path for path in (run / "model", *reversed(checkpoints)) if path.is_dir()]
        return found[0] if found else None

    def evaluate(self, name: str) -> bool:
        """Success on the paper's tasks, three episodes each."""
        # An interrupted run is evaluated again when it has taken further steps.
        config, stage = self.config, f"{name}-{self.found[name]['steps']}"
        table = self.folder / f"{stage}.json"
        if not table.is_file():
            sizes = ["--samples", "3", "--horizon", str(config.worlds[0].eval.horizon)]
            sizes += ["--turn-max-tokens", str(config.turn_max_tokens)]
            tiny = ["--per-category", "1", "--horizon", "2", "--turn-max-tokens", "8"]
            ended = self._agentgym(
                "eval", "--env", "textcraft", "--split", "paper",
                "--policy", f"{name}={self.model(name)}", "--compute-dtype", "bfloat16",
                "--action-format", config.action_format, "--instruction", str(config.instruction),
                "--max-tokens", str(config.max_tokens), "--concurrency", "150",
                *(["--engine", "{type: hf, cuda_graphs: true}"] if self.graphs else []),
                *(tiny if self.check.tiny else sizes),
                "--out", str(self.folder / f"eval_{stage}"), "--json", str(table),
            )  # fmt: skip
            if not ended:
                return False
        report = json.loads(table.read_text(encoding="utf-8"))["reports"][name]
        self.found[name]["paper"] = report
        return True

    def _agentgym(self, *words: str, limit_s: float | None = None) -> bool:
        return self.check.agentgym(*words, limit_s=limit_s, cwd=RECIPE)


def main() -> None:
    """Run the recipe; a stage that runs out of time is reported as incomplete."""
    start = ("start", "the policy that RL starts from, instead of one that SFT makes")
    graphs = ("cuda-graphs", "sample with CUDA graphs: see engine_throughput.py first")
    Recipe(Check("smollm2", __doc__, options=[start], flags=[graphs])).run()


if __name__ == "__main__":
    main()
