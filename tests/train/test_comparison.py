"""What a run shows of its learning: an episode before and after, and `eval.compare`."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.config.read import read_config
from agentgym_train.evaluation.episode_lines import episode_lines, failed_episode, solved_again
from agentgym_train.runs.comparison import compared_policies
from tests.train.command import Command, finish
from tests.train.test_run import write_config


def episode(task: str, *, success: bool, turns: int, error: str | None = None) -> Trajectory:
    return Trajectory(
        env="agentgym/Tower-v0", task=task, seed=7, instruction="", observation="list\n\nfloor 0",
        turns=[Turn(f"go {n}", f"go {n}", f"floor {n}", 0.0) for n in range(1, turns + 1)],
        outcome="success" if success else "horizon", policy="p", horizon=12, success=success,
        error=error,
    )  # fmt: skip


def test_the_failed_episode_of_the_start_is_the_one_that_is_shown_solved():
    before = [
        episode("a", success=True, turns=1),
        episode("b", success=False, turns=5),
        episode("c", success=False, turns=3),
        episode("d", success=False, turns=2, error="the server died"),
    ]
    assert failed_episode(before) is before[2]
    after = [episode(task, success=True, turns=2) for task in "abcd"]
    assert solved_again(before, after) == (before[2], after[2])
    after[2] = episode("c", success=False, turns=12)
    assert solved_again(before, after) == (before[1], after[1]), (
        "another one, if that is not solved"
    )
    assert solved_again(before[:1], after) is None and failed_episode([]) is None


def test_an_episode_is_a_line_per_turn_with_what_was_seen_and_done():
    lines = episode_lines(episode("a", success=False, turns=3))
    assert [re.split(r"\s+> ", line.strip()) for line in lines] == [
        ["floor 0", "go 1"], ["floor 1", "go 2"], ["floor 2", "go 3"], ["floor 3"],
    ]  # fmt: skip
    long = episode_lines(episode("a", success=False, turns=30))
    assert len(long) == 9 and "23 turns" in long[4] and long[-1].strip() == "floor 30"
    shown = sum(" > " in line for line in long)
    assert shown + 23 == 30


def test_a_hostile_observation_cannot_write_to_the_terminal():
    text = "\x1b[2Jgone" + "x" * 500
    odd = msgspec.structs.replace(episode("a", success=False, turns=1), observation=text)
    assert all("\x1b" not in line and len(line) < 90 for line in episode_lines(odd))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A run of two steps, compared with the expert and with its own start policy."""
    folder = tmp_path_factory.mktemp("compared")
    path = write_config(folder)
    words = (f"model={folder / 'policy'}", "env=tower", "steps=2", "horizon=[6]")
    evaluation = (
        "eval.horizon=6", "eval.per_category=1", "eval.samples=2",
        f"eval.compare=[expert, random, start={folder / 'policy'}]",
    )  # fmt: skip
    status, output = finish(Command("train", path, *words, *evaluation))
    assert status == 0, output
    return folder, output


def test_other_policies_play_the_episodes_of_the_last_evaluation(compared):
    folder, output = compared
    store = RunStore.open(folder / "run")
    after = {(e.task, e.seed) for e in store.trajectories("eval_after")[0]}
    assert len(after) == 12
    for label in ("expert", "random", "start"):
        played, _ = store.trajectories(f"eval_compare-{label}")
        assert {(e.task, e.seed) for e in played} == after
    figures = json.loads((store.path / "comparison.json").read_text())
    assert list(figures) == ["before training", "expert", "random", "start", "after training"]
    assert figures["expert"]["success"] == 0.5, "of 4 to 9 floors, half are within six turns"
    difference = figures["expert"]["difference"]
    own = figures["after training"]["success"]
    assert difference["effect"] == pytest.approx(own - 0.5) and difference["tasks"] == 6
    rows = [line for line in output.splitlines() if re.match(r" *expert +0\.50 \(", line)]
    assert len(rows) == 1 and f"{own - 0.5:+.2f} (" in rows[0]


def test_the_start_policy_under_another_name_plays_the_same_episodes(compared):
    folder, _ = compared
    store = RunStore.open(folder / "run")
    first, again = (store.trajectories(name)[0] for name in ("eval_before", "eval_compare-start"))
    texts = [[[turn.response for turn in e.turns] for e in played] for played in (first, again)]
    assert texts[0] == texts[1]


def test_a_run_that_is_trained_further_compares_again(compared):
    folder, _ = compared
    run = folder / "run"
    status, output = finish(Command("train", "--resume", run, "steps=3"))
    assert status == 0, output
    assert (run / "step-2" / "comparison.json").is_file()
    assert (run / "comparison.json").is_file()
    assert "after training, above it" in output


@pytest.mark.parametrize(
    ("compare", "reason"),
    [
        (["nosuch/folder/model"], "nosuch/folder/model"),
        (["before training=expert"], "choose another label"),
        (["expert", "expert"], "names a policy twice"),
        (["a=expert", "a=random"], "choose another label"),
        (["parrot:x"], "unknown policy"),
    ],
)
def test_an_invalid_policy_is_an_error_before_training(tmp_path, compare, reason):
    with pytest.raises(ConfigError, match=reason):
        compared_policies(read_config(write_config(tmp_path), [f"--eval.compare={compare}"]))


def test_the_quickstart_rises_far_above_as_much_more_sft(tmp_path):
    """The claim of the quickstart's table, after a third of its steps and on fewer episodes."""
    run = tmp_path / "run"
    words = (
        "steps=20", "trainer_args.lr_scheduler_type=constant_with_warmup", "eval.samples=1",
        "eval.per_category=4", f"output_dir={run}",
    )  # fmt: skip
    status, output = finish(Command("train", "starter:quickstart", *words))
    assert status == 0, output
    figures = json.loads((run / "comparison.json").read_text())
    rows = list(figures)
    assert rows == ["before training", "as much more SFT", "expert", "after training"]
    assert figures["expert"]["success"] == 1.0
    for label in ("before training", "as much more SFT"):
        low, _ = figures[label]["difference"]["interval"]
        assert low > 0, output
    for title in ("It failed before training", "and succeeds after training"):
        assert title in output
    assert "agentgym new" in output
