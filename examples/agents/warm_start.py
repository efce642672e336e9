"""Teach the small policy of TextCraft to act by tool calls, for the agents in this folder.

    python examples/agents/warm_start.py --out runs/agents/warm

It imitates the expert, which continues after random actions, by calls of the tool `act`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train import AgentTrainer, SFTConfig
from agentgym_train.data.collect import CollectConfig, collect
from agentgym_train.models.loading import load_policy
from agentgym_train.models.setup import CHATML


class ActTextCraft(TextCraft):
    """TextCraft with one tool, which takes a command."""

    verbs = ()


def main() -> None:
    """Collect demonstrations, and fit the policy to them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=2400)
    args = parser.parse_args()
    console, start = Console(), args.out / "start"
    model, tokenizer = load_policy("starter:textcraft/warm_policy")
    tokenizer.chat_template = CHATML  # with tools
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    env = "examples.agents.warm_start:ActTextCraft"
    collect(
        CollectConfig(
            env=env, model="expert", mix_policy="random", mix_rate=0.15, n=args.episodes,
            horizon=16, output_dir=str(args.out / "expert"), instruction="",
        ),
        console,
    )  # fmt: skip
    settings = SFTConfig(
        env=env, model=str(start), data=[str(args.out / "expert")], instruction="",
        output_dir=str(args.out / "sft"), action_format="tools", success=False,
        learning_rate=1e-3, trainer_args={"warmup_steps": 10, "lr_scheduler_type": "cosine"},
        eval={"horizon": 8, "before": False}, rows_per_step=16, epochs=6, turn_max_tokens=96,
        max_tokens=1400,
    )  # fmt: skip
    with AgentTrainer(args=settings, console=console) as trainer:
        trainer.train()
    shutil.copytree(args.out / "sft" / "model", args.out / "model", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
