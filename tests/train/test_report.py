"""What a run shows at its end."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import yaml
from matplotlib import pyplot
from rich.console import Console

from agentgym_env.run_store import RunStore
from agentgym_train.config.options import settings_of
from agentgym_train.config.read import config_from
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation.report import CategoryReport, EvalReport
from agentgym_train.evaluation.tables import category_grid
from agentgym_train.runs.summary import figure_of, next_commands, panels_of, plot, summary
from agentgym_train.training.checkpoints import HorizonState

CONFIG = config_from(
    {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": "runs/x", "horizon": [4, 8]}
)


def report(success: float, **changes) -> EvalReport:
    values = {
        "policy": "p", "env": "agentgym/TextCraft-v0", "split": "test", "horizon": 8, "seed": 0,
        "tasks": 100, "samples": 1, "episodes": 100, "lost": 0, "success": success,
        "success_interval": (success - 0.1, success + 0.1), "reward": success, "turns": 6.5,
        "sampled_tokens": 10, "outcomes": {"success": 50},
        "categories": {"depth 1": CategoryReport(60, success, 5.0)},
    }  # fmt: skip
    return EvalReport(**{**values, **changes})


def store_with(tmp_path, rows: int) -> RunStore:
    store = RunStore.create(tmp_path / "run", {})
    for step in range(1, rows + 1):
        store.append_metrics(
            {"step": step, "seconds": 1.5, "reward": 0.1 * step, "success": 0.1 * step,
             "horizon": 4,
             "turns": 3.5, "env_steps": 7, "sampled_tokens": 11, "lost": 1, "retried": 2}
        )  # fmt: skip
    return store


def rows_of(folder, number: int):
    return store_with(folder, number).metrics()[0]


def shown(table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_the_table_sets_before_beside_after_by_category():
    text = shown(category_grid({"before": report(0.31), "after": report(0.62)}).as_table())
    depth = next(line for line in text.splitlines() if "depth 1" in line)
    total = next(line for line in text.splitlines() if " all " in line)
    assert "0.31" in depth and "0.62" in depth and " 60 " in depth
    assert "0.31 (0.21-0.41)" in total and "0.62 (0.52-0.72)" in total


def test_the_table_of_different_worlds_leaves_gaps_instead_of_failing():
    other = report(0.5, categories={"depth 9": CategoryReport(1, 1.0, 1.0)})
    assert " - " in shown(category_grid({"before": other, "after": report(0.6)}).as_table())


def test_the_summary_adds_up_the_steps(tmp_path):
    found = summary(CONFIG, rows_of(tmp_path, 3), {"e": report(0.3)}, {"e": report(0.5)})
    expected = {"env_steps": 21, "sampled_tokens": 33, "lost_episodes": 3, "steps": 3,
                "retried_episodes": 6, "success_before": 0.3, "success_after": 0.5,
                "train_seconds": 4.5, "seed": 0, "eval_horizon": 8,
                "episodes": 3 * 64}  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert summary(CONFIG, rows_of(tmp_path / "one", 1), {}, {})["success_after"] is None


def test_the_plot_is_a_picture_and_needs_a_step(tmp_path):
    assert plot([], [], "title", tmp_path, "step") is None
    rows, _ = store_with(tmp_path / "some", 12).metrics()
    path = plot(rows, panels_of(rows), "title", tmp_path, "step")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@pytest.mark.parametrize("scale", [1.0, -3.0, 100.0])
def test_no_reward_is_outside_the_plot(tmp_path, scale):
    rows, _ = store_with(tmp_path, 9).metrics()
    rows = [{**row, "reward": scale * row["reward"]} for row in rows]
    figure = figure_of(rows, panels_of(rows), "title", "step")
    for axis in figure.axes:
        low, high = axis.get_ylim()
        for line in axis.lines:
            assert low <= min(line.get_ydata()) and max(line.get_ydata()) <= high
    drawn = [line for axis in figure.axes for line in axis.lines if line.get_label() == "reward"]
    assert len(drawn) == 1 and figure.axes[0].get_ylim() == (-0.02, 1.02)
    pyplot.close(figure)


def test_each_of_several_environments_is_evaluated_with_its_own_prompt(tmp_path):
    envs = [{"env": "textcraft", "instruction": ""}, {"env": "babyai", "eval": {"horizon": 5}}]
    config = RLConfig(model="m", output_dir="x", envs=envs)
    _, first, second = (command for command, _ in next_commands(config, RunStore(tmp_path)))
    assert "TextCraft-v0" in first and f"--settings-of {tmp_path}" in first
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"envs": envs}))
    assert settings_of(str(tmp_path), {}, "agentgym/TextCraft-v0") == {"instruction": ""}
    assert settings_of(str(tmp_path), {}, "agentgym/BabyAI-v0") == {}
    assert "BabyAI-v0" in second and "--horizon 5" in second


def test_the_next_commands_evaluate_and_train_further(tmp_path):
    store = RunStore.create(tmp_path / "run", {})
    assert len(next_commands(CONFIG, store)) == 2, "without a checkpoint nothing trains further"
    checkpoint = store.checkpoints / "checkpoint-9"
    checkpoint.mkdir(parents=True)
    (checkpoint / HorizonState.FILE).touch()
    store.append_metrics({"step": 9})
    view, first, second = (command for command, _ in next_commands(CONFIG, store))
    assert view == f"agentgym view {tmp_path}/run"
    assert first.startswith("agentgym eval ") and f"--policy {tmp_path}/run/model" in first
    assert second == f"agentgym train --resume {tmp_path}/run --steps 18"
    own = replace(CONFIG, env="mine:Game")
    assert next_commands(own, store)[2][0].endswith(" --trust")
    store.write_json("run.json", {"objects": ["agent: Mine"]})
    assert len(next_commands(CONFIG, store)) == 2, "a command cannot restore objects"


def test_the_suggested_evaluation_describes_the_policy_of_the_run(tmp_path):
    store = RunStore.create(tmp_path / "a b", {})
    wrapper, code = "agentgym_env.wrappers:AvailableActions", "agentgym_train.rollout.agent:Agent"
    told = next_commands(replace(CONFIG, agent=code, wrappers=[wrapper]), store)[1][0]
    assert told.endswith(f"--settings-of '{store.path}' --agent {code} --wrapper {wrapper}")
