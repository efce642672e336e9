"""`agentgym train` with `method: sft` and `method: dpo`, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from agentgym_train.models.loading import load_policy
from tests.train.command import Command, finish
from tests.train.demonstrating import demonstration
from tests.train.small import save_tiny_policy
from tests.train.test_launching import train_in
from tests.train.test_run import wait_for

TASKS = ("stick", "ladder", "chest", "torch", "bowl", "barrel", "oak planks", "bookshelf")
FIGURES = {"sft": "mean_token_accuracy", "dpo": "rewards/accuracies"}


def save_episodes(folder: Path) -> str:
    """A run folder with the expert's episodes, and of each start one that is given up."""
    store = RunStore.create(folder, {"config": {}})
    good = [demonstration(task, number) for number, task in enumerate(TASKS)]
    bad = [
        msgspec.structs.replace(
            one,
            turns=[msgspec.structs.replace(one.turns[0], response="wait", action="wait")] * 2,
            outcome="horizon",
            success=False,
            policy="idle",
        )
        for one in good
    ]
    store.append_trajectories("played", [*good, *bad])
    return str(folder)


def write(folder: Path, method: str, **changes) -> Path:
    values = {
        "method": method,
        "model": save_tiny_policy(folder / "policy"),
        "data": [save_episodes(folder / f"episodes-{method}")],
        "output_dir": str(folder / "run"),
        "instruction": "",
        "turn_max_tokens": 24,  # as long as the longest demonstrated turn
        "max_tokens": 1400,
        "learning_rate": 1e-3,
        "epochs": 2,
        "save_every": 1,
        "max_tokens_per_microbatch": 900,
        ("pairs_per_step" if method == "dpo" else "rows_per_step"): 4,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**values, **changes}))
    return path


@pytest.fixture(scope="module", params=["sft", "dpo"])
def whole(request, tmp_path_factory) -> tuple[str, Path, str]:
    """(method, run folder, what was printed) of a run that evaluates before and after."""
    folder = tmp_path_factory.mktemp(f"whole-{request.param}")
    config = write(folder, request.param, env="textcraft", eval={"horizon": 1, "per_category": 1})
    status, output = finish(Command("train", config))
    assert status == 0, output
    return request.param, folder / "run", output


@pytest.mark.slow
def test_a_run_leaves_its_summary_metrics_curves_and_model(whole):
    method, folder, output = whole
    rows, broken = RunStore.open(folder).metrics()
    assert broken == [] and [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(FIGURES[method] in row for row in rows)
    assert rows[-1]["loss"] < rows[0]["loss"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["method"] == method and summary["steps"] == 4
    assert summary["before"]["episodes"] == summary["after"]["episodes"] == 4
    for name in ("curves.png", "config.yaml", "model/model.safetensors", "eval_after.json"):
        assert (folder / name).stat().st_size > 0
    assert "8 episodes" in output or "8 pairs of 16 episodes" in output
    assert "success before" in output and "Traceback" not in output
    assert output.count("Warning") == output.count("Warning: 2 of the 100 tasks of eval.split") == 1
    assert "it/s]" not in output


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_killed_run_resumes_to_what_the_unbroken_one_became(tmp_path, method):
    """Past its first epoch, so the second's order has to be the same too."""
    for name in ("unbroken", "killed"):
        config = write(tmp_path, method, output_dir=str(tmp_path / name))
        process = Command("train", config)
        if name == "killed":
            marker = tmp_path / name / "checkpoints" / "checkpoint-3" / "whole.json"
            wait_for(marker.exists, process)
            process.kill()
            process.communicate()
            status, output = finish(Command("train", "--resume", tmp_path / name))
            assert "Resuming from" in output
        else:
            status, output = finish(process)
        assert status == 0, output
    killed, unbroken = (
        load_file(tmp_path / name / "model" / "model.safetensors")
        for name in ("killed", "unbroken")
    )
    for name, weight in killed.items():
        assert weight.allclose(unbroken[name], atol=1e-6), name
    found, expected = (
        RunStore.open(tmp_path / name).metrics()[0] for name in ("killed", "unbroken")
    )
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    for row, other in zip(found, expected, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert row["num_tokens"] == other["num_tokens"]
    status, output = finish(Command("train", "--resume", tmp_path / "killed"))
    assert status == 0 and "is complete" in output


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_two_processes_are_the_run_of_one(tmp_path, method):
    """Over gloo; the passes of the two differ in number and length."""
    for count in (1, 2):
        config = write(tmp_path, method)
        folder = f"output_dir={tmp_path / f'run-{count}'}"
        status, output = train_in(
            count, config, folder, "trainer_args={optim: sgd}", "learning_rate=0.01"
        )
        assert status == 0, output
        assert "Warning" not in output and "Traceback" not in output, output
    one, two = (RunStore.open(tmp_path / f"run-{count}").metrics()[0] for count in (1, 2))
    assert len(one) == 4
    for mine, its in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", FIGURES[method], "num_tokens"):
            assert mine[name] == pytest.approx(its[name], rel=1e-4, abs=1e-6), name
    weights, others = (
        load_file(tmp_path / f"run-{count}" / "model" / "model.safetensors") for count in (1, 2)
    )
    start = load_file(tmp_path / "policy" / "model.safetensors")
    assert any(not weight.equal(start[name]) for name, weight in weights.items())
    for name, weight in weights.items():
        assert weight.allclose(others[name], atol=1e-6), name


@pytest.mark.slow
def test_adapters_on_adapters_keep_what_the_first_ones_learned(tmp_path):
    """SFT with LoRA, DPO with LoRA on it, and then all weights of what both became."""
    lora = "lora={r: 4, lora_alpha: 64}"
    config = write(tmp_path, "sft", output_dir=str(tmp_path / "first"), learning_rate=0.01)
    status, output = finish(Command("train", config, lora))
    assert status == 0, output
    first = tmp_path / "first" / "model"
    assert (first / "adapter_model.safetensors").is_file()
    config = write(tmp_path, "dpo", output_dir=str(tmp_path / "second"), learning_rate=0.0)
    status, output = finish(Command("train", config, lora, f"model={first}"))
    assert status == 0, output
    second = tmp_path / "second" / "model"
    base, learned, kept = (
        load_policy(str(path))[0] for path in (tmp_path / "policy", first, second)
    )
    changed = 0.0
    pairs = zip(base.parameters(), learned.parameters(), kept.parameters(), strict=True)
    for start, after_sft, after_dpo in pairs:
        changed = max(changed, (after_sft - start).abs().max().item())
        assert after_dpo.allclose(after_sft, atol=1e-6), "a rate of 0 leaves what SFT learned"
    assert changed > 1e-3
    config = write(tmp_path, "sft", output_dir=str(tmp_path / "third"))
    status, output = finish(Command("train", config, f"model={second}", "steps=1"))
    assert status == 0, output


@pytest.mark.parametrize(
    ("method", "words", "said"),
    [
        ("sft", ["method=sfd"], "no method 'sfd'; choose from rl, sft, dpo, evolve"),
        ("sft", ["epoch=2"], "unknown key epoch; did you mean epochs?"),
        ("sft", ["data=[]"], "data is empty; name at least one run folder"),
        ("sft", ["data=[runs/none]"], "no episodes in runs/none"),
        ("sft", ["trainer_args.packing=true"], "trainer_args.packing is set by packing"),
        ("sft", ["horizon=[3]"], "unknown key horizon"),
        ("dpo", ["beta=0"], "beta is above 0, got 0"),
        ("dpo", ["rows_per_step=4"], "did you mean pairs_per_step?"),
        ("dpo", ["reward_gap=-1"], "reward_gap is above 0, got -1"),
    ],
)
def test_a_config_that_can_not_be_is_refused_before_torch(tmp_path, method, words, said):
    status, output = finish(Command("train", write(tmp_path, method), *words))
    assert status == 2 and said in " ".join(output.split()), output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_from_which_nothing_can_be_learned_is_refused_and_leaves_no_folder(tmp_path):
    config = write(tmp_path, "sft")
    for words, said in (
        (["max_turns=1", "min_turns=1"], "there is no episode to learn from"),
        (["max_tokens=40"], "8 episodes are longer than max_tokens 40"),
        (["trainer_args.lern=1"], "unknown key lern in trainer_args"),
    ):
        status, output = finish(Command("train", config, *words))
        assert status == 2 and said in " ".join(output.split()), output
        assert not (tmp_path / "run").exists()
    status, output = finish(Command("train", config, "--num-processes", 3))
    assert status == 2 and "is not divisible by 3 processes" in " ".join(output.split())
