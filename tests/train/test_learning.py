"""The learning comparison of examples/learning: its world, its figures, and one step of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from math import sqrt
from pathlib import Path

import pytest
from scipy import stats

from agentgym_env.conformance import check_environment
from examples.learning.courier import Courier

FOLDER = Path(__file__).parents[2] / "examples" / "learning"


def kept(arm: str, success: list[float]) -> list[dict]:
    """Results as runs keep them, of 100 evaluation episodes each."""
    return [
        {
            "arm": arm, "success": value, "episodes": 100, "lost": 0, "steps": 2, "env_steps": 50,
            "train_seconds": 30, "rewards": [0.1, value],
            "evaluation": {"horizon": 12, "reward": 7 * value},
        }
        for value in success
    ]  # fmt: skip


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", FOLDER / "figures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_world_keeps_every_promise():
    found = list(check_environment("examples.learning.courier:Courier", sessions=16))
    assert not [finding for finding in found if not finding.passed]
    # It declares no tools.
    assert {f.rule for f in found if not f.applied} == {"calls of tools never raise"}


def test_the_expert_solves_every_task_in_as_many_turns_as_the_way_is_long():
    env = Courier()
    for task in env.tasks.ids:
        env.reset(seed=0, options={"task": task})
        start, parcel, goal = map(int, task.split("-"))
        rewards, ended = [], False
        while not ended:
            _, reward, ended, _, info = env.step(env.expert_action())
            rewards.append(reward)
        assert info["success"] and sum(rewards) == 1
        assert len(rewards) == abs(start - parcel) + 1 + abs(parcel - goal) + 1


def test_a_parcel_that_is_only_taken_is_no_success():
    env = Courier()
    env.reset(seed=0, options={"task": "0-1-3"})
    env.step("right")
    observation, reward, ended, _, info = env.step("take")
    assert (observation, reward, ended) == ("parcel held, goal right 2", 0.25, False)
    assert not info["success"]
    assert env.step("take")[1] == 0, "the parcel is paid for once"


def test_differences_are_paired_and_have_t_intervals(figures):
    control, other = [0.2, 0.3, 0.4], [0.5, 0.6, 1.0]
    results = [*kept("control", control), *kept("a", other)]
    _, row = figures.Comparison.from_results(results, "control").rows
    assert row.difference == pytest.approx(0.4)  # 0.3, 0.3, 0.6
    half = stats.t.ppf(0.975, 2) * sqrt(0.03) / sqrt(3)
    assert row.difference_error == pytest.approx(half, rel=1e-3)
    for degrees, quantile in enumerate(figures.T95, 1):
        assert quantile == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-3)


def test_the_comparison_is_written_as_markdown_json_and_a_plot(figures, tmp_path):
    results = [*kept("control", [0.4, 0.5]), *kept("grpo", [0.8, 0.9])]
    comparison = figures.Comparison.from_results(results, "control")
    for curves in (True, False):
        markdown, values, picture = comparison.write(tmp_path, "the command", curves=curves)
        lines = markdown.read_text().splitlines()
        assert lines[2] == "|control (lr 0)|0.400 0.500|0.450 ± 0.635||3.15|2|50|1.0|"
        assert lines[3].startswith("|grpo|0.800 0.900|0.850 ± 0.635|+0.400 ± 0.000|")
        assert json.loads(values.read_text())["command"] == "the command"
        assert picture.stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "arms"),
    [
        (["--algorithms", "grpo", "steps=1"], ["control", "grpo"]),
        (
            ["--schedule", "--env-steps", "20", "--horizons", "2,3", "--every", "1"],
            ["control", "fixed 2", "fixed 3", "ScalingInter 2-3"],
        ),
    ],
)
def test_a_comparison_runs_once_and_shows_what_is_done_the_second_time(words, arms, tmp_path):
    command = [
        sys.executable, str(FOLDER / "compare.py"), *words, "--seeds", "1", "--out", str(tmp_path),
        "prompts_per_step=1", "num_generations=2", "horizon=[3]", "eval.horizon=3",
        "eval.samples=1",
    ]  # fmt: skip
    shown = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=140)
        assert done.returncode == 0, done.stdout + done.stderr
        shown.append(done.stdout)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["arm"] for row in rows] == arms
    assert all(row["episodes"] == 26 and row["lost"] == 0 for row in rows)
    if "--schedule" in words:
        assert all(20 <= row["env_steps"] < 20 + 2 * 3 for row in rows), rows
    assert "seed 11: success" in shown[0] and "seed 11: success" not in shown[1]


@pytest.mark.slow
def test_sft_gets_as_much_processor_time_as_rl_and_nothing_runs_twice(tmp_path):
    command = [
        sys.executable, str(FOLDER / "against_sft.py"), "--world", "courier", "--seeds", "1",
        "--out", str(tmp_path), "steps=2", "eval.samples=1",
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert first.returncode == 0, first.stdout + first.stderr
    results = {r["arm"]: r for r in json.loads((tmp_path / "against_sft.json").read_text())}
    rl, same = results["GRPO"], results["more of the same imitation"]
    assert rl["steps"] == 2 and rl["env_steps"] > 0 and 0 < rl["informative_groups"] <= 1
    assert same["steps"] > 10, "SFT has no episodes to play, so it takes more steps"
    assert same["processor_seconds"] == pytest.approx(rl["processor_seconds"], rel=0.5)
    expert = results["imitation of the expert"]["success"]
    assert expert > results["the policy before"]["success"] + 0.2
    weights = (tmp_path / "GRPO-11" / "model" / "model.safetensors").stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = again.stdout.splitlines()
    assert [line for line in first.stdout.splitlines() if line in said] == said
    assert (tmp_path / "GRPO-11" / "model" / "model.safetensors").stat().st_mtime_ns == weights
