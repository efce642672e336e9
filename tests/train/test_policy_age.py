"""Episodes that run all the time: their weights, their age, and how such a run is resumed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from agentgym_env.launch import child_environment
from agentgym_env.run_store import RunStore
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf.engine import HFEngine
from tests.train.command import MAIN, Command, finish
from tests.train.small import tiny_model
from tests.train.test_run import SAME, texts, wait_for, write_config

OFF = {"eval": {"before": False, "after": False}, "save_every": 1}


def test_an_engine_with_weights_of_its_own_does_not_see_the_trainers_until_it_is_told():
    def said(engine):
        asked = engine.generate([5, 6, 7], Sampling(8, seed=1))
        return asyncio.run(asked).token_ids

    model, other = tiny_model(seed=0), tiny_model(seed=1)
    forward = model.forward
    model.forward = lambda *words, **named: forward(*words, **named)  # as trainers do
    engine = HFEngine(model, 0)
    engine.keep_own_weights()
    asyncio.run(engine.update_weights(model, 0))
    first = said(engine)
    assert first == said(HFEngine(tiny_model(seed=0), 0))
    assert not any(weight.requires_grad for weight in engine.model.parameters())
    with torch.no_grad():
        for weight, new in zip(model.parameters(), other.parameters(), strict=True):
            weight.copy_(new)
    assert said(engine) == first != said(HFEngine(model, 0))
    asyncio.run(engine.update_weights(model, 1))
    assert said(engine) == said(HFEngine(other, 0))
    assert (engine.version, model.training) == (1, False)
    # Tied embeddings stay tied in the copy.
    tied = engine.model.get_input_embeddings().weight is engine.model.get_output_embeddings().weight
    assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)


MORE_SIGNAL = {
    "minibatches_per_rollout": 2,
    "epochs_per_rollout": 2,
    "sampler": "contrast",
    "admission": "informative",
    "overlong_tokens": 800,
    "beta": 0.1,
    "entropy_bonus": 0.01,
}
"""Everything that a step keeps for the next ones."""


def resumed(tmp_path, changes):
    """(an unbroken run, one that was killed after its first checkpoint and resumed)."""
    changes = {**OFF, "env": "tests.train.uneven:Uneven", "learning_rate": 0.01, **changes}
    status, output = finish(Command("train", write_config(tmp_path, **changes)))
    assert status == 0, output
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    run.rename(unbroken)
    process = Command("train", write_config(tmp_path, **changes))
    wait_for(lambda: any(run.glob("checkpoints/*/horizon.json")), process)
    process.kill()
    process.communicate()
    status, output = finish(Command("train", "--resume", run, "--trust"))
    assert status == 0, output
    return unbroken, run


@pytest.mark.slow
def test_a_killed_run_that_samples_by_a_gate_resumes_to_what_the_unbroken_one_became(tmp_path):
    changes = {"steps": 6, **MORE_SIGNAL, "engine": {"type": "hf", "max_batch": 1}}
    unbroken, run = resumed(tmp_path, changes)
    rows, broken = RunStore.open(run).metrics()
    expected, _ = RunStore.open(unbroken).metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and not broken
    assert sum(row.get("rejected/uninformative", 0) for row in rows) > 0
    names = {*SAME, "kl", "entropy", "discarded_env_steps", "informative_groups"}
    names |= {"rejected/uninformative"}
    for row, other in zip(rows, expected, strict=True):
        assert {n: row[n] for n in names & set(row)} == {n: other[n] for n in names & set(other)}
    assert set(texts(run, "train")) == set(texts(unbroken, "train"))
    weights, wanted = (load_file(f / "model" / "model.safetensors") for f in (run, unbroken))
    for name, weight in weights.items():
        assert weight.equal(wanted[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, MORE_SIGNAL], ids=["plain", "more signal"])
def test_a_killed_run_that_samples_all_the_time_loses_no_group_when_it_is_resumed(tmp_path, more):
    _, run = resumed(tmp_path, {"steps": 6, "max_policy_age": 2, **more})
    rows, broken = RunStore.open(run).metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and not broken
    assert rows[0]["staleness"] == 0 and all(0 <= row["staleness"] <= 2 for row in rows)
    assert all("engine/kl" in row for row in rows)
    played, _ = RunStore.open(run).trajectories("train")
    assert [t.step for t in played] == [step for step in range(6) for _ in range(4)]
    assert [t.group for t in played] == [0, 0, 1, 1] * 6
    seeds = [t.seed for t in played[::2]]
    assert len(set(seeds)) == 12, "no group is trained on twice"


@pytest.mark.slow
def test_two_processes_sample_all_the_time_and_share_the_tasks(tmp_path):
    config = write_config(tmp_path, **OFF, max_policy_age=1, steps=4, admission="informative",
                          env="tests.train.uneven:Uneven")  # fmt: skip
    words = [sys.executable, "-c", MAIN, "train", config, "--num-processes", 2]
    ran = subprocess.run([*map(str, words)], env=child_environment(), capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    played, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert [(t.step, t.group) for t in played[::2]] == [(s, g) for s in range(4) for g in (0, 1)]
    assert len({t.seed for t in played}) == 8
    (last,) = (tmp_path / "run/checkpoints").glob("checkpoint-4")
    assert (last / "sampler.json").is_file()


def test_ctrl_c_ends_a_run_that_samples_all_the_time(tmp_path):
    config = write_config(tmp_path, **OFF, max_policy_age=1, steps=400)
    process = Command("train", config)
    run = tmp_path / "run"
    wait_for(lambda: any(run.glob("checkpoints/*/horizon.json")), process)
    process.send_signal(signal.SIGINT)
    status, output = finish(process)
    assert status == 130 and "Resume with" in output
