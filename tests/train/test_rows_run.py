"""Runs on cut contexts: with a critic and a reference, in one process and in two."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore, read_lines
from agentgym_env.token_store import StoredTokens, unpack_tokens
from tests.train.test_launching import UNEVEN, train_in
from tests.train.test_run import write_config


@pytest.mark.slow
def test_two_processes_with_unequal_numbers_of_rows_take_the_steps_of_one(tmp_path):
    config = write_config(
        tmp_path, **{**UNEVEN, "eval": {"before": False, "after": False}}, agent="window:2",
        algorithm="ppo", beta=0.1, keep_tokens="all",
    )  # fmt: skip
    runs = {count: tmp_path / f"run-{count}" for count in (1, 2)}
    for count, folder in runs.items():
        status, output = train_in(count, config, f"output_dir={folder}")
        assert status == 0, output
        assert "Warning" not in output and "Traceback" not in output, output
    weights = [load_file(folder / "model" / "model.safetensors") for folder in runs.values()]
    start = load_file(tmp_path / "policy" / "model.safetensors")
    assert any(not w.equal(start[name]) for name, w in weights[0].items()), "something was learned"
    for name, weight in weights[0].items():
        # Adam makes steps of one size out of gradients that differ by their rounding alone.
        assert weight.allclose(weights[1][name], rtol=1e-4, atol=5e-5), name
    for folder in runs.values():
        played, _ = RunStore.open(folder).trajectories("train")
        kept, _ = read_lines(folder / "tokens" / "train.jsonl", StoredTokens)
        assert [len(k.turn_advantages) for k in kept] == [len(t.turns) for t in played]
        assert any(len(unpack_tokens(k.packed)[0]) > 1 for k in kept), "a context was cut"
    one, two = (RunStore.open(folder).metrics()[0] for folder in runs.values())
    for mine, its in zip(one, two, strict=True):
        assert mine["sampled_tokens"] > 0 and "critic/loss" in mine and "kl" in mine
        for name in ("loss", "reward", "turns", "sampled_tokens", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], rel=1e-4, abs=1e-6), name
