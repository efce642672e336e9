"""The algorithm that docs/tutorials/custom.md shows is run as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms import Algorithm, make_algorithm, make_loss
from tests.train.ragged import Episode, PlayedTurn, Step

ROOT = Path(__file__).parents[2]
TEXTCRAFT = ROOT / "examples" / "train" / "textcraft"


def shown() -> tuple[str, str, list[str]]:
    """The file's name, its text, and the words of the command, from the page."""
    page = (ROOT / "docs" / "tutorials" / "custom.md").read_text()
    block = re.search(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    command = re.search(r"^agentgym train \S+ (algorithm=.*)$", page, re.MULTILINE)
    return block[1], block[2], command[1].split()


@pytest.mark.slow
def test_the_documented_algorithm_trains_a_step_by_the_documented_command(tmp_path):
    name, text, words = shown()
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("agentgym"), "train", TEXTCRAFT / "rl.yaml",
            f"model={TEXTCRAFT / 'warm_policy'}", "output_dir=run", "steps=1",
            "prompts_per_step=2", "num_generations=2", "eval.before=false",
            "eval.after=false", *words,
        ],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["algorithm"] == {"type": words[0].partition("=")[2], "scale": 0.5}
    (row,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["step"] == 1


def test_the_documented_algorithm_is_what_the_page_says(tmp_path, monkeypatch):
    name, text, _ = shown()
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    made = make_algorithm({"type": f"{name.removesuffix('.py')}:GroupBaseline", "scale": 0.5})
    assert made.loss.mean == "sequence"
    # Two groups of two; the last episode was lost, so its group's mean is 3.
    returns, taught = (1.0, 2.0, 3.0, 9.0), (True, True, True, False)
    episodes = [
        Episode([PlayedTurn(2, 3, 0.0), PlayedTurn(1, 2, reward)], tail=1, trainable=trainable)
        for reward, trainable in zip(returns, taught, strict=True)
    ]
    batch = Step(episodes, group_size=2).batch()
    advantages = made.advantages(batch)
    trained = batch.trained  # (B, T)
    assert advantages.shape == batch.loss_mask.shape and not advantages[~trained].any()
    for row, expected in enumerate((-0.25, 0.25, 0.0)):
        assert torch.all(advantages[row][trained[row]] == expected)


@dataclass(frozen=True)
class Unrelated:
    """It has what an algorithm has, and is none."""

    scale: float = 1.0

    def advantages(self, batch):
        return batch.loss_mask


@dataclass(frozen=True)
class Earlier(Algorithm):
    """It names a loss of TRL, as algorithms did before."""

    loss_type = "grpo"

    def advantages(self, batch):
        return batch.loss_mask


@dataclass(frozen=True)
class Odd(Algorithm):
    """Its loss is no LossSettings."""

    loss = {"mean": "sequence"}  # noqa: RUF012

    def advantages(self, batch):
        return batch.loss_mask


@dataclass(frozen=True)
class Empty(Algorithm):
    """It forgets the one thing it must define."""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Unrelated", r"Unrelated is not an algorithm; write `class Unrelated\(Algorithm\)`"),
        ("Empty", r"Empty does not define advantages\(self, batch\)"),
        ("Step", "Step is not an algorithm"),
        ("Earlier", r"Earlier has loss_type 'grpo', .* write `loss = LossSettings"),
    ],
)
def test_what_is_no_algorithm_is_rejected_before_a_step(name, told):
    with pytest.raises(BadRequest, match=told):
        make_algorithm(f"{__name__}:{name}")


def test_a_loss_that_is_none_and_a_setting_of_the_loss_at_the_wrong_place_are_rejected():
    setting = f"{__name__}:Odd"
    with pytest.raises(BadRequest, match=r"Odd\.loss must be a LossSettings"):
        make_loss(setting, make_algorithm(setting))
    with pytest.raises(BadRequest, match=r"write algorithm: \{type: grpo, loss: \{epsilon: 0.3\}"):
        make_algorithm({"type": "grpo", "epsilon": 0.3})
