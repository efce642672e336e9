"""`agentgym eval`: the same figures whenever it is asked, stopped, or killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy
from waiting import until

TEXTCRAFT = ["--env", "textcraft", "--horizon", "8", "--policy", "random"]
MANY = [*TEXTCRAFT, "--samples", "12"]


def command(folder: Path, *words: str) -> Command:
    return Command("eval", *words, cwd=folder)


def run(folder: Path, *words: str, status: int = 0) -> str:
    found, said = finish(command(folder, *words))
    assert found == status, said
    return said


def reports(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())["reports"]


def lines_of(folder: Path, name: str = "random") -> list[bytes]:
    path = folder / "trajectories" / f"{name}.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def until_kept(process: Command, store: Path, name: str, enough: int) -> None:
    until(lambda: len(lines_of(store, name)) >= enough, process=process)


def kill_when_half_done(folder: Path, store: Path, name: str, enough: int, *words: str) -> int:
    """Start it, and kill -9 it once so many episodes are kept; how many were, then."""
    process = command(folder, *words)
    until_kept(process, store, name, enough)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return len(lines_of(store, name))


def test_the_same_evaluation_twice_gives_the_same_figures(tmp_path):
    words = [*TEXTCRAFT, "--policy", "expert", "--samples", "2", "--limit", "20"]
    run(tmp_path, *words, "--out", "one")
    run(tmp_path, *words, "--out", "other", "--concurrency", "3")
    for name in ("report.json", "report.csv", "report.md"):
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "other" / name).read_text()
    found = reports(tmp_path / "one")
    assert found["expert"]["success"] == 1.0
    assert 0 < found["random"]["success"] < 1


def test_a_local_evaluation_loads_only_what_it_uses():
    """It runs the code of as few files as `tools/house.py --eval` counts; lower the number."""
    tool = Path(__file__).parents[2] / "tools" / "house.py"
    done = subprocess.run(
        [sys.executable, tool, "--eval"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *files, count = done.stdout[done.stdout.index("agentgym_env/__init__.py") :].splitlines()
    needless = (
        "servers/", "adapters/", "agentgym_train/training/", "agentgym_train/runs/",
        "agentgym_train/engines/vllm/", "agentgym_train/engines/openai", "agentgym_train/audit/",
        "agentgym_train/config/rl", "agentgym_train/config/learn",
    )  # fmt: skip
    assert not [file for file in files if file.startswith(needless)]
    assert "agentgym_train/engines/hf/engine.py" in files, "the evaluation samples from a model"
    assert count == f"{len(files)} files in a local evaluation" and len(files) <= 87


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_no_finished_episode_is_played_again(tmp_path):
    run(tmp_path, *MANY, "--out", "whole")
    store = tmp_path / "killed"
    kept = kill_when_half_done(tmp_path, store, "random", 40, *MANY, "--out", "killed")
    assert 40 <= kept < 1200
    before = lines_of(store)
    said = run(tmp_path, *MANY, "--out", "killed")
    assert "of 1200 episodes are stored already" in said
    assert lines_of(store)[: len(before) - 1] == before[:-1]  # the last may have been cut off
    trajectories, _ = RunStore.open(store).trajectories("random")
    assert set(Counter((t.task, t.seed) for t in trajectories).values()) == {1}
    assert len(trajectories) == 1200
    assert (store / "report.json").read_text() == (tmp_path / "whole" / "report.json").read_text()
    assert (store / "report.csv").read_text() == (tmp_path / "whole" / "report.csv").read_text()


@pytest.mark.slow
def test_a_complete_evaluation_plays_nothing_and_finds_its_own_folder(tmp_path):
    words = [*TEXTCRAFT, "--limit", "3"]
    run(tmp_path, *words)
    (folder,) = (tmp_path / "runs" / "eval").iterdir()
    assert folder.name.startswith("TextCraft-v0-test-")
    before = lines_of(folder)
    assert "3 of 3 episodes are stored already" in run(tmp_path, *words)
    assert lines_of(folder) == before
    run(tmp_path, *words, "--seed", "1")
    assert len(list((tmp_path / "runs" / "eval").iterdir())) == 2
    run(tmp_path, *words, "--fresh")
    assert (folder.with_name(f"{folder.name}.old-1") / "report.json").is_file()
    assert "already" not in run(tmp_path, *words, "--fresh")


@pytest.mark.slow
def test_another_command_on_the_same_folder_is_refused_and_says_what_differs(tmp_path):
    words = [*TEXTCRAFT, "--limit", "2", "--out", "here"]
    run(tmp_path, *words)
    before = lines_of(tmp_path / "here")
    said = run(tmp_path, *words, "--samples", "2", status=2)
    assert "samples is 1 there, 2 here" in said and "--out" in said
    assert "policies is" in run(tmp_path, *words, "--policy", "expert", status=2)
    assert lines_of(tmp_path / "here") == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine").write_text("x")
    said = run(tmp_path, *TEXTCRAFT, "--limit", "2", "--out", "notes", status=2)
    assert "contains no evaluation" in said
    RunStore.create(tmp_path / "training", {"config": {}})
    assert "is a file" in run(tmp_path, *TEXTCRAFT, "--out", "notes/mine", status=2)
    said = run(tmp_path, *TEXTCRAFT, "--limit", "2", "--out", "training", status=2)
    assert "contains a run and no evaluation" in said


def test_a_store_that_was_cut_off_says_what_is_missing_and_plays_that_again(tmp_path):
    words = [*TEXTCRAFT, "--limit", "6", "--out", "here"]
    run(tmp_path, *words)
    report = (tmp_path / "here" / "report.json").read_text()
    path = tmp_path / "here" / "trajectories" / "random.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    said = run(tmp_path, *words)
    assert "random.jsonl, line 6 cannot be read" in said
    assert "5 of 6 episodes are stored already; 1 are played now" in said
    assert (tmp_path / "here" / "report.json").read_text() == report
    (tmp_path / "here" / "run.json").write_text('{"kind": "evalu')
    assert "run.json is damaged" in run(tmp_path, *words, status=2)


def test_two_processes_do_not_share_a_folder(tmp_path):
    words = [*MANY, "--out", "here"]
    first = command(tmp_path, *words)
    try:
        until_kept(first, tmp_path / "here", "random", 1)
        first.send_signal(signal.SIGSTOP)  # or it may be done before the second begins
        said = run(tmp_path, *words, status=2)
        assert f"here is in use by process {first.pid} on host" in said
        assert "choose another folder with --out" in said
    finally:
        first.kill()
        first.communicate()


def test_ctrl_c_keeps_what_is_over(tmp_path):
    words = [*MANY, "--out", "here"]
    process = command(tmp_path, *words)
    until_kept(process, tmp_path / "here", "random", 20)
    process.send_signal(signal.SIGINT)
    status, said = finish(process)
    assert status == 130, said
    assert "Interrupted. Finished episodes are in here. Resume with the same command." in said
    kept, broken = RunStore.open(tmp_path / "here").trajectories("random")
    assert len(kept) >= 20 and broken == []


def test_tasks_are_named_one_by_one_or_by_a_file(tmp_path):
    (tmp_path / "list.txt").write_text("# mine\nstick\n\nbirch boat\n")
    base = ["--env", "textcraft", "--policy", "expert", "--horizon", "30"]
    named = ["--tasks", "list.txt", "--tasks", "torch", "--tasks", "stick"]
    run(tmp_path, *base, *named, "--out", "a")
    kept, _ = RunStore.open(tmp_path / "a").trajectories("expert")
    assert sorted(t.task for t in kept) == ["birch boat", "stick", "torch"]
    assert {t.split for t in kept} <= {"train", "test"}
    said = run(tmp_path, *base, "--tasks", "stik", status=2)
    assert "is not a file" in said and "did you mean 'stick'" in said
    (tmp_path / "wrong.txt").write_text("nothing like it\n")
    assert "no task" in run(tmp_path, *base, "--tasks", "wrong.txt", status=2)
    of_paper = [*base, "--split", "paper", "--out", "b", "--tasks"]
    assert "is not in split 'paper'" in run(tmp_path, *of_paper, "textcraft_100", status=2)
    run(tmp_path, *of_paper, "textcraft_533")
    assert [t.split for t in RunStore.open(tmp_path / "b").trajectories("expert")[0]] == ["paper"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "random"], "two policies have the label 'random'"),
        (["--policy", "gpt:4"], "unknown policy 'gpt:4'"),
        (["--baseline", "expert"], "--baseline 'expert' is not one of 'random'"),
        (["--agent", "window:2"], "agent 'window:2' would change nothing"),
        (["--split", "dev"], "no split 'dev'"),
        (["--env-kwargs", "[]"], "env_kwargs must be a mapping"),
        (["--policy", "vllm:http://127.0.0.1:9"], "no vLLM server responds"),
    ],
)
def test_bad_words_are_refused_before_anything_is_played(tmp_path, words, told):
    said = run(tmp_path, *TEXTCRAFT, "--limit", "1", "--out", "here", *words, status=2)
    assert told in said
    assert "vllm" in told.lower() or not (tmp_path / "here").exists()


def test_hostile_worlds_are_text_in_what_it_prints_and_writes(tmp_path, worlds_folder):
    words = ["--env", "hostile:Rude", "--policy", "random", "--horizon", "2"]
    said = run(worlds_folder, *words, "--out", str(tmp_path / "out"))
    assert "\\x1b[2J[bold]category[/]" in said
    assert "\x1b" not in said and "\u202e" not in said


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["1.0", "0.0"])
def test_a_model_killed_in_the_middle_gives_the_figures_of_one_that_was_not(tmp_path, temperature):
    model = save_tiny_policy(tmp_path / "model")
    words = [
        "--env", "textcraft", "--policy", f"tiny=hf:{model}", "--horizon", "6", "--samples", "2",
        "--temperature", temperature, "--turn-max-tokens", "12", "--max-tokens", "900",
        "--limit", "16", "--instruction", "",
    ]  # fmt: skip
    run(tmp_path, *words, "--out", "whole")
    store = tmp_path / "killed"
    few = ["--concurrency", "5"]  # other companions in every batch
    kept = kill_when_half_done(tmp_path, store, "tiny", 5, *words, *few, "--out", "killed")
    assert kept < 32
    run(tmp_path, *words, "--out", "killed")
    whole, killed = (
        {
            (t.task, t.seed): [turn.response for turn in t.turns]
            for t in RunStore.open(tmp_path / name).trajectories("tiny")[0]
        }
        for name in ("whole", "killed")
    )
    assert whole == killed
    assert (store / "report.json").read_text() == (tmp_path / "whole" / "report.json").read_text()
    torn = Path(model) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-8] + b"otherone")
    assert "policies is" in run(tmp_path, *words, "--out", "whole", status=2)


@pytest.mark.slow
def test_a_policy_that_cannot_be_loaded_leaves_nothing_that_blocks_the_next_one(tmp_path):
    save_tiny_policy(tmp_path / "bad")
    weights = tmp_path / "bad" / "model.safetensors"
    whole = weights.read_bytes()
    words = [*TEXTCRAFT[:-1], "bad", "--limit", "1", "--horizon", "1", "--out", "here"]
    weights.write_bytes(whole[:2000])
    assert "model.safetensors is cut off" in run(tmp_path, *words, status=2)
    config = tmp_path / "bad" / "config.json"
    sizes = json.loads(config.read_text())
    weights.write_bytes(whole)
    config.write_text(json.dumps({**sizes, "hidden_size": 999}))
    assert "cannot load" in run(tmp_path, *words, status=2)
    config.write_text(json.dumps(sizes))
    run(tmp_path, *words)
    said = run(tmp_path, *words, "--policy", "expert", status=2)
    assert "policies is bad=hf:bad (weights " in said and "expert=expert here" in said, said
