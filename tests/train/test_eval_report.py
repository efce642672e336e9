"""Reports, tables and charts of played episodes."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import replace

import pytest
from rich.console import Console

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.evaluation.charts import bar_chart
from agentgym_train.evaluation.plan import EvalPlan, eval_starts
from agentgym_train.evaluation.play import summarize
from agentgym_train.evaluation.report import (
    EvalReport,
    compare,
    comparisons_of,
    figures_of,
    reports_of,
)
from agentgym_train.evaluation.tables import (
    MAX_CATEGORIES,
    as_csv,
    evaluation_json,
    grids_of,
    report_bars,
)
from agentgym_train.rollout.actors import RandomActor
from agentgym_train.rollout.runner import RolloutRunner

PLAN = EvalPlan(
    env="agentgym/WebArena-v0", env_kwargs={}, env_version="1", split="test", tasks=["a", "b"],
    samples=2, horizon=9, seed=0,
    policy=PolicyConfig(instruction="", turn_max_tokens=9, max_tokens=99),
)  # fmt: skip


def episode(task="a", seed=0, success=True, **changes) -> Trajectory:
    turn = Turn("r", "x", "o", float(success), {"turn": 1, "invalid_action": not success})
    values = {
        "env": PLAN.env, "task": task, "seed": seed, "instruction": "", "observation": "",
        "turns": [turn], "outcome": "success" if success else "horizon", "policy": "p",
        "horizon": 9, "split": "test", "category": "shopping", "success": success,
        "score": float(success),
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def played(*successes, **changes):
    """Two samples of each of several tasks."""
    return [
        figures_of(episode(str(n // 2), n, bool(success), **changes))
        for n, success in enumerate(successes)
    ]


def test_a_report_counts_samples_by_task():
    (report,) = reports_of(PLAN, {"p": played(1, 0, 1, 1, 0, 0)}).values()
    assert (report.success, report.avg_at_k, report.tasks, report.episodes) == (0.5, 0.5, 3, 6)
    assert report.pass_at_k == pytest.approx([0.5, 2 / 3])
    assert len(report.pass_at_k_intervals) == 2
    assert report.categories["shopping"].pass_at_k == report.pass_at_k
    assert report.invalid_actions == 0.5
    assert EvalReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_a_task_that_lost_a_sample_counts_where_it_has_enough_left():
    lost = figures_of(episode("1", 3, False, outcome="environment_lost"))
    episodes = [*played(1, 0, 1), lost]
    (report,) = reports_of(PLAN, {"p": episodes}).values()
    assert (report.episodes, report.lost) == (3, 1)
    assert report.success == pytest.approx(2 / 3)
    assert report.avg_at_k == 0.75
    assert report.pass_at_k == [0.75, 1.0]  # of k = 2 the first task alone


def test_a_report_of_an_older_version_is_still_read():
    old = {
        "policy": "p", "env": "e", "split": "test", "horizon": 9, "seed": 0, "tasks": 1,
        "samples": 1, "episodes": 1, "lost": 0, "success": 1.0, "success_interval": [1.0, 1.0],
        "reward": 1.0, "turns": 2.0, "sampled_tokens": 3, "outcomes": {"success": 1},
        "categories": {"x": {"episodes": 1, "success": 1.0, "turns": 2.0}},
    }  # fmt: skip
    report = EvalReport.from_dict(old)
    assert report.categories["x"].turns == 2.0 and report.pass_at_k == []


def test_tokens_are_those_under_the_mask_or_the_endpoints_count():
    row = Tokens([1], [2, 3, 4], [1, 0, 1], [0.0] * 3, [0] * 3, [3])
    assert figures_of(episode(tokens=row, further_rows=[row])).tokens == 4
    usage = {"requests": 2, "prompt_tokens": 500_000, "completion_tokens": 100_000}
    episodes = played(1, 1, usage=usage)
    assert episodes[0].tokens == 100_000
    (report,) = reports_of(PLAN, {"p": episodes}).values()
    assert report.usage == {name: 2 * count for name, count in usage.items()}


def test_invalid_actions_are_counted_where_the_world_tells_of_them():
    refused = Turn("no action", "", "Write one.", info={"invalid_action": True})
    aside = Turn("a plan", "", "Go on.")
    silent = Turn("r", "x", "o", info={"turn": 1})
    told = Turn("r", "x", "o", info={"turn": 1, "invalid_action": False})
    assert figures_of(episode(turns=[aside, refused, told])).invalid == (1, 2)
    assert figures_of(episode(turns=[refused])).invalid == (1, 1)
    assert figures_of(episode(turns=[refused, silent])).invalid is None
    mixed = [figures_of(episode(turns=[told])), figures_of(episode("b", turns=[silent]))]
    (report,) = reports_of(PLAN, {"p": mixed}).values()
    assert report.invalid_actions is None


def test_policies_are_compared_on_the_episodes_both_finished():
    ours, theirs = played(1, 1, 1, 0), played(0, 0, 1, 0)
    lost = replace(theirs[0], outcome="engine_lost")
    found = compare(ours, [lost, *theirs[1:]], seed=0)
    assert (found.tasks, found.effect, found.better, found.worse) == (2, 0.5, 1, 0)
    with pytest.raises(BadRequest, match="no common finished episode"):
        compare(ours, [replace(e, seed=e.seed + 100) for e in theirs], seed=0)


def test_several_comparisons_are_corrected():
    each = {"a": played(*[1] * 16), "b": played(*[0] * 16), "c": played(*[1] * 8, *[0] * 8)}
    versus = comparisons_of(PLAN, each, None)
    by_success = [v for v in versus if v.figure == "success"]
    assert [(v.policy, v.baseline) for v in by_success] == [("b", "a"), ("c", "a")]
    assert by_success[0].p_holm == pytest.approx(2 * by_success[0].p)
    assert {v.baseline for v in comparisons_of(PLAN, each, "c")} == {"c"}
    assert comparisons_of(PLAN, {"a": each["a"]}, None) == []


def test_a_policy_compared_with_itself_is_significant_in_five_of_a_hundred_repeats_at_most():
    """Chance on TextCraft, played 16 times a task; a repeat sets 4 of them against 4 others."""
    with RolloutRunner("agentgym/TextCraft-v0") as rollout_runner:
        starts = eval_starts(rollout_runner.tasks, "test", 16, seed=0, limit=40)
        pool: dict[str, list] = {}
        for trajectory in rollout_runner.collect(RandomActor, starts, horizon=6):
            pool.setdefault(trajectory.task, []).append(figures_of(trajectory))
    rates = [sum(e.success for e in episodes) for episodes in pool.values()]
    assert 0 < sum(rates) < 16 * 40  # or there would be nothing to tell apart
    significant = 0
    for repeat in range(100):
        draws = random.Random(repeat)
        ours, theirs = [], []
        for task in sorted(pool):
            drawn = draws.sample(pool[task], 8)
            ours += [replace(e, seed=n) for n, e in enumerate(drawn[:4])]
            theirs += [replace(e, seed=n) for n, e in enumerate(drawn[4:])]
        significant += compare(ours, theirs, seed=repeat).p < 0.05
    assert significant <= 5


HOSTILE = "\x1b[2J[red]a|b$\\frac{1}{`\u202e<script>"


@pytest.mark.parametrize("width", [40, 80])
def test_names_are_folded_and_not_cut(width):
    name = "hf:runs/a-long-name-of-a-run-that-somebody-copies/checkpoints/model"
    out = io.StringIO()
    for grid in grids_of(reports_of(PLAN, {name: played(1, 0, 1, 1)}), []):
        Console(file=out, width=width).print(grid.as_table())
    # Parts of the name are the only words without spaces or digits in the first column.
    parts = [line.split()[0] for line in out.getvalue().splitlines() if line.split()]
    assert name in "".join(parts), out.getvalue()
    assert "…" not in out.getvalue()


def test_tables_csv_and_chart_take_any_name(tmp_path):
    episodes = played(1, 0, 1, 1, category=HOSTILE)
    each = {HOSTILE: episodes, "=cmd()": played(0, 0, 1, 1, category="other")}
    reports = reports_of(PLAN, each)
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    for grid in grids_of(reports, comparisons_of(PLAN, each, None)):
        console.print(grid.as_table())
        page = grid.as_markdown()
        assert "<script>" not in page and "\x1b" not in page and "\u202e" not in page
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in rows}) == 1
    assert "\\x1b[2J[red]a|b$" in out.getvalue() and "\u202e" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    lines = list(csv.DictReader(io.StringIO(as_csv(reports))))
    assert [line["policy"] for line in lines] == [HOSTILE, HOSTILE, "'=cmd()", "'=cmd()"]
    assert float(lines[0]["success"]) == 0.75 and float(lines[0]["pass_at_2"]) == 1.0
    assert bar_chart(*report_bars(reports), tmp_path / "chart.png") == ", .png"
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_has_a_bar_with_its_interval_per_row_and_group_and_not_too_many(
    monkeypatch, tmp_path
):
    from matplotlib.axes import Axes

    bars, zeros = [], []
    barh, text = Axes.barh, Axes.text
    monkeypatch.setattr(Axes, "barh", lambda *a, **k: bars.append((a[2], k)) or barh(*a, **k))
    monkeypatch.setattr(Axes, "text", lambda *a, **k: zeros.append(a[3]) or text(*a, **k))
    reports = reports_of(PLAN, {"p": played(1, 0, 1, 1)})
    rows, groups, title = report_bars(reports)
    bar_chart({**rows, "m": [(0.0, None), None]}, groups, title, tmp_path / "chart.png", ["m"])
    assert groups == ["all", "shopping"] and "WebArena" in title
    assert [values for values, _ in bars] == [[0.75, 0.75], [0.0]] and zeros == ["0"]
    low, high = reports["p"].success_interval
    assert bars[0][1]["xerr"][0][0] == pytest.approx(0.75 - low)
    assert bars[0][1]["xerr"][1][0] == pytest.approx(high - 0.75)
    assert bars[1][1]["xerr"] == [[0.0], [0.0]]
    assert [kwargs.get("hatch") for _, kwargs in bars] == [None, "//"]
    many = [
        figures_of(episode(str(n), n, True, category=str(n))) for n in range(MAX_CATEGORIES + 1)
    ]
    rows, groups, _ = report_bars(reports_of(PLAN, {"p": many}))
    assert groups == ["all"] and [value for value, _ in rows["p"]] == [1.0]


def test_json_holds_what_was_asked_and_what_was_found():
    each = {"a": played(1, 1, 1, 0), "b": played(0, 0, 1, 0)}
    reports = reports_of(PLAN, each)
    found = json.loads(evaluation_json(PLAN, reports, comparisons_of(PLAN, each, None)))
    assert found["evaluation"]["horizon"] == 9
    assert EvalReport.from_dict(found["reports"]["a"]) == reports["a"]
    assert found["comparisons"][0]["effect"] == -0.5


def test_what_training_sums_up_is_the_same_report():
    report = summarize([episode("a", 0), episode("b", 1, False)], split="test", samples=1, seed=0)
    assert (report.success, report.pass_at_k, report.horizon) == (0.5, [0.5], 9)
