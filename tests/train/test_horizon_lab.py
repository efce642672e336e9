"""The study of examples/horizon_lab: its world, its plan, its tests, and a trial of all of it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from math import sqrt
from pathlib import Path

import pytest
import torch
from scipy import stats

from agentgym_env.conformance import check_environment
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.algorithms import TokenBatch, make_algorithm
from examples.horizon_lab.masked_reward import MaskedRewardReinforcePP
from examples.horizon_lab.tower import BANDS, LENGTHS, Tower, TowerTo4, TowerTo12, doors_of
from waiting import until

FOLDER = Path(__file__).parents[2] / "examples" / "horizon_lab"


@pytest.fixture(scope="module")
def lab():
    """The modules of the study, which its command imports by their short names."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: import_module(name) for name in ("cell", "plan", "analysis", "plots", "study")}
    finally:
        sys.path.remove(str(FOLDER))


def observations(env: Tower, split: str) -> set[str]:
    """What the expert sees in all tasks of a split."""
    found = set()
    for task in env.tasks.split(split):
        observation, _ = env.reset(seed=0, options={"task": task})
        ended = False
        while not ended:
            found.add(observation)
            observation, _, ended, _, _ = env.step(env.expert_action())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Tower", "TowerTo4"])
def test_the_world_keeps_every_promise(name):
    found = list(check_environment(f"examples.horizon_lab.tower:{name}", sessions=16))
    assert not [finding for finding in found if not finding.passed]
    # It declares no tools.
    assert {f.rule for f in found if not f.applied} == {"calls of tools never raise"}


@pytest.mark.parametrize("shaped", [False, True])
def test_the_expert_needs_one_turn_per_floor_and_earns_one(shaped):
    env = Tower(shaped=shaped)
    for task in env.tasks.ids:
        env.reset(seed=0, options={"task": task})
        rewards, ended = [], False
        while not ended:
            _, reward, ended, _, info = env.step(env.expert_action())
            rewards.append(reward)
        floors = int(task.split("-")[1])
        assert info["success"] and len(rewards) == floors
        assert rewards == pytest.approx(
            [1 / floors] * floors if shaped else [0] * (floors - 1) + [1]
        )


def test_the_splits_share_neither_tasks_nor_observations():
    env = Tower()
    seen = {split: observations(env, split) for split in ("train", "dev", "test")}
    assert all(len(found) > 100 for found in seen.values())
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not seen[one] & seen[other]
    assert {len(env.tasks.split(split)) for split in seen} == {20 * 12, 4 * 12, 5 * 11 + 4}


def test_each_band_of_floors_has_its_own_signs_in_every_split():
    for split in ("train", "dev", "test"):
        bands = [set(), set(), set()]
        for task in Tower.tasks.split(split):
            env = Tower()
            env.reset(seed=0, options={"task": task})
            for floor, sign in enumerate(env.signs, 1):
                bands[sum(floor > highest for highest in BANDS)].add(sign)
        assert all(len(band) >= 8 for band in bands)
        assert not bands[0] & bands[1] and not bands[1] & bands[2] and not bands[0] & bands[2]


def test_wrong_doors_cost_turns():
    env = Tower()
    env.reset(seed=0, options={"task": "train-4-0"})
    up, dead = doors_of(env.signs[0])
    first, second = env.signs[:2]
    down = next(door for door in ("red", "blue", "green", "gold") if door not in (up, dead))
    assert env.step(down)[0] == f"1 of 4, {first}", "the lowest floor is the lowest"
    assert env.step(up)[0] == f"2 of 4, {second}"
    dead_of_second = doors_of(second)[1]
    assert env.step(dead_of_second)[0] == f"2 of 4, {second}, lost 2"
    assert env.step(doors_of(second)[0])[0] == f"2 of 4, {second}, lost 2", "only back leads out"
    assert env.step("back")[0] == f"2 of 4, {second}, lost 1"
    assert env.step("back")[0] == f"2 of 4, {second}"
    assert env.step("back")[0] == f"1 of 4, {first}"
    observation, reward, ended, _, info = env.step("jump")
    assert observation.startswith("Answer with one of: red,") and observation.endswith(first)
    assert (reward, ended, info["invalid_action"]) == (0.0, False, True)


def test_falls_and_dead_ends_are_parameters():
    env = Tower(fall=3, dead_end=0)
    env.reset(seed=0, options={"task": "train-8-0"})
    for _ in range(5):
        env.step(env.expert_action())
    _, dead = doors_of(env.signs[5])
    assert env.step(dead)[0].startswith("3 of 8,"), "without dead ends, every wrong door leads down"
    for values in ({"fall": -1}, {"dead_end": 0.5}):
        with pytest.raises(BadRequest, match=rf"{next(iter(values))} must be a number"):
            Tower(**values)


def test_a_floor_pays_once_where_reward_is_shaped():
    env = Tower(shaped=True)
    env.reset(seed=0, options={"task": "train-2-0"})
    up = doors_of(env.signs[0])[0]
    assert [env.step(action)[1] for action in (up, "back", up)] == [0.5, 0.0, 0.0]


def test_smaller_towers_have_only_short_tasks():
    for env, highest in ((TowerTo4, 4), (TowerTo12, 12), (Tower, max(LENGTHS))):
        assert max(int(task.split("-")[1]) for task in env.tasks.ids) == highest


def test_a_masked_reward_never_reaches_the_policy():
    # Two episodes of two turns: sampled, reply, sampled. The second one succeeds.
    mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    batch = TokenBatch(
        loss_mask=mask, rewards=torch.tensor([[0.0, 0.0], [0.0, 1.0]]),
        turn_ends=torch.tensor([[1, 3], [1, 3]]), trainable=torch.tensor([True, True]),
        group_size=2, states=torch.zeros(2, 2, dtype=torch.long),
        truncated=torch.tensor([True, False]),
    )  # fmt: skip
    assert torch.equal(MaskedRewardReinforcePP().advantages(batch), torch.zeros(2, 3))
    correct = make_algorithm("reinforce_pp").advantages(batch)
    # Returns 0 0 1 1: mean 1/2, deviation sqrt(1/3) with n - 1.
    expected = torch.tensor([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]) / 2 * sqrt(3)
    assert torch.allclose(correct, expected, atol=1e-3)


def test_the_main_grid_runs_seed_after_seed(lab, tmp_path):
    plan = lab["plan"]
    cells = list(plan.main_grid(plan.Study(tmp_path), ("tower",)))
    assert [cell.labels["seed"] for cell in cells] == [s for s in plan.SEEDS for _ in range(7)]
    assert len({cell.name for cell in cells}) == len(cells) == 35
    control = next(cell for cell in cells if cell.labels["schedule"] == "control")
    assert control.config.learning_rate == 0 and control.config.horizon == [32]
    starts = {json.dumps({**c.plan["config"], "seed": 0}) for c in cells if c is not control}
    assert len(starts) == 7, "runs of different seeds differ in nothing else"


@pytest.fixture(scope="module")
def study_of_all(lab, tmp_path_factory):
    """(the study, the cells of all its parts)"""
    made = lab["plan"].Study(tmp_path_factory.mktemp("study"))
    return made, [cell for part in lab["plan"].PARTS.values() for cell in part(made)]


def test_every_part_has_cells_with_names_and_folders_of_their_own(study_of_all):
    made, cells = study_of_all
    for values in ([cell.name for cell in cells], [cell.path for cell in cells]):
        assert len(set(values)) == len(values)
    assert all(cell.path == made.out / cell.name for cell in cells)
    stages = {cell.labels["tag"]: cell.config.horizon for cell in cells if "stages" in cell.labels}
    assert len(stages) == 7 and stages["10-20-30-x1"]["turns"] == [11, 21, 32]


def test_a_result_of_another_plan_is_not_taken(lab, tmp_path):
    plan = lab["plan"]
    cell = next(plan.main_grid(plan.Study(tmp_path), ("tower",)))
    cell.path.mkdir(parents=True)
    others = {"final": {}, "evaluations": [], "training": {}}
    kept = {"plan": {**cell.plan, "env_steps": 1}, **others}
    (cell.path / "result.json").write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match="run with another plan"):
        cell.result()


def test_published_cells_are_those_of_the_plan(lab, study_of_all, tmp_path):
    plan, digest = lab["plan"], lab["cell"].digest
    planned = {cell.name: digest(cell.plan) for cell in study_of_all[1]}
    assert {c["name"]: c["plan"] for c in published(lab)["cells"]} == planned
    trial = next(plan.main_grid(plan.Study(tmp_path, trial=True)))
    assert digest(trial.plan) != planned[trial.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "bogus"], "no schedule 'bogus' here; choose from short, medium"),
        (["--seed", "99"], "no seed '99' here"),
        (["--cell", "map/x", "--part", "main"], "no cell 'map/x' in part main"),
        (["--report"], "has no finished cell"),
        (["learning_rate=5"], "learning_rate of main/tower-grpo-short-11 is set by the plan"),
        (["--trial", "--cell", "main/tower-grpo-short-11"], "of another plan"),
    ],
)
def test_a_wrong_command_of_the_study_says_what_is_wrong(
    lab, tmp_path, monkeypatch, capsys, words, said
):
    if "--cell" in words:
        shutil.copy(FOLDER / "results" / lab["analysis"].SUMMARY, tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", "--out", str(tmp_path), *words])
    assert lab["study"].main() == 2
    assert said in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_a_damaged_file_of_the_study_is_named(lab, tmp_path, monkeypatch, capsys, text):
    folder = tmp_path / "main" / "tower-grpo-short-11"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["study.py", "--report", "--out", str(tmp_path)])
    assert lab["study"].main() == 2
    assert re.search(
        r"result.json is (damaged|incomplete|not a JSON object)", capsys.readouterr().out
    )


def cell_of(schedule: str, seed: int, success: float, *, tokens: int = 100) -> dict:
    """A cell of the summary with two tasks, of which one is solved twice as often."""
    return {
        "name": f"{schedule}-{seed}", "part": "main", "world": "tower", "schedule": schedule,
        "algorithm": "grpo", "tag": "", "seed": seed, "horizons": [2, 4],
        "final": {
            "success": {"2": 0.0, "4": success}, "entropy": 1.0, "kl": 0.1, "invalid_actions": 0.0,
            "by_task": {"4": {"a": success * 4 / 3, "b": success * 2 / 3}},
        },
        "curve": [
            {"env_steps": 50 * n, "sampled_tokens": tokens * n / 2,
             "success": {"2": 0.0, "4": value}, "entropy": 1.0, "kl": 0.1, "invalid_actions": 0.0,
             "split": "dev"}
            for n, value in enumerate((0.0, 0.3, success))
        ],
        "peak": max(0.3, success), "fall": max(0.3, success) - success, "late_change": 0.0,
        "steps": 2, "env_steps": 100, "sampled_tokens": tokens, "seconds": 60.0,
        "means": {"turns": 2.0, "entropy": 1.0, "grad_norm": 0.1, "informative_groups": 0.5,
                  "reward": 0.3},
        "training": {name: [1.0, 2.0] for name in
                     ("env_steps", "horizon", "informative_groups", "grad_norm", "turns")},
    }  # fmt: skip


def test_arms_are_compared_seed_by_seed_and_corrected(lab):
    staged, short, long = (0.6, 0.7, 0.5), (0.5, 0.5, 0.4), (0.6, 0.1, 0.4)
    cells = [
        cell_of(name, seed, value)
        for name, values in (("stepwise", staged), ("short", short), ("long", long))
        for seed, value in enumerate(values)
    ]
    world = lab["analysis"].world_summary(cells)
    first, second = world["equal_env_steps"]
    assert (first["first"], first["second"]) == ("stepwise", "short")
    assert first["difference"] == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    p = [stats.ttest_rel(staged, other).pvalue for other in (short, long)]
    assert [first["p"], second["p"]] == pytest.approx(p)
    assert first["p_holm"] == pytest.approx(2 * min(p)) and min(p) == p[0]
    assert second["p_holm"] == pytest.approx(max(2 * p[0], p[1]))
    low, high = first["interval"]
    assert 0 < low < first["difference"] < high < 0.3
    assert world["collapsed"] == {"short": 0, "long": 1, "stepwise": 0}


def test_runs_are_also_compared_at_equal_tokens(lab):
    cells = [cell_of("short", 1, 0.5, tokens=100), cell_of("long", 1, 0.7, tokens=200)]
    found = lab["analysis"].equal_tokens(cells)
    assert found == pytest.approx({"short-1": 0.5, "long-1": 0.3})


def test_a_plateau_is_judged_by_the_second_half(lab):
    curve = [0.1, 0.2, 0.4, 0.5, 0.6, 0.6, 0.5, 0.6, 0.7]
    assert lab["analysis"].late_change(curve) == pytest.approx((0.6 + 0.7) / 2 - (0.5 + 0.6) / 2)


def test_success_within_fewer_turns_is_read_from_longer_episodes(lab):
    def episode(task: str, turns: int, success: bool) -> Trajectory:
        return Trajectory("e", task, 0, "", "", [Turn("", "", "")] * turns, "success", "p", 8,
                          success=success)  # fmt: skip

    episodes = [episode("a", 3, True), episode("a", 8, True), episode("b", 8, False)]
    cell = lab["cell"]
    assert cell.within(episodes, 3) == [1, 0, 0] and cell.within(episodes, 8) == [1, 1, 0]
    assert cell.by_task(episodes, 3) == {"a": 0.5, "b": 0.0}


def published(lab) -> dict:
    return json.loads((FOLDER / "results" / lab["analysis"].SUMMARY).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_published_tables_follow_from_the_published_cells(lab, tmp_path):
    shutil.copy(FOLDER / "results" / lab["analysis"].SUMMARY, tmp_path)
    command = published(lab)["command"]
    written = lab["analysis"].write(tmp_path, command)
    tables, known = (folder / "tables.md" for folder in (tmp_path, FOLDER / "results"))
    assert tables.read_text() == known.read_text()
    assert json.loads((tmp_path / "summary.json").read_text()) == published(lab)
    assert {path.name for path in written} >= {"main-tower-grpo.png"}


def test_the_records_of_the_docs_have_the_published_figures(lab):
    cells = {}
    for c in published(lab)["cells"]:
        cells.setdefault((c["part"], c["world"]), set()).add(
            (c["seed"], c["final"]["success"][str(c["horizons"][-1])])
        )
    records = sorted((FOLDER.parents[1] / "results").glob("horizon_*.json"))
    assert len(records) == 6
    for path in records:
        record = json.loads(path.read_text())
        known = cells[record["part"], record["world"]]
        rows = [set(zip(r["seeds"], r["success"], strict=True)) for r in record["rows"]]
        assert set().union(*rows) == known, path.name


@pytest.mark.slow
def test_cells_that_were_run_elsewhere_are_not_run_again(lab, tmp_path):
    shutil.copy(FOLDER / "results" / lab["analysis"].SUMMARY, tmp_path)
    words = ["--part", "main", "--world", "tower", "--out", str(tmp_path)]
    command = [sys.executable, str(FOLDER / "study.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("main/*")) and (tmp_path / "tables.md").is_file()


def study(*words: str, out: Path) -> list[str]:
    return [
        sys.executable, str(FOLDER / "study.py"), "--trial", "--world", "tower", "--seed", "11",
        "--out", str(out), *words, "prompts_per_step=2", "num_generations=2", "save_every=1",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_killed_study_resumes_and_ends_with_the_same_numbers(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    name = "main/tower-grpo-stepwise-11"
    command = study("--part", "main,scaling", "--schedule", "stepwise", out=whole)
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((whole / "summary.json").read_text())
    assert [cell["schedule"] for cell in summary["cells"]] == ["stepwise"]
    pictures = {path.name for path in whole.glob("*.png")}
    assert pictures == {"main-tower-grpo.png", "main-tower-grpo-mechanism.png", "scaling.png"}
    assert len(json.loads((whole / "scaling.json").read_text())["policies"]) == 2

    command = study("--cell", name, out=killed)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        checkpoint = killed / name / "checkpoints" / "checkpoint-1" / "horizon.json"
        until(checkpoint.is_file, process=process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (killed / name / "result.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (
        json.loads((folder / name / "result.json").read_text()) for folder in (whole, killed)
    )
    assert second["training"]["step"] == [1, 2, 3][: len(first["training"]["step"])]
    for part in ("plan", "evaluations", "final"):
        assert first[part] == second[part]

    # As after a kill during the last evaluation: the checkpoint of the last step is there.
    for left in (killed / name / "result.json", killed / "summary.json"):
        left.unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    third = json.loads((killed / name / "result.json").read_text())
    assert third["training"]["step"] == first["training"]["step"]
    assert third["evaluations"] == first["evaluations"] and third["final"] == first["final"]
    done = subprocess.run(
        [*command, "temperature=0.5"], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 2 and "another plan" in done.stdout
