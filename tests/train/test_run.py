"""`agentgym train` from its config to its summary, in processes of its own, with a tiny policy."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import requests
import yaml
from safetensors.torch import load_file

from agentgym_env.errors import ConfigError, teaches
from agentgym_env.run_store import RunStore
from agentgym_train import AgentTrainer
from agentgym_train.config.read import read_config
from processes import all_gone
from tests.train.command import Command, finish
from tests.train.small import merged, save_tiny_policy
from waiting import until


def write_config(folder: Path, **changes) -> Path:
    values = {
        "model": save_tiny_policy(folder / "policy"),
        "env": "agentgym/TextCraft-v0",
        "output_dir": str(folder / "run"),
        "horizon": {"turns": [2, 3], "every": 2},
        "eval": {"horizon": 1},
        "turn_max_tokens": 6,
        "max_tokens": 900,
        "instruction": "",
        "prompts_per_step": 2,
        "num_generations": 2,
        "steps": 4,
        "learning_rate": 1e-3,
        "save_every": 2,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(merged(values, changes)))
    return path


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("whole")
    status, output = finish(Command("train", write_config(folder)))
    assert status == 0, output
    return folder / "run", output


@pytest.mark.slow
def test_a_run_leaves_its_summary_metrics_curves_and_model(whole_run):
    run, _ = whole_run
    summary = json.loads((run / "summary.json").read_text())
    rows, broken = RunStore.open(run).metrics()
    assert broken == []
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["horizon"] for row in rows] == [2, 2, 3, 3]
    for name in ("success_before", "success_after", "train_seconds", "seed"):
        assert isinstance(summary[name], int | float)
    assert summary["env_steps"] == sum(row["env_steps"] for row in rows) > 0
    assert summary["sampled_tokens"] == sum(row["sampled_tokens"] for row in rows) > 0
    assert summary["before"]["episodes"] == summary["after"]["episodes"] == 100
    for name in ("curves.png", "run.json", "config.yaml", "model/model.safetensors"):
        assert (run / name).stat().st_size > 0


@pytest.mark.slow
def test_the_model_card_says_what_the_model_was_trained_from(whole_run):
    run, _ = whole_run
    cards = sorted(run.rglob("README.md"))
    assert len(cards) == 4, "of the model, of two checkpoints, and next to these"
    for card in cards:
        text = card.read_text()
        assert "None" not in text and "GRPO on `agentgym/TextCraft-v0`" in text, text
        config = json.loads((run / "run.json").read_text())["config"]
        assert f"starting from `{config['model']}`" in text


@pytest.mark.slow
def test_a_run_shows_a_table_and_what_to_do_next_and_no_noise_of_libraries(whole_run):
    run, output = whole_run
    assert "success before" in output and "success after" in output
    assert "depth 1" in output
    shown = re.findall(r"^  agentgym (\w+)", output, re.MULTILINE)
    assert shown == ["view", "eval", "train"]
    assert f"agentgym train --resume {run} --steps 8" in output.replace("\n", "")
    for noise in ("Warning", "it/s]", "Traceback", "Loading weights"):
        assert noise not in output


@pytest.mark.slow
def test_every_episode_is_kept_with_its_step_group_and_seed(whole_run):
    run, _ = whole_run
    episodes, broken = RunStore.open(run).trajectories("train")
    assert broken == [] and len(episodes) == 4 * 4
    groups = {(e.step, e.group): set() for e in episodes}
    for episode in episodes:
        groups[episode.step, episode.group].add((episode.task, episode.seed, episode.observation))
    assert len(groups) == 4 * 2
    assert all(len(starts) == 1 for starts in groups.values()), "a group shares its start"


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_what_the_unbroken_one_became(whole_run, tmp_path):
    unbroken, _ = whole_run
    process = Command("train", write_config(tmp_path))
    run = tmp_path / "run"
    wait_for(lambda: (run / "metrics.jsonl").exists(), process)
    process.send_signal(signal.SIGINT)
    status, output = finish(process)
    assert status == 130, output
    assert f"agentgym train --resume {run}" in output.replace("\n", "")
    assert not (run / "summary.json").exists()
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    rows, _ = RunStore.open(run).metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for name in ("train", "eval_before", "eval_after"):
        found, expected = (texts(folder, name) for folder in (run, unbroken))
        assert found == expected
    weights, expected = (load_file(f / "model" / "model.safetensors") for f in (run, unbroken))
    for name, weight in weights.items():
        assert weight.allclose(expected[name], atol=1e-6), name
    status, output = finish(Command("train", "--resume", run))
    assert status == 0 and "is complete" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.1},
        {"algorithm": {"type": "reinforce_pp", "beta": 0.1}},
        {"lora": {"r": 4}},
        {"lora": {"r": 4}, "beta": 0.1, "algorithm": "ppo"},
    ],
    ids=["kl", "kl in rewards", "lora", "lora, kl and a critic"],
)
def test_a_run_with_a_reference_or_adapters_learns_keeps_and_evaluates_its_model(tmp_path, changes):
    config = write_config(tmp_path, steps=2, learning_rate=0.02, eval={"before": False}, **changes)
    status, output = finish(Command("train", config))
    assert status == 0, output
    run = tmp_path / "run"
    rows, _ = RunStore.open(run).metrics()
    assert len(rows) == 2 and all(abs(row["loss"]) < 1e6 for row in rows)
    assert ("kl" in rows[0]) == ("beta" in changes)
    adapted = (run / "model" / "adapter_model.safetensors").is_file()
    assert adapted == ("lora" in changes)
    assert (run / "eval_after.json").is_file()
    status, output = finish(
        Command(
            "eval", "--env", "textcraft", "--policy", run / "model", "--horizon", 1,
            "--per-category", 1,
        )
    )  # fmt: skip
    assert status == 0, output


SAME = ("reward", "success", "horizon", "turns", "env_steps", "loss", "grad_norm", "critic/loss")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_killed_run_resumes_to_what_the_unbroken_one_became(tmp_path, algorithm):
    changes = {"eval": {"before": False, "after": False}, "algorithm": algorithm, "save_every": 1}
    status, output = finish(Command("train", write_config(tmp_path, **changes)))
    assert status == 0, output
    unbroken = tmp_path / "unbroken"
    (tmp_path / "run").rename(unbroken)
    process = Command("train", write_config(tmp_path, **changes))
    run = tmp_path / "run"
    wait_for(lambda: (run / "checkpoints" / "checkpoint-2" / "horizon.json").exists(), process)
    process.kill()
    process.communicate()
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    assert "checkpoint-" in output.replace("\n", "")
    rows, broken = RunStore.open(run).metrics()
    expected, _ = RunStore.open(unbroken).metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and not broken
    assert ("critic/loss" in rows[0]) == (algorithm == "ppo")
    for row, other in zip(rows, expected, strict=True):
        for name in set(SAME) & set(other):
            assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name
    weights, wanted = (load_file(f / "model" / "model.safetensors") for f in (run, unbroken))
    for name, weight in weights.items():
        assert weight.allclose(wanted[name], atol=1e-6), name
    # No step is stored twice, whichever was being written when the run was killed.
    played, without_kill = (
        [
            (t.step, t.group, t.seed, [turn.action for turn in t.turns])
            for t in RunStore.open(f).trajectories("train")[0]
        ]
        for f in (run, unbroken)
    )
    assert played == without_kill


def test_a_run_that_cannot_start_says_why_and_leaves_no_folder(tmp_path):
    config = write_config(tmp_path)
    for words, said in (
        (["--steps", "0"], "steps is at least 1"),
        (["--env", "agentgym/TextCart-v0"], "agentgym/TextCraft-v0"),
        (["--algorithm", "grop"], "unknown algorithm 'grop'"),
        (["--split", "validation"], "validation"),
        (["trainer_args.max_grad_nrm=1"], "did you mean max_grad_norm?"),
    ):
        status, output = finish(Command("train", config, *words))
        assert status == 2 and said in output and "Traceback" not in output, output
        assert not (tmp_path / "run").exists()
    status, output = finish(Command("train", config, "--resume", tmp_path))
    assert status == 2 and f"keeps its config; leave out {config}" in output.replace("\n", "")
    status, output = finish(Command("train", "--resume", tmp_path, "steps=2", "seed=2"))
    assert status == 2 and "keeps its config; leave out seed, or" in output.replace("\n", " ")
    status, output = finish(Command("train"))
    assert status == 2 and "pass a config file, or a run with --resume" in output
    status, output = finish(Command("train", "--resume", tmp_path))
    assert status == 2 and "no run in" in output


def texts(run: Path, name: str) -> list[tuple[object, ...]]:
    """What was played, whatever the order of writing: an interrupted step is kept once."""
    episodes, _ = RunStore.open(run).trajectories(name)
    return sorted(
        (e.step, e.group, e.task, e.seed, tuple(t.response for t in e.turns)) for e in episodes
    )


def wait_for(condition, process: Command) -> None:
    until(condition, process=process)


def test_the_process_ends_its_server():
    """No server outlives its run, whatever ended it."""
    process = Command("eval", "--env", "agentgym/TextCraft-v0", "--policy", "random")
    servers: list[psutil.Process] = []

    def found_its_server() -> bool:
        servers[:] = psutil.Process(process.pid).children()
        return bool(servers)

    wait_for(found_its_server, process)
    status, output = finish(process)
    assert status == 0, output
    assert all_gone(servers)


@pytest.mark.slow
def test_training_on_two_addresses_goes_on_with_one(tmp_path, run):
    dying, living = (run("agentgym/TextCraft-v0", "--port", "0") for _ in range(2))
    changes = {"servers": [dying.address(), living.address()], "steps": 8, "save_every": 8}
    process = Command(
        "train", write_config(tmp_path, **changes, eval={"before": False, "after": False})
    )
    folder = tmp_path / "run"
    wait_for(lambda: (folder / "metrics.jsonl").exists(), process)
    assert steps_of(dying) > 0 and steps_of(living) > 0, "both were played on"
    dying.process.kill()
    assert len(RunStore.open(folder).metrics()[0]) < 8, "the run still goes on"
    status, output = finish(process)
    assert status == 0, output
    rows, _ = RunStore.open(folder).metrics()
    assert [row["step"] for row in rows] == list(range(1, 9))
    episodes, _ = RunStore.open(folder).trajectories("train")
    assert len(episodes) == 8 * 4 and all(teaches(e.outcome) for e in episodes)
    # The living server has the steps that were on it, and all of those after the kill.
    assert steps_of(living) > len([e for e in episodes if e.step > 2])


def steps_of(served) -> int:
    page = requests.get(served.address() + "/metrics", timeout=120).text
    return next(int(x.split()[1]) for x in page.splitlines() if x.startswith("agentgym_steps_tot"))


@pytest.mark.slow
def test_a_resume_that_fails_or_is_refused_loses_nothing(whole_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole_run[0], run)
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")
    shutil.copytree(run / "checkpoints" / "checkpoint-2", run / "checkpoints" / "checkpoint-2-copy")
    weights = run / "checkpoints" / "checkpoint-2" / "model.safetensors"
    whole = weights.read_bytes()
    before = texts(run, "train")
    for damaged in (b"garbage", whole[: len(whole) // 2]):
        weights.write_bytes(damaged)
        status, output = finish(Command("train", "--resume", run))
        assert status == 2 and "Traceback" not in output, output
        assert "checkpoint-2 is damaged" in output.replace("\n", "")
        assert (run / "model").is_dir() and (run / "eval_after.json").is_file()
        assert texts(run, "train") == before and len(RunStore.open(run).metrics()[0]) == 4
    weights.write_bytes(whole)
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    assert texts(run, "train") == before
    moved = (run / "repeated" / "trajectories" / "train.jsonl").read_text().splitlines()
    assert len(moved) == len(before) // 2
    # The model and the evaluation after training are new; those of the first time are set aside.
    for name in ("model", "eval_after.json", "trajectories/eval_after.jsonl"):
        assert (run / name).exists() and (run / "step-4" / name).exists()

    shutil.rmtree(run / "checkpoints")
    args = replace(read_config(run / "config.yaml"), output_dir=str(run))
    with (
        AgentTrainer(args=args) as trainer,
        pytest.raises(ConfigError, match="is complete and has no checkpoint"),
    ):
        trainer.train(resume_from_checkpoint=True)
    assert texts(run, "train") == before


@pytest.mark.slow
def test_values_that_only_libraries_reject_leave_an_earlier_run_where_it_is(whole_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole_run[0], run)
    config = run / "config.yaml"
    for word, said in (
        ("seed=5000000000", "seed is at most 4294967295"),
        ("lora={r: x}", "lora.r must be an integer, got 'x'"),
        ("trainer_args={max_grad_norm: x}", "trainer_args.max_grad_norm must be a number"),
    ):
        status, output = finish(Command("train", config, f"output_dir={run}", word))
        assert status == 2 and said in output and "Traceback" not in output, output
    assert (run / "summary.json").is_file() and list(tmp_path.iterdir()) == [run]
