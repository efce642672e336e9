"""A run that was killed after its last step is only evaluated; nothing more is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from tests.train import test_imitation_run, test_run
from tests.train.command import Command, finish
from tests.train.small import merged, save_tiny_policy
from tests.train.test_run import wait_for

pytestmark = pytest.mark.slow
TEXTCRAFT = "agentgym/TextCraft-v0"
STEPS, EPISODES = 3, 100
EVALUATED = {"env": TEXTCRAFT, "eval": {"horizon": 8, "before": False}, "steps": STEPS}
"""An evaluation that takes seconds, so that a process can be killed in it."""
# Entropy has a gradient whatever is played, so one step more is other weights.
RL = {**EVALUATED, "save_every": 2, "entropy_bonus": 0.01}
CHANGES = {
    "rl, all the time": {**RL, "max_policy_age": 1},
    "rl, lora": {**RL, "lora": {"r": 4}},
    "dpo": EVALUATED,
}


def write(folder: Path, kind: str, changes: dict[str, Any] | None = None) -> Path:
    changes = CHANGES[kind] if changes is None else changes
    if kind in ("sft", "dpo"):
        return test_imitation_run.write(folder, kind, **changes)
    return test_run.write_config(folder, **changes)


def write_evolve(folder: Path) -> Path:
    values = {
        "method": "evolve",
        "model": save_tiny_policy(folder / "policy"),
        "envs": [{"env": TEXTCRAFT, "horizon": 2, "tasks": 4, "min_reward": 0.0}],
        "output_dir": str(folder / "run"),
        "instruction": "",
        "iterations": 1,
        "samples": 2,
        "per_task": 2,
        "turn_max_tokens": 6,
        "max_tokens": 900,
        "rows_per_step": 4,
        "learning_rate": 5e-3,
        "save_every": 1,
        "eval": {"horizon": 8, "before": False},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def killed_when(marker: Path, config: Path) -> None:
    """Start a run and kill -9 it as soon as a file is there."""
    process = Command("train", config)
    wait_for(marker.exists, process)
    process.kill()
    process.communicate()


def steps_of(run: Path) -> list[int]:
    """The steps of all rows, in the order of writing."""
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, bytes]:
    """What a run's model is, tensor by tensor."""
    found: dict[str, bytes] = {}
    for path in (run / "model").glob("*.safetensors"):
        found |= {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
    assert found
    return found


@pytest.mark.parametrize("kind", CHANGES)
def test_a_run_killed_in_its_final_evaluation_is_evaluated_and_not_trained(tmp_path, kind):
    run = tmp_path / "run"
    # The last file of the model; then the evaluation begins.
    killed_when(run / "model" / "training_args.bin", write(tmp_path, kind))
    assert not (run / "eval_after.json").exists(), "it was killed in time"
    assert (run / "checkpoints" / f"checkpoint-{STEPS}").is_dir()
    unbroken, rows = weights(run), (run / "metrics.jsonl").read_bytes()
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    assert weights(run) == unbroken, "to the last bit what was saved before the evaluation"
    assert (run / "metrics.jsonl").read_bytes() == rows
    assert steps_of(run) == [1, 2, 3]
    assert json.loads((run / "eval_after.json").read_text())["episodes"] == EPISODES
    assert len(RunStore.open(run).trajectories("eval_after")[0]) == EPISODES
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == STEPS and summary["after"]["episodes"] == EPISODES
    assert "All 3 steps are already complete." in output


def test_a_finished_run_is_left_as_it_is_and_without_its_summary_only_that_is_written(tmp_path):
    config = test_run.write_config(tmp_path, **merged(RL, {"eval": {"after": False}}))
    run = tmp_path / "run"
    status, output = finish(Command("train", config))
    assert status == 0, output
    unbroken, summary = weights(run), (run / "summary.json").read_bytes()
    for told in ("is complete", "All 3 steps are already complete."):
        status, output = finish(Command("train", "--resume", run))
        assert status == 0, output
        assert weights(run) == unbroken and steps_of(run) == [1, 2, 3]
        assert (run / "summary.json").read_bytes() == summary
        assert told in output
        (run / "summary.json").unlink()


LONGER = {**CHANGES, "sft": EVALUATED, "rl": RL}


@pytest.mark.parametrize("kind", LONGER)
def test_a_finished_run_that_is_trained_further_is_the_longer_run(tmp_path, kind):
    # Warmed up and constant: as long as it is, a step has the same learning rate.
    fixed = {**LONGER[kind], "trainer_args": {"lr_scheduler_type": "constant_with_warmup"}}
    long, run = tmp_path / "long", tmp_path / "run"
    config = write(tmp_path, kind, fixed)
    for words in (
        ("train", config, "steps=5", f"output_dir={long}"),
        ("train", config),
        ("train", "--resume", run, "steps=5"),
    ):
        status, output = finish(Command(*words))
        assert status == 0, output
    if kind == "rl, all the time":
        # At its last step a run samples nothing ahead: the next rollout is of newer weights.
        assert weights(run) != weights(long)
        return
    assert weights(run) == weights(long)
    assert steps_of(run) == [1, 2, 3, 4, 5]
    for name in ("eval_after.json", "summary.json"):
        found, kept = (json.loads((run / at / name).read_text()) for at in ("", "step-3"))
        assert found != kept, "of the longer run, and of the shorter one"
    evaluated = [json.loads((x / "eval_after.json").read_text()) for x in (run, long)]
    assert evaluated[0]["success"] == evaluated[1]["success"]
    assert json.loads((run / "summary.json").read_text())["steps"] == 5
    assert yaml.safe_load((run / "config.yaml").read_text())["steps"] == 5
    status, output = finish(Command("train", "--resume", run))
    assert status == 0 and "is complete" in output
    before = (run / "run.json").read_bytes()
    status, output = finish(Command("train", "--resume", run, "steps=4"))
    assert status != 0 and "is trained to step 5; steps is at least that, got 4" in output
    status, output = finish(Command("train", "--resume", run, "steps=6", "learning_rate=1"))
    assert status != 0 and "leave out learning_rate" in output
    assert (run / "run.json").read_bytes() == before


def test_a_decaying_learning_rate_follows_the_longer_schedule_at_once(tmp_path):
    run = tmp_path / "run"
    changes = {**EVALUATED, "eval": {"after": False}, "learning_rate": 1e-3}
    config = write(tmp_path, "sft", changes)
    for words in (("train", config), ("train", "--resume", run, "steps=6")):
        status, output = finish(Command(*words))
        assert status == 0, output
    rows = (run / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(row)["learning_rate"] for row in rows]
    assert rates[3:] == pytest.approx([1e-3 * (6 - n) / 6 for n in (3, 4, 5)])


def test_agentevol_killed_in_an_iterations_evaluation_trains_that_iteration_no_more(tmp_path):
    run = tmp_path / "run"
    last = run / "iteration-1"
    # The last file of the model; then the evaluation begins.
    killed_when(last / "model" / "training_args.bin", write_evolve(tmp_path))
    assert not (last / "iteration.json").exists(), "it was killed in time"
    unbroken, rows = weights(last), (last / "metrics.jsonl").read_bytes()
    assert steps_of(last) == [1, 2]
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    assert (last / "metrics.jsonl").read_bytes() == rows
    assert weights(last) == unbroken == weights(run)
    iterations = json.loads((run / "summary.json").read_text())["iterations"]
    assert [row["step"] for row in iterations] == [1]
