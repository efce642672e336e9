"""Folders that are read-only, on another file system or a disk of their own, or used by several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentgym_env.run_store import RunStore
from tests.attack.test_full_disk import disk, resize
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy

__all__ = ["disk"]
AT_ONCE, ROUNDS, EPISODES = 4, 5, 12


def collection(out: Path, seed: int = 0) -> Command:
    words = ("--env", "textcraft", "--policy", "expert", "--n", EPISODES, "--seed", seed)
    return Command("collect", *words, "--out", out)


def training(folder: Path, out: Path) -> Command:
    values = {
        "env": "textcraft", "model": save_tiny_policy(folder / "policy"), "horizon": 1, "steps": 1,
        "output_dir": str(out), "prompts_per_step": 1, "num_generations": 2, "turn_max_tokens": 4,
        "eval": {"before": False, "after": False},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return Command("train", folder / "config.yaml")


@pytest.mark.slow
def test_several_collections_at_once_write_each_episode_once(tmp_path):
    refused = 0
    for number in range(ROUNDS):
        out = tmp_path / str(number)
        ended = [finish(each) for each in [collection(out) for _ in range(AT_ONCE)]]
        for status, said in ended:
            assert status == 0 or (status == 2 and "is in use by" in said), said
        refused += sum(status == 2 for status, _ in ended)
        episodes, broken = RunStore.open(out).trajectories("collected")
        assert not broken and len(episodes) == EPISODES
        assert len({(e.task, e.seed) for e in episodes}) == EPISODES
        assert json.loads((out / "summary.json").read_text())["to_play"] == 0
    assert refused, "no two ran at the same time"
    sys.stdout.write(f"{AT_ONCE * ROUNDS} collections, {AT_ONCE} at once: {refused} refused\n")


def test_two_collections_with_other_settings_at_once_mix_nothing(tmp_path):
    out = tmp_path / "out"
    ended = [finish(each) for each in [collection(out, seed) for seed in (1, 2)]]
    assert sorted(status for status, _ in ended) == [0, 2], ended
    episodes, _ = RunStore.open(out).trajectories("collected")
    seed = RunStore.open(out).read_json("run.json")["config"]["seed"]
    status, said = finish(collection(tmp_path / "alone", seed))
    assert status == 0, said
    alone, _ = RunStore.open(tmp_path / "alone").trajectories("collected")
    assert sorted((e.task, e.seed) for e in episodes) == sorted((e.task, e.seed) for e in alone)
    sys.stdout.write("two collections with other settings in a folder: one is refused\n")


def said_in_one_line(process: Command) -> str:
    status, said = finish(process)
    assert status == 2 and "Traceback" not in said, said
    return " ".join(said.split())


@pytest.mark.slow
def test_a_read_only_folder_can_be_read_and_nothing_else(disk, tmp_path):
    resize(disk, "64m")
    run = disk / "run"
    assert finish(training(tmp_path, run))[0] == 0
    assert finish(collection(disk / "collected"))[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for words in (
        ("replay", disk / "collected"),
        ("audit", run, "--turns", 1, "--episodes", 1),
        ("export", disk / "collected", "--out", tmp_path / "out.jsonl"),
        ("eval", "--env", "textcraft", "--policy", run / "model", "--settings-of", run,
         "--limit", 1, "--horizon", 1, "--out", tmp_path / "eval"),
    ):  # fmt: skip
        status, said = finish(Command(*words))
        assert status == 0, (words, said)
    given = ("--env", "textcraft", "--policy", "expert")
    for words in (
        ("train", "--resume", run, "steps=2"),
        ("train", tmp_path / "config.yaml"),
        ("collect", *given, "--n", 13, "--out", disk / "collected"),
        ("collect", *given, "--n", 1, "--out", disk / "new" / "folder"),
        ("eval", *given, "--limit", 1, "--out", disk / "eval"),
        ("eval", "--suite", "starter:suites/paper.yaml", *given[2:], "--limit", 1,
         "--out", disk / "suite"),
        ("import", tmp_path / "out.jsonl", "--out", disk / "imported"),
        ("export", disk / "collected", "--out", disk / "out.jsonl"),
        ("models", run / "model", "--save", disk / "saved"),
        ("audit", run, "--turns", 1, "--episodes", 1, "--json", disk / "audit.json"),
    ):  # fmt: skip
        assert "Read-only file system" in (said := said_in_one_line(Command(*words))), said
    sys.stdout.write("4 commands read a read-only run, and 10 that write say why they cannot\n")


@pytest.mark.slow
def test_a_run_folder_that_is_a_disk_of_its_own_is_used_and_kept(disk, tmp_path):
    resize(disk, "64m")
    assert finish(training(tmp_path, disk))[0] == 0
    before = (disk / "run.json").read_bytes()
    said = said_in_one_line(training(tmp_path, disk))
    assert "choose another folder" in said, said
    assert (disk / "run.json").read_bytes() == before
    status, said = finish(Command("train", "--resume", disk, "steps=2"))
    assert status == 0, said
    given = ("--env", "textcraft", "--policy", "expert", "--limit", 1, "--out")
    (tmp_path / "eval").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "eval"), str(tmp_path / "eval")], check=True)
    try:
        assert finish(Command("eval", *given, tmp_path / "eval"))[0] == 0
        said = said_in_one_line(Command("eval", *given, tmp_path / "eval", "--fresh"))
        assert "choose another folder" in said, said
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "eval")], check=True)
    sys.stdout.write("a disk as a run folder: used, resumed, and never overwritten\n")


@pytest.mark.slow
def test_a_run_folder_that_links_to_another_file_system_is_written_and_moved_there(disk, tmp_path):
    resize(disk, "64m")
    (disk / "run").mkdir()
    (tmp_path / "run").symlink_to(disk / "run")
    for _ in range(2):
        status, said = finish(training(tmp_path, tmp_path / "run"))
        assert status == 0, said
    assert (tmp_path / "run").is_symlink() and (disk / "run.old-1" / "summary.json").is_file()
    status, said = finish(Command("train", "--resume", tmp_path / "run", "steps=2"))
    assert status == 0, said
    assert [row["step"] for row in RunStore.open(disk / "run").metrics()[0]] == [1, 2]
    status, said = finish(collection(tmp_path / "episodes"))
    words = ("export", tmp_path / "episodes", "--out", disk / "episodes.parquet")
    assert status == 0 and finish(Command(*words))[0] == 0, said
    sys.stdout.write("a run folder on another file system: written, moved aside and resumed\n")
