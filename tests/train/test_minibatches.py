"""Mini-batches of a rollout: each is one optimizer step, and the steps are TRL's."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file
from trl import GRPOTrainer

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.config.rl import RLConfig
from agentgym_train.training.microbatches import merge_metrics, rows_of
from agentgym_train.training.update import Counts, PackedUpdate
from tests.train.command import Command, finish
from tests.train.ragged_rows import episodes, make_trainer, step_inputs
from tests.train.test_run import write_config

ROWS = episodes(8)
LEARNING_RATE = 0.02
LOSSES = {
    **{name: {"loss_type": name} for name in ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo")},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "kl": {"loss_type": "dapo", "beta": 0.1},
}


@pytest.mark.parametrize("budget", [10_000, 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_updates_are_those_of_trl_one_minibatch_after_another(loss, budget, tmp_path):
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))  # TRL shuffles rows
    numbers = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])[order]
    theirs = make_trainer(GRPOTrainer, tmp_path, **LOSSES[loss])
    theirs.model.double()  # or eight updates in a row make much of how numbers are rounded
    whole = step_inputs(ROWS)
    masks = whole["completion_mask"] * whole["tool_mask"]
    parts = [rows_of(whole, (numbers == i).nonzero()[:, 0].tolist()) for i in range(4)]
    tokens = [int(masks[numbers == i].sum()) for i in range(4)]
    for part, count in zip(parts * 2, tokens * 2, strict=True):
        theirs.model.zero_grad()
        counted = part | {"num_items_in_batch": torch.tensor(count)}
        theirs.compute_loss(theirs.model, counted).backward()
        with torch.no_grad():
            for weight in theirs.model.parameters():
                weight -= LEARNING_RATE * weight.grad

    ours = make_trainer(PackedUpdate, tmp_path, learning_rate=LEARNING_RATE, **LOSSES[loss])
    ours.model.double()
    before = [weight.clone() for weight in ours.model.parameters()]
    ours.max_tokens_per_microbatch = budget
    ours.create_optimizer()
    ours.epochs_per_rollout = 2
    ours.counts = [Counts(2, count) for count in tokens]
    ours.compute_loss(ours.model, whole | {"minibatch": numbers}).backward()
    ours.optimizer.step()
    for found, expected, old in zip(
        ours.model.parameters(), theirs.model.parameters(), before, strict=True
    ):
        moved = float((expected - old).detach().abs().max())
        assert moved > 0
        assert torch.allclose(found, expected, atol=1e-3 * moved + 1e-7)


@pytest.mark.slow
def test_a_run_with_four_updates_per_rollout_keeps_its_tasks_and_stages_and_resumes(tmp_path):
    more = {"minibatches_per_rollout": 2, "epochs_per_rollout": 2}
    runs = {}
    for name, changes in {"one": {}, "four": more}.items():
        folder = tmp_path / name
        folder.mkdir()
        uneven = {"env": "tests.train.uneven:Uneven", "learning_rate": 0.01}
        status, output = finish(Command("train", write_config(folder, **uneven, **changes)))
        assert status == 0, output
        runs[name] = folder / "run"
    kept = {name: RunStore.open(run).trajectories("train")[0] for name, run in runs.items()}
    starts = {name: [(e.step, e.group, e.task, e.seed) for e in t] for name, t in kept.items()}
    assert starts["one"] == starts["four"]
    rows, _ = RunStore.open(runs["four"]).metrics()
    assert [row["horizon"] for row in rows] == [2, 2, 3, 3]
    assert any(row["clip_ratio/region_mean"] > 0 for row in rows), "later updates have a ratio"
    for name, updates in {"one": 4, "four": 16}.items():
        state = torch.load(runs[name] / "checkpoints/checkpoint-4/optimizer.pt")["state"]
        assert {int(values["step"]) for values in state.values()} == {updates}

    again = tmp_path / "again"
    shutil.copytree(runs["four"], again)
    shutil.rmtree(again / "checkpoints/checkpoint-4")
    shutil.rmtree(again / "model")
    (again / "summary.json").unlink()
    status, output = finish(Command("train", "--resume", again, "--trust"))
    assert status == 0, output
    first, second = (load_file(run / "model/model.safetensors") for run in (runs["four"], again))
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
    assert json.loads((again / "summary.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minibatches_per_rollout": 3}, "64 episodes of a process cannot be divided into 3"),
        ({"minibatches_per_rollout": 0}, "minibatches_per_rollout is at least 1"),
        ({"trainer_args": {"num_iterations": 2}}, "write epochs_per_rollout: VALUE"),
        ({"trainer_args": {"steps_per_generation": 4}}, "write minibatches_per_rollout: VALUE"),
        ({"trainer_args": {"loss_type": "grpo"}}, "write algorithm: VALUE"),
    ],
)
def test_settings_that_cannot_be_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        RLConfig(model="m", env="e", output_dir="o", **changes).check_processes(1)


def test_a_minibatch_without_trained_tokens_is_in_no_metric():
    metrics = {"entropy": [0.0, 0.0], "kl": []}
    merge_metrics(metrics, {}, [0, 0])
    assert len(metrics["entropy"]) == 1 and math.isnan(metrics["entropy"][0])
    metrics["entropy"] += [5.0, 2.0]
    merge_metrics(metrics, {}, [0, 10, 20])
    assert metrics == {"entropy": [3.0], "kl": []}
