"""The search quickstart, from its config to its metrics, with fewer and smaller steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_search_quickstart_takes_its_steps(tmp_path):
    values = yaml.safe_load((ROOT / "examples/train/search/small.yaml").read_text())
    assert values["horizon"]["turns"] == [4, 6, 8]
    changes = {
        "output_dir": str(tmp_path / "run"), "steps": 2, "prompts_per_step": 2,
        "num_generations": 2, "turn_max_tokens": 8, "horizon": {**values["horizon"], "every": 1},
        "eval": {"before": False, "after": False}, "trainer_args": {"warmup_steps": 0},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, **changes}))
    status, output = finish(Command("train", tmp_path / "config.yaml"))
    assert status == 0, output
    store = RunStore.open(tmp_path / "run")
    rows, broken = store.metrics()
    assert [row["step"] for row in rows] == [1, 2] and broken == []
    episodes, broken = store.trajectories("train")
    assert len(episodes) == 8 and broken == []
    for episode in episodes:
        assert episode.env == "agentgym/Search-v0" and "<search>" in episode.instruction
        assert episode.observation.startswith("Question: ")
        assert all("neither a search nor an answer" in turn.observation for turn in episode.turns)
