"""The run folder: appended to, never overwritten, readable after a crash."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore, next_free_name
from agentgym_env.trajectory import Trajectory, Turn


def episode(task="1") -> Trajectory:
    return Trajectory(
        env="e", task=task, seed=3, instruction="", observation="o",
        turns=[Turn("r", "a", "answer é\n", 0.5)], outcome="success", policy="p", horizon=4,
    )  # fmt: skip


def test_what_is_written_comes_back(tmp_path):
    store = RunStore.create(tmp_path / "run", {"seed": 1})
    store.append_trajectories("train", [episode("1"), episode("2")])
    store.append_trajectories("train", [episode("3")])
    found, broken = RunStore.open(tmp_path / "run").trajectories("train")
    assert found == [episode("1"), episode("2"), episode("3")]
    assert broken == []
    assert store.read_json("run.json") == {"seed": 1}
    assert store.read_json("summary.json") is None
    assert store.trajectories("never") == ([], [])


def test_a_second_run_moves_the_first_aside(tmp_path):
    for seed in (1, 2, 3):
        RunStore.create(tmp_path / "run", {"seed": seed})
    seeds = {
        name: json.loads((tmp_path / name / "run.json").read_text())["seed"]
        for name in ("run", "run.old-1", "run.old-2")
    }
    assert seeds == {"run": 3, "run.old-1": 1, "run.old-2": 2}
    assert next_free_name(tmp_path / "run").name == "run.old-3"


def test_a_line_cut_by_a_crash_is_reported_and_spoils_no_other(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories("train", [episode("1")])
    path = store.path / "trajectories" / "train.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    store.append_trajectories("train", [episode("2")])
    found, broken = store.trajectories("train")
    assert [t.task for t in found] == ["1", "2"]
    assert [(b.path, b.line) for b in broken] == [(path, 2)]


def test_of_a_step_that_ran_twice_the_later_metrics_count(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    for step, loss in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)):
        store.append_metrics({"step": step, "loss": loss})
    rows, _ = store.metrics()
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 0.1), (2, 0.25), (3, 0.35)]


class Kept(msgspec.Struct):
    episode: int


def test_steps_that_a_resumed_run_repeats_are_removed_everywhere(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    for step in range(4):
        starts = store.append_trajectories("train", [replace(episode(f"{step}"), step=step)] * 2)
        store.append_tokens("train", map(Kept, starts))
        store.append_metrics({"step": step + 1})
    path = store.path / "trajectories" / "train.jsonl"
    whole, second = path.read_bytes(), store.trajectories("train")[0][:4]
    path.write_bytes(whole + whole[:20])  # killed while writing
    store.append_trajectories("eval_before", [replace(episode(), step=9)])
    store.keep_steps(2)
    assert store.trajectories("train") == (second, [])
    assert path.read_bytes() == whole[: len(path.read_bytes())]
    tokens = (store.path / "tokens" / "train.jsonl").read_text().splitlines()
    assert len(tokens) == 4 and all(json.loads(t)["episode"] < path.stat().st_size for t in tokens)
    assert [row["step"] for row in store.metrics()[0]] == [1, 2]
    assert len(store.trajectories("eval_before")[0]) == 1
    store.keep_steps(2)
    assert store.trajectories("train") == (second, [])
    store.keep_steps(0)
    assert store.trajectories("train") == ([], []) and store.metrics() == ([], [])


def test_steps_are_removed_everywhere_though_it_was_killed_in_between(tmp_path, monkeypatch):
    store = RunStore.create(tmp_path / "run", {})
    for step in range(3):
        starts = store.append_trajectories("train", [replace(episode(f"{step}"), step=step)])
        store.append_tokens("train", map(Kept, starts))
        store.append_metrics({"step": step + 1})
    cut, cuts = RunStore._cut, iter(range(9))
    for killed_at in range(3):

        def killed(self, name, begin, at=killed_at, count=cuts):
            cut(self, name, begin)
            if next(count) % 3 == at:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunStore, "_cut", killed)
        with pytest.raises(KeyboardInterrupt):
            store.keep_steps(2)
        monkeypatch.setattr(RunStore, "_cut", cut)
        store.keep_steps(2)
        assert len(store.trajectories("train")[0]) == len(store.metrics()[0]) == 2
        assert len((store.path / "tokens" / "train.jsonl").read_text().splitlines()) == 2
        starts = store.append_trajectories("train", [replace(episode("2"), step=2)])
        store.append_tokens("train", map(Kept, starts))
        store.append_metrics({"step": 3})
        cuts = iter(range(9))


def test_an_evaluation_that_was_interrupted_is_not_stored_twice(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories("eval_before", [episode("1")])
    store.replace_trajectories("eval_before", [episode("1"), episode("2")])
    assert [t.task for t in store.trajectories("eval_before")[0]] == ["1", "2"]


def test_a_json_file_is_written_whole_or_not_at_all(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    store.write_json("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        store.write_json("summary.json", {"a": object()})
    assert store.read_json("summary.json") == {"a": 1}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"has no run\.json"):
        RunStore.open(tmp_path)


def test_a_link_in_place_of_a_partial_file_is_not_written_through(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (store.path / "summary.json.partial").symlink_to(precious)
    store.write_json("summary.json", {"done": 1})
    assert precious.read_text() == "mine"
    assert store.read_json("summary.json") == {"done": 1}
    assert not (store.path / "summary.json").is_symlink()
