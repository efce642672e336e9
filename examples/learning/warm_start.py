"""Make the warm policy of the comparison: a tiny model fitted to half-competent play.

    python examples/learning/warm_start.py --out examples/learning/warm_policy

It learns to read the world from the expert first. In the second stage every other move is any of
the world's actions, and it learns those too: a policy that knows what to do and does it half of
the time. No held-out task is ever shown. `--env` names another world whose actions are listed; one
without an expert is only wandered in.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from agentgym_env import TextEnv, env_class
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.training.sft import imitate

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.small_models import small_policy, small_tokenizer

ROWS_PER_STEP = 16


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the warm-up."""

    name: str
    steps: int
    learning_rate: float
    careless: float
    """Share of the demonstrated moves that are any of the world's."""
    turns: int
    """Most of an episode."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the policy is shown."""

    env_id: str
    stages: tuple[Stage, ...]


def main() -> None:
    """Make demonstrations, fit the policy, save it with its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", default="courier:Courier")
    parser.add_argument("--turns", type=int, default=12, help="most of a demonstration")
    parser.add_argument("--read-turns", type=int, help="most in the first stage; default: as many")
    parser.add_argument("--read", type=int, default=100, help="steps of the first stage, or 0")
    parser.add_argument("--wander", type=int, default=100, help="steps of the second stage")
    parser.add_argument("--careless", type=float, default=0.5, help="in the second stage")
    parser.add_argument("--vocab-size", type=int, default=320, help="most of the tokenizer")
    args = parser.parse_args()
    quiet_libraries()
    began = time.monotonic()
    stages = (
        Stage("read", args.read, 5e-3, 0.0, args.read_turns or args.turns),
        Stage("wander", args.wander, 2e-3, args.careless, args.turns),
    )
    shown = Shown(args.env, tuple(stage for stage in stages if stage.steps))
    words = texts(demonstrations(shown, shown.stages[-1], args.seed))
    tokenizer = small_tokenizer(words, vocab_size=args.vocab_size)
    model = new_model(tokenizer, args.seed)
    fits = {
        stage.name: fit(model, tokenizer, shown, stage, args.seed + number, args.out)
        for number, stage in enumerate(shown.stages)
    }
    tokenizer.save_pretrained(args.out)
    (args.out / "training_args.bin").unlink(missing_ok=True)
    figures = {
        "command": " ".join(["python", *sys.argv]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "stages": fits,
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__.partition("+")[0],
    }
    (args.out / "warm_start.json").write_text(json.dumps(figures, indent=1) + "\n")


def new_model(tokenizer: Any, seed: int) -> Qwen3ForCausalLM:
    """Two layers of width 64, with transformers' own initial weights.

    Those of `small_policy` are made for copying, which this world does not ask for.
    """
    config = small_policy(tokenizer, layers=2, hidden=64, heads=2, max_length=1024).config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def fit(
    model: Any, tokenizer: Any, shown: Shown, stage: Stage, seed: int, out: Path
) -> dict[str, float]:
    """Take the model through one stage, in place; the figures of the fit."""
    episode_tokenizer = EpisodeTokenizer(tokenizer, PolicyConfig(instruction=""))
    rows = [
        training_row(tokens)
        for episode in demonstrations(shown, stage, seed)
        for tokens in episode_tokenizer.rows(episode)
    ]
    settings = SFTConfig(
        model=str(out),
        data=["half-competent play"],
        output_dir=str(out),
        learning_rate=stage.learning_rate,
        trainer_args={"warmup_steps": stage.steps // 5, "adam_beta2": 0.98, "weight_decay": 0.01},
        rows_per_step=ROWS_PER_STEP,
        seed=seed,
    )
    metrics = imitate(model, tokenizer, rows, settings)
    return {"rows": len(rows), "train_loss": round(metrics["train_loss"], 4)}


def demonstrations(shown: Shown, stage: Stage, seed: int) -> Iterator[Trajectory]:
    """A stage's episodes, all of training tasks."""
    rng = random.Random(seed)
    env = env_class(shown.env_id)()
    tasks = env.tasks.split("train")
    for number in range(stage.steps * ROWS_PER_STEP):
        task = tasks[int(rng.random() * len(tasks))]
        yield demonstrate(env, shown.env_id, task, number, rng, stage)


def demonstrate(
    env: TextEnv, env_id: str, task: str, seed: int, rng: random.Random, stage: Stage
) -> Trajectory:
    """One episode in which a share of the moves is any that the world lists."""
    observation, info = env.reset(seed=seed, options={"task": task})
    turns, ended = [], False
    while not ended and len(turns) < stage.turns:
        choices = env.available_actions() or [""]
        action = (env.expert_action() if env.has_expert() else None) or ""
        if rng.random() < stage.careless:
            action = choices[int(rng.random() * len(choices))]
        answer, reward, ended, _, info = env.step(action)
        turns.append(Turn(action, action, answer, reward))
    return Trajectory(
        env=env_id,
        task=task,
        seed=seed,
        instruction="",
        observation=observation,
        turns=turns,
        outcome=("success" if info["success"] else "failure") if ended else "horizon",
        policy=f"expert, careless {stage.careless}",
        horizon=stage.turns,
        success=bool(info["success"]),
    )


def texts(episodes: Iterator[Trajectory]) -> Iterator[str]:
    """What the tokenizer learns its words from."""
    for episode in islice(episodes, 500):
        yield "user\nassistant\nsystem\n" + episode.observation
        for turn in episode.turns:
            yield f"{turn.response}\n{turn.observation}"


if __name__ == "__main__":
    main()
