"""One step off-policy: episodes played while the step before trains, and their resumption."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from agentgym_train.config.read import config_from
from agentgym_train.engines.base import Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.training.async_rollouts import AsyncRollouts
from agentgym_train.training.sampler import StepEpisodes
from tests.train.command import Command, finish
from tests.train.small import tiny_model
from tests.train.test_run import SAME, texts, wait_for, write_config
from tests.train.test_step_figures import episode

OFF = {"async_steps": 1, "eval": {"before": False, "after": False}, "save_every": 1}


def test_episodes_are_for_the_step_they_were_begun_for_and_outlive_a_process(tmp_path):
    ahead, gate = AsyncRollouts(), threading.Event()
    assert ahead.take(0) is None
    played = StepEpisodes([episode(0)], [episode(1)])
    ahead.begin(1, lambda: played if gate.wait(120) else None)
    gate.set()
    ahead.save(tmp_path / "checkpoint-1", rank=0)
    assert ahead.take(1) == played and ahead.take(1) is None
    resumed = AsyncRollouts()
    resumed.load(tmp_path / "checkpoint-1", rank=0)
    assert resumed.take(1) == played
    resumed.load(tmp_path / "checkpoint-1", rank=1)
    assert resumed.take(1) is None
    ahead.close(lambda: None)


def test_what_is_under_way_is_given_up_and_what_broke_is_raised():
    ahead, gate = AsyncRollouts(), threading.Event()
    ahead.begin(1, lambda: gate.wait(120) and [])
    ahead.close(gate.set)
    broken = AsyncRollouts()
    broken.begin(1, lambda: [1 / 0])
    with pytest.raises(ZeroDivisionError):
        broken.take(1)
    broken.close(lambda: None)


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


def test_stale_samples_are_weighed():
    needed = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}
    assert not config_from(needed).samples_stale
    assert not config_from({**needed, "oversampling_ratio": 0.5}).samples_stale
    assert config_from(
        {**needed, "oversampling_ratio": 0.5, "unfinished_groups": "carry"}
    ).samples_stale
    assert config_from({**needed, "async_steps": 1}).samples_stale
    for wrong in ({"async_steps": 2}, {"async_steps": 1, "max_staleness": 1}):
        with pytest.raises(
            ValueError, match=r"async_steps is at most 1|max_staleness is at least 2"
        ):
            config_from({**needed, **wrong})


MORE_SIGNAL = {
    "minibatches_per_rollout": 2,
    "epochs_per_rollout": 2,
    "sampler": "contrast",
    "resampling_ratio": 1.0,
    "overlong_tokens": 800,
    "beta": 0.1,
    "entropy_bonus": 0.01,
}
"""Everything that a step keeps for the next ones."""


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, MORE_SIGNAL], ids=["plain", "more signal"])
def test_a_killed_run_that_plays_ahead_resumes_to_what_the_unbroken_one_became(tmp_path, more):
    changes = {**OFF, "env": "tests.train.uneven:Uneven", "learning_rate": 0.01, "steps": 6}
    changes |= more
    # What else is in a batch depends on the clock and rounds a log-probability otherwise, which
    # weighs a token by it; one turn at a time is computed alike to the last bit.
    changes["engine"] = {"type": "hf", "max_batch": 1}
    status, output = finish(Command("train", write_config(tmp_path, **changes)))
    assert status == 0, output
    unbroken, run = tmp_path / "unbroken", tmp_path / "run"
    run.rename(unbroken)
    expected, _ = RunStore.open(unbroken).metrics()
    assert [row["staleness"] for row in expected] == [0, 1, 1, 1, 1, 1]
    assert all("engine/kl" in row for row in expected)
    assert expected[0]["engine/logprob_difference_max"] < 1e-4
    assert expected[2]["engine/logprob_difference_max"] > 1e-4, "the weights had moved on"
    process = Command("train", write_config(tmp_path, **changes))
    wait_for(lambda: any(run.glob("checkpoints/*/horizon.json")), process)
    process.kill()
    process.communicate()
    status, output = finish(Command("train", "--resume", run, "--trust"))
    assert status == 0, output
    rows, broken = RunStore.open(run).metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and not broken
    names = {*SAME, "staleness", "engine/kl", "engine/logprob_difference_max", "kl", "entropy"}
    names |= {"discarded_env_steps", "informative_groups"}
    for row, other in zip(rows, expected, strict=True):
        assert {n: row[n] for n in names & set(row)} == {n: other[n] for n in names & set(other)}
    # A step that was under way when the run was killed was played again, alike.
    assert set(texts(run, "train")) == set(texts(unbroken, "train"))
    weights, wanted = (load_file(f / "model" / "model.safetensors") for f in (run, unbroken))
    for name, weight in weights.items():
        assert weight.equal(wanted[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("unfinished_groups", ["drop", "carry"])
def test_a_run_with_more_groups_than_it_needs_ends_and_counts_what_it_dropped(
    tmp_path, unfinished_groups
):
    config = write_config(
        tmp_path, async_steps=int(unfinished_groups == "carry"), save_every=1,
        oversampling_ratio=0.5, unfinished_groups=unfinished_groups, horizon={"every": 1},
        eval={"per_category": 1, "before": False, "after": True},
    )  # fmt: skip
    status, output = finish(Command("train", config))
    assert status == 0, output
    rows, _ = RunStore.open(tmp_path / "run").metrics()
    episodes, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert len(rows) == 4 and len(episodes) == 4 * 4
    assert all(row["dropped"] == 2 for row in rows) == (unfinished_groups == "drop")
    assert (tmp_path / "run" / "eval_after.json").is_file()
