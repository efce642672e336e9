"""A pretrained model takes the whole road on a CPU: collect, SFT with LoRA, GRPO, evaluation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch
import yaml
from rich.console import Console

from agentgym_env.run_store import RunStore
from agentgym_train.cli.models import models
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.collect import CollectConfig, collect
from agentgym_train.models.folders import base_of, has_adapters
from agentgym_train.rollout.actors import draw_seed
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.smollm2 import NAME, needs_smollm2

TOLD = (
    "Answer with one command: get AMOUNT ITEM, or craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM"
)
"""Short, since every row begins with it."""
MOST_SECONDS = 600 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 1200
"""Of one core's time, which does not depend on what else the machine does.

A core without AVX-512 multiplies half as many numbers at a time.
"""
COMMON = {
    "env": "agentgym/TextCraft-v0", "instruction": TOLD, "turn_max_tokens": 32, "max_tokens": 1024,
    "lora": {"r": 16, "lora_alpha": 32}, "eval": {"before": False, "after": False},
}  # fmt: skip
HORIZON = 4


def played(model: Path | str, every: int = 1) -> float:
    """Success on the held-out goals of depth 1, of which a training run sees none, or on some."""
    with RolloutRunner(COMMON["env"]) as rollout_runner:
        tasks = rollout_runner.tasks
        goals = [task for task in tasks.split("test") if tasks.category(task) == "depth 1"][::every]
        starts = [EpisodeSpec(task, draw_seed("road", task)) for task in goals]
        policy = make_policy(
            PolicyConfig(
                model=str(model), instruction=TOLD, turn_max_tokens=COMMON["turn_max_tokens"],
                max_tokens=COMMON["max_tokens"],
            )
        )  # fmt: skip
        episodes = rollout_runner.collect(policy.actors(temperature=1.0), starts, HORIZON)
        rollout_runner.run(policy.engine.close())
    assert len(episodes) >= 20 // every and all(episode.turns for episode in episodes)
    return fmean(episode.success for episode in episodes)


def run(folder: Path, **values: object) -> RunStore:
    """A training run by the command line."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({**COMMON, "output_dir": str(folder), **values}))
    agentgym("train", file, cwd=folder.parent)
    return RunStore.open(folder)


def agentgym(*words: object, cwd: Path) -> None:
    """A command, in a process of its own."""
    command = "from agentgym_env.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, *map(str, words)],
        capture_output=True, text=True, timeout=3000, check=False, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_smollm2
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2_takes_the_whole_road(tmp_path, capsys):
    began = os.times()
    model = tmp_path / "smollm2"
    models(NAME, save=model)

    demonstrations = tmp_path / "expert"
    collect(
        CollectConfig(
            env=COMMON["env"], model="expert", output_dir=str(demonstrations), instruction=TOLD,
            n=1332, keep=EpisodeFilter(success=True, max_episode_tokens=190, tokenizer=str(model)),
        ),
        Console(quiet=True),
    )  # fmt: skip

    sft = run(
        tmp_path / "sft", method="sft", model=str(model), data=[str(demonstrations)], unique=False,
        rows_per_step=8, steps=14, learning_rate=1e-3, trainer_args={"warmup_steps": 3},
    )  # fmt: skip
    assert has_adapters(sft.path / "model")
    before, after = played(model, every=2), played(sft.path / "model")

    grpo = run(
        tmp_path / "grpo", model=str(sft.path / "model"), steps=2, prompts_per_step=2,
        num_generations=4, horizon=[HORIZON], learning_rate=1e-4,
    )  # fmt: skip
    rows, broken = grpo.metrics()
    assert broken == [] and [row["step"] for row in rows] == [1, 2]
    assert all(row["lost"] == 0 and row["sampled_tokens"] > 0 for row in rows)
    assert has_adapters(grpo.path / "model")
    assert Path(base_of(grpo.path / "model")).is_dir(), "what the adapters are of is there"

    agentgym(
        "eval", "--env", COMMON["env"], "--policy", grpo.path / "model", "--instruction", TOLD,
        "--horizon", HORIZON, "--per-category", 1, "--turn-max-tokens", COMMON["turn_max_tokens"],
        "--max-tokens", COMMON["max_tokens"], "--json", tmp_path / "eval.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "eval.json").stat().st_size > 0

    spent = sum(os.times()[:4]) - sum(began[:4])
    figures = f"success before {before:.2f}, after SFT {after:.2f}; {spent:.0f} s of one core"
    with capsys.disabled():
        Console().print(f"\nSmolLM2: {figures}")
    assert after >= before + 0.25, figures
    assert spent < MOST_SECONDS, figures
