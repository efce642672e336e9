"""Make the quickstart's warm policy: a small model fitted to the expert's play on training tasks.

    python examples/textcraft_warm_start.py --out examples/train/textcraft/warm_policy

Half of a small policy's trouble with TextCraft is copying: it would rather learn the 444 training
goals by heart than read the recipes. So most demonstrations are shown with every item renamed,
the same item by the same made-up name throughout one episode. No held-out goal is ever shown as a
goal. The rows come in a fixed order, from single recipes to whole lists.

Later stages are careless: a share of the moves is aimless. They teach how to go on after a mistake,
and the last one leaves the policy a habit of making some, which is what RL then has to remove.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentgym_env.trajectory import Trajectory, Turn
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_servers.worlds.textcraft.recipes import recipe_book
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.training.sft import imitate

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_policy, small_tokenizer

ROWS_PER_STEP = 16
MAX_ROW_TOKENS = 768
CURRICULUM_SHARE = 0.35
"""Over this share of the rows the lists grow to full length and the goals to every depth."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the warm-up."""

    name: str
    steps: int
    learning_rate: float
    careless: float = 0.0
    """Share of moves that are aimless."""
    trains_aimless: bool = False
    """Whether the policy learns the aimless moves too, or only how to go on after them."""
    renamed: float = 0.8
    """Share of episodes under made-up names."""
    grows: bool = False
    """From single recipes to whole lists, from depth 1 to all."""


STAGES = (
    Stage("copy", 2000, 2e-3, grows=True),
    Stage("solve", 2200, 1.5e-3, careless=0.2, renamed=0.5),
    Stage("wander", 250, 5e-4, careless=0.5, trains_aimless=True, renamed=0.5),
)


def main() -> None:
    """Make demonstrations, fit the policy, save it with its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.monotonic()
    tokenizer = small_tokenizer(tokenizer_texts(demonstrations(STAGES[0], args.seed)))
    model = small_policy(tokenizer, seed=args.seed)
    fits = {
        stage.name: fit(model, tokenizer, stage, args.seed + number, args.out)
        for number, stage in enumerate(STAGES)
    }
    tokenizer.save_pretrained(args.out)
    (args.out / "training_args.bin").unlink(missing_ok=True)
    figures = {
        "command": f"python examples/textcraft_warm_start.py --seed {args.seed} --out {args.out}",
        "parameters": sum(p.numel() for p in model.parameters()),
        "stages": fits,
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__.partition("+")[0],
    }
    (args.out / "warm_start.json").write_text(json.dumps(figures, indent=1) + "\n")


def fit(model: Any, tokenizer: Any, stage: Stage, seed: int, out: Path) -> dict[str, float]:
    """Take the model through one stage, in place; the figures of the fit."""
    rows = rows_of(tokenizer, stage, seed)
    settings = SFTConfig(
        model=str(out),
        data=["the expert"],
        output_dir=str(out),
        learning_rate=stage.learning_rate,
        trainer_args={"warmup_steps": 50, "adam_beta2": 0.98, "weight_decay": 0.01},
        rows_per_step=ROWS_PER_STEP,
        shuffle=False,
        seed=seed,
        compute_dtype="bfloat16",
    )
    metrics = imitate(model, tokenizer, rows, settings)
    return {
        "rows": len(rows),
        "tokens": sum(len(row["input_ids"]) for row in rows),
        "train_loss": round(metrics["train_loss"], 4),
    }


def rows_of(tokenizer: Any, stage: Stage, seed: int) -> list[dict[str, list[int]]]:
    """A stage's rows of SFT, without those that are too long."""

    def is_trained(turn: Turn) -> bool:
        return stage.trains_aimless or not turn.info

    episode_tokenizer = EpisodeTokenizer(
        tokenizer, PolicyConfig(instruction=""), is_trained=is_trained
    )
    rows = [
        training_row(tokens)
        for episode in demonstrations(stage, seed)
        for tokens in episode_tokenizer.rows(episode)
    ]
    rows = [row for row in rows if len(row["input_ids"]) <= MAX_ROW_TOKENS]
    return by_length(rows, ROWS_PER_STEP, random.Random(seed))


def demonstrations(stage: Stage, seed: int) -> Iterator[Trajectory]:
    """A stage's demonstrations of training tasks."""
    rng = random.Random(seed)
    env = TextCraft()
    tasks = env.tasks.split("train")
    shallow = [task for task in tasks if env.tasks.category(task) == "depth 1"]
    renamer = Renamer(test=frozenset(env.tasks.split("test")))
    count = stage.steps * ROWS_PER_STEP
    for number in range(count):
        progress = min(1.0, number / (count * CURRICULUM_SHARE)) if stage.grows else 1.0
        every_depth = rng.random() < 0.25 + 0.75 * progress
        distractors = min(10, int(rng.random() * (2 + 10 * progress))) if stage.grows else 10
        task = rng.choice(tasks if every_depth else shallow)
        trajectory = demonstrate(env, task, rng, distractors, stage.careless)
        yield renamer(trajectory, rng) if rng.random() < stage.renamed else trajectory


def demonstrate(
    env: TextCraft, task: str, rng: random.Random, distractors: int, careless: float
) -> Trajectory:
    """The expert's episode, with all but `distractors` of the needless recipes left out.

    A share `careless` of the moves is any that is listed; the expert continues from there.
    """
    seed = rng.randrange(10**9)
    observation, _ = env.reset(seed=seed, options={"task": task})
    needed = {recipe.text for recipe in recipe_book().tree(task)}
    lines, left = [], distractors
    for line in observation.split("\n"):
        needless = line.startswith("craft ") and line not in needed
        left -= needless
        if not needless or left >= 0:
            lines.append(line)
    turns, ended = [], False
    while not ended:
        action = env.expert_action()
        if action is None:
            raise RuntimeError(f"the expert gave up on {task!r}")
        aimless = careless > 0 and rng.random() < careless
        if aimless:
            action = rng.choice(env.available_actions())
        answer, reward, ended, _, _ = env.step(action)
        turns.append(Turn(action, action, answer, reward, {"aimless": True} if aimless else {}))
    return Trajectory(
        env="agentgym/TextCraft-v0",
        task=task,
        seed=seed,
        instruction="",
        observation="\n".join(lines),
        turns=turns,
        outcome="success",
        policy="expert",
        horizon=len(turns),
        success=True,
    )


class Renamer:
    """Gives every item of an episode a made-up name; planks stay planks and wool stays wool."""

    def __init__(self, test: frozenset[str]) -> None:
        self._book = recipe_book()
        every = sorted(self._book.items)
        # Held-out goals' names are not used as names of other things either.
        self._names = [name for name in every if name not in test]
        self._words = sorted({word for name in self._names for word in name.split()})
        longest_first = sorted(every, key=len, reverse=True)
        alternatives = "|".join(re.escape(name) for name in longest_first)
        self._pattern = re.compile(f"(?<![a-z])({alternatives})(?![a-z])")

    def __call__(self, trajectory: Trajectory, rng: random.Random) -> Trajectory:
        """The same episode under other names."""
        names: dict[str, str] = {}

        def swap(match: re.Match[str]) -> str:
            name = match[1]
            if name not in names:
                names[name] = self._new_name(name, set(names.values()), rng)
            return names[name]

        def swapped(text: str) -> str:
            return self._pattern.sub(swap, text)

        observation = swapped(trajectory.observation)
        turns = [
            Turn(swapped(t.response), swapped(t.action), swapped(t.observation), t.reward, t.info)
            for t in trajectory.turns
        ]
        return Trajectory(
            env=trajectory.env,
            task=trajectory.task,
            seed=trajectory.seed,
            instruction="",
            observation=observation,
            turns=turns,
            outcome="success",
            policy="expert, renamed",
            horizon=trajectory.horizon,
            success=True,
        )

    def _new_name(self, name: str, taken: set[str], rng: random.Random) -> str:
        kind = self._book.tag_of.get(name)
        while True:
            if kind in self._book.tags:
                new = f"{' '.join(rng.sample(self._words, rng.choice([1, 1, 2])))} {kind}"
            elif rng.random() < 0.5:
                new = rng.choice(self._names)
            else:
                new = " ".join(rng.sample(self._words, rng.choice([1, 2, 2, 3])))
            looks_like_a_kind = new.split()[-1] in self._book.tags and kind not in self._book.tags
            if new not in taken and not looks_like_a_kind:
                return new


def by_length(
    rows: list[dict[str, list[int]]], size: int, rng: random.Random
) -> list[dict[str, list[int]]]:
    """Rows of like length beside each other within windows of 16 batches, to spare padding."""
    ordered: list[dict[str, list[int]]] = []
    window = 16 * size
    for start in range(0, len(rows), window):
        part = sorted(rows[start : start + window], key=lambda row: len(row["input_ids"]))
        batches = [part[i : i + size] for i in range(0, len(part), size)]
        rng.shuffle(batches)
        ordered += [row for batch in batches for row in batch]
    return ordered


def tokenizer_texts(episodes: Iterable[Trajectory]) -> Iterator[str]:
    """What the tokenizer learns its words from: training episodes and the chat's own words."""
    for demonstration in list(episodes)[-4000:]:
        yield "user\nassistant\nsystem\n" + demonstration.observation
        for turn in demonstration.turns:
            yield f"{turn.response}\n{turn.observation}"


if __name__ == "__main__":
    main()
