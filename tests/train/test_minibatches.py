"""Mini-batches of a rollout: each is one optimizer step, and the steps are TRL's."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.config.rl import RLConfig
from tests.train.command import Command, finish
from tests.train.ragged_rows import (
    episodes,
    make_ours,
    make_theirs,
    rows_to_train,
    step_inputs,
)
from tests.train.test_run import write_config
from tests.train.test_update import LOSSES, needs_trls_loss

ROWS = episodes(8)
LEARNING_RATE = 0.02


@needs_trls_loss
@pytest.mark.parametrize("budget", [10_000, 1])
@pytest.mark.parametrize("name", ["token", "sequence", "constant", "cispo", "sapo", "gspo", "kl"])
def test_updates_are_those_of_trl_one_minibatch_after_another(name, budget, tmp_path):
    trls, settings, more = LOSSES[name]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    numbers = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])[order]
    theirs = make_theirs(tmp_path, **trls)
    theirs.model.double()  # or eight updates in a row make much of how numbers are rounded
    whole = step_inputs(ROWS)
    chosen = [(numbers == i).nonzero()[:, 0] for i in range(4)]
    parts = [{n: v[rows] if v.dim() else v for n, v in whole.items()} for rows in chosen]
    tokens = [int((part["completion_mask"] * part["tool_mask"]).sum()) for part in parts]
    for part, count in zip(parts * 2, tokens * 2, strict=True):
        theirs.model.zero_grad()
        counted = part | {"num_items_in_batch": torch.tensor(count)}
        theirs.compute_loss(theirs.model, counted).backward()
        with torch.no_grad():
            for weight in theirs.model.parameters():
                weight -= LEARNING_RATE * weight.grad

    ours = make_ours(tmp_path, settings, max_tokens=budget, learning_rate=LEARNING_RATE, **more)
    ours.model.double()
    before = [weight.clone() for weight in ours.model.parameters()]
    ours.create_optimizer()
    updates = [rows_to_train(part, settings) for part in parts]
    _, metrics = ours.update.run(ours.model, updates * 2)
    assert metrics["earlier_grad_norm"] > 0
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
        ({"trainer_args": {"loss_type": "grpo"}}, "write algorithm: {type: NAME, loss: {mean"),
        (
            {"trainer_args": {"epsilon": 0.1}},
            "write algorithm: {type: NAME, loss: {epsilon: VALUE}}",
        ),
    ],
)
def test_settings_that_cannot_be_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        RLConfig(model="m", env="e", output_dir="o", **changes).check_processes(1)
