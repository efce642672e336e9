"""Every command that takes an environment suggests the ids that are similar to an unknown one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym_train.config.read import read_method_config
from commands import agentgym

EPISODE = {
    "env": "agentgym/TextCaft-v0", "task": "t", "seed": 0, "instruction": "", "observation": "",
    "turns": [], "outcome": "failure", "policy": "p", "horizon": 1, "success": False, "score": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        "check textcaft", "play TextCaft", "serve agentgym/TextCaft-v0", "bench textcaft",
        "eval --env textcaft --policy random", "collect --env textcaft --policy expert --out o",
        "train rl.yaml", "train sft.yaml", "train evolve.yaml", "replay episodes.jsonl",
    ],
)  # fmt: skip
def test_a_similar_environment_is_suggested(tmp_path, words):
    common = "model: nowhere/model\noutput_dir: runs/x\n"
    for method in ("rl", "sft", "evolve"):
        data = "data: [episodes.jsonl]\n" if method != "rl" else ""
        (tmp_path / f"{method}.yaml").write_text(
            f"method: {method}\n{common}{data}env: agentgym/TextCaft-v0\n"
        )
    (tmp_path / "episodes.jsonl").write_text(json.dumps(EPISODE) + "\n")
    ran = agentgym(*words.split(), folder=tmp_path)
    assert "did you mean agentgym/TextCraft-v0?" in ran.err
    assert (ran.status, len(ran.err.splitlines())) == (2, 1), ran.err


def test_a_horizon_is_one_number_or_a_list(tmp_path):
    file = tmp_path / "rl.yaml"
    file.write_text("model: m\nenv: agentgym/TextCraft-v0\noutput_dir: x\nhorizon: 8\n")
    assert read_method_config(Path(file)).horizon == [8]
    assert read_method_config(Path(file), ["horizon=9"]).horizon == [9]
    assert read_method_config(Path(file), ["horizon=[4, 6]"]).horizon == [4, 6]
