"""AgentEvol: what an iteration learns, and runs that go on wherever they were killed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from safetensors.torch import load_file

from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Turn
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.read import method_config
from agentgym_train.config.worlds import World
from agentgym_train.runs.agent_evol import (
    _check_explored,
    exploration_metrics,
    explored_episodes,
    learning_metrics,
    merged,
    select,
    select_demonstrations,
    weighted,
)
from tests.train.command import MAIN, Command, finish
from tests.train.demonstrating import demonstration
from tests.train.small import save_tiny_policy
from tests.train.test_launching import run
from tests.train.test_run import wait_for

TEXTCRAFT, UNEVEN, COUNTING = (
    "agentgym/TextCraft-v0",
    "tests.train.uneven:Uneven",
    "tests.train.uneven:Counting",
)


def config(**changes) -> AgentEvolConfig:
    values = {"model": "m", "output_dir": "o", "envs": [World(env=TEXTCRAFT)], **changes}
    return AgentEvolConfig(**values)


def said(task: str, word: str, *, success: bool = True, reward: float = 1.0, env: str = TEXTCRAFT):
    return msgspec.structs.replace(
        demonstration(), turns=[Turn(word, word, "", reward)], task=task, success=success, env=env
    )


def test_an_iteration_keeps_the_first_good_episode_of_each_task():
    episodes = [
        said("stick", "fails", success=False, reward=0.0),
        said("stick", "one way"),
        said("stick", "another way"),
        said("bowl", "a bowl"),
        said("bowl", "a bowl"),
    ]
    (world,) = config().worlds
    found = select(config(), world, episodes)
    assert [t.turns[0].response for t in found] == ["one way", "a bowl"]
    every = select(config(per_task=0), world, episodes)
    assert [t.turns[0].response for t in every] == ["one way", "another way", "a bowl"]


def test_a_world_that_pays_in_parts_has_a_threshold_of_its_own():
    episodes = [said("1", "a", success=False, reward=0.6), said("2", "b", reward=0.4)]
    paid = config(envs=[World(env=TEXTCRAFT, min_reward=0.5)])
    assert [t.task for t in select(paid, paid.worlds[0], episodes)] == ["1"]
    told = config(envs=[World(env=TEXTCRAFT, min_reward=0.5), World(env=UNEVEN)])
    mixed = [*episodes, said("3", "c", success=False, env=UNEVEN), said("4", "d", env="x/Y-v0")]
    assert [t.task for t in select_demonstrations(told, mixed).selected] == ["1", "4"]


def test_what_is_merged_with_what_is_an_option():
    demos = [said("stick", "as shown")]
    first = [said("bowl", "first"), said("stick", "as shown")]
    second = [said("bowl", "second")]

    def words(merge: str) -> list[str]:
        chosen = merged(config(merge=merge), demos, [first, second])
        return [t.turns[0].response for t in chosen]

    assert words("data") == ["as shown", "second"], "as in the paper"
    assert words("all") == ["as shown", "first", "second"]
    assert words("none") == ["second"]
    # Before the first exploration there are only the demonstrations.
    assert merged(config(merge="none"), demos, []) == demos


def test_a_weight_says_how_often_an_environments_rows_come():
    told = config(envs=[World(env=TEXTCRAFT, weight=2.5), World(env=UNEVEN)])
    episodes = [said(str(n), "a") for n in range(400)] + [said("u", "b", env=UNEVEN)]
    often = weighted(told, episodes, seed=3)
    assert often == weighted(told, episodes, seed=3), "the same whenever it is asked"
    assert sum(t.env == UNEVEN for t in often) == 1
    assert 900 < len(often) < 1100
    assert {sum(t.task == str(n) for t in often) for n in range(400)} == {2, 3}


def test_an_exploration_that_was_killed_at_once_or_lost_episodes_goes_on(tmp_path):
    (tmp_path / "process-0" / "trajectories").mkdir(parents=True)
    assert explored_episodes(tmp_path) == [], "killed before its run.json"
    world = World(env=TEXTCRAFT)
    with pytest.raises(ConfigError, match=r"all 2 episodes of .* were lost.*down"):
        _check_explored(world, tmp_path, [["down"], ["up"]])
    RunStore.create(tmp_path / "process-1", {}).append_trajectories("collected", [said("1", "a")])
    _check_explored(world, tmp_path, [["down"], []])  # those that are there count


@pytest.mark.parametrize("envs", [(TEXTCRAFT,), (TEXTCRAFT, UNEVEN)])
def test_metrics_are_of_each_environment_if_there_is_more_than_one(tmp_path, envs):
    store = RunStore.create(tmp_path / "iteration-1", {})
    won, lost = said("bowl", "x"), said("bowl", "y", success=False)
    played = dict(zip(envs, ([won, won, won, lost], [lost, lost, lost, won]), strict=False))
    selected = dict(zip(envs, ([won], []), strict=False))
    reports = {env: {"success": n / 2} for n, env in enumerate(envs)}
    summary = {"success_after": 0.25 if len(envs) > 1 else 0.0}
    summary |= {"after": reports, "envs": {}} if len(envs) > 1 else {"after": reports[envs[0]]}
    store.write_json("summary.json", summary)
    row = exploration_metrics(played, selected) | learning_metrics(store)
    names = ("success", "explored", "explored_success", "kept")
    if len(envs) == 1:
        assert [row[name] for name in names] == [0.0, 4, 0.75, 1]
        assert not [name for name in row if "/" in name]
        return
    assert [row[name] for name in names] == [0.25, 8, 0.5, 1]
    assert [row[f"{name}/{TEXTCRAFT}"] for name in names] == [0.0, 4, 0.75, 1]
    assert [row[f"{name}/{UNEVEN}"] for name in names] == [0.5, 4, 0.25, 0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"envs": [], "env": ""}, "missing env"),
        ({"envs": [{"env": TEXTCRAFT, "horizon": [3, 6]}]}, "horizon is one number"),
        ({"env": TEXTCRAFT}, "name the environments with envs, or one with env"),
        (
            {"envs": [{"env": TEXTCRAFT, "horizn": 3}]},
            "unknown key horizn in envs[0]; did you mean",
        ),
        ({"envs": ["textcraft"]}, "envs[0] must be a mapping, got 'textcraft'"),
        ({"envs": [{"env": TEXTCRAFT}, {"env": "textcraft"}]}, "is twice in envs"),
        (
            {"envs": [{"env": TEXTCRAFT, "weight": 0}]},
            "envs[0].weight is above 0, got 0",
        ),
        ({"envs": [{"env": "agentgym/TextCart-v0"}]}, "TextCraft"),
        ({"iterations": 0}, "iterations is at least 1, got 0"),
        ({"merge": "some"}, "merge must be one of data, all, none, got 'some'"),
        ({"trainer_args": {"max_steps": 3}}, "trainer_args.max_steps is set by steps"),
    ],
)
def test_a_config_that_can_not_be_is_refused(changes, said):
    values = {"method": "evolve", "model": "m", "output_dir": "o", "envs": [{"env": TEXTCRAFT}]}
    with pytest.raises(AgentGymError) as error:
        method_config({**values, **changes})
    assert said in str(error.value)


def test_one_environment_needs_no_list_and_what_is_open_is_the_runs_own():
    told = method_config(
        {"method": "evolve", "model": "m", "output_dir": "o", "env": "textcraft", "horizon": 7}
    )
    assert isinstance(told, AgentEvolConfig)
    (world,) = told.worlds
    assert (world.env, world.stages, world.eval.split) == (TEXTCRAFT, [7], "test")
    assert (world.split, world.eval.horizon) == ("train", 7)
    assert method_config(told.as_dict()) == told
    learning = told.sft_config("base", "out")
    assert (learning.rows_per_step, learning.learning_rate) == (32, 1e-5)


def write(folder: Path, name: str, **changes) -> Path:
    store = RunStore.create(folder / "demos", {"config": {}})
    demos = [
        msgspec.structs.replace(
            said(task, "right", env=UNEVEN), observation=f"{task} turns to go.",
            instruction="Say something.",
        )
        for task in ("1", "12")
    ]  # fmt: skip
    store.append_trajectories("shown", demos)
    values = {
        "method": "evolve",
        "model": save_tiny_policy(folder / "policy"),
        "envs": [
            {"env": UNEVEN, "horizon": 12, "min_reward": 0.0},
            {"env": COUNTING, "horizon": 5, "tasks": 3, "min_reward": 0.1, "weight": 1.5},
        ],
        "data": [str(folder / "demos")],
        "output_dir": str(folder / name),
        "iterations": 2,
        "samples": 3,
        "per_task": 2,
        "turn_max_tokens": 6,
        "max_tokens": 700,
        "rows_per_step": 4,
        "epochs": 2,
        "learning_rate": 5e-3,
        "save_every": 1,
        "eval": {"horizon": 3},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**values, **changes}))
    return path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("evolve")
    status, output = finish(Command("train", write(folder, "unbroken")))
    assert status == 0, output
    return folder / "unbroken", output


@pytest.mark.slow
def test_a_run_explores_every_environment_and_learns_from_the_base_each_time(unbroken):
    folder, output = unbroken
    rows, _ = RunStore.open(folder).metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["explored"] for row in rows] == [0, 4 * 3 + 3 * 3, 4 * 3 + 3 * 3]
    assert rows[0]["rows"] == 2 and rows[1]["rows"] > 2
    for env, explored in ((UNEVEN, 4 * 3), (COUNTING, 3 * 3)):
        assert all(f"success/{env}" in row for row in rows)
        assert [row[f"explored/{env}"] for row in rows[1:]] == [explored, explored]
    for iteration in (1, 2):
        played = episodes(folder, iteration)
        assert {t[0] for t in played} == {UNEVEN, COUNTING}
        assert {t[4] for t in played if t[0] == COUNTING} == {"Count down."}
    assert texts(episodes(folder, 1)) != texts(episodes(folder, 2))
    summary = json.loads((folder / "summary.json").read_text())
    assert len(summary["iterations"]) == 3 and summary["before"] is not None
    assert (folder / "curves.png").stat().st_size > 0
    assert load_file(folder / "model" / "model.safetensors").keys()
    assert "AgentEvol: success on held-out tasks" in output
    for noise in ("Warning", "it/s]", "Traceback"):
        assert noise not in output
    # Learned from the base: the first losses of an iteration are those of the untrained policy.
    firsts = [RunStore(folder / f"iteration-{i}").metrics()[0][0]["loss"] for i in range(3)]
    lasts = [RunStore(folder / f"iteration-{i}").metrics()[0][-1]["loss"] for i in range(3)]
    assert min(firsts) > 5.1 > max(lasts[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage",
    [
        "iteration-1/explored/*/process-0/trajectories/collected.jsonl",
        "iteration-1/checkpoints/checkpoint-*/whole.json",
        "iteration-1/eval_after-tests.train.uneven_Uneven.json",
    ],
    ids=["exploring", "learning", "evaluating"],
)
def test_a_run_killed_anywhere_becomes_what_the_unbroken_one_did(unbroken, tmp_path, stage):
    whole, _ = unbroken
    process = Command("train", write(tmp_path, "killed"))
    folder = tmp_path / "killed"
    wait_for(lambda: any(folder.glob(stage)), process)
    process.kill()
    process.communicate()
    assert not (folder / "iteration-1" / "iteration.json").exists(), "it was killed in time"
    status, output = finish(Command("train", "--resume", folder, "--trust"))
    assert status == 0, output
    for iteration in (1, 2):
        assert episodes(folder, iteration) == episodes(whole, iteration)
    for iteration in range(3):
        found, expected = (
            load_file(run / f"iteration-{iteration}" / "model" / "model.safetensors")
            for run in (folder, whole)
        )
        for name, weight in found.items():
            assert weight.allclose(expected[name], atol=1e-6), (iteration, name)
        figures = [
            json.loads((run / f"iteration-{iteration}" / "iteration.json").read_text())
            for run in (folder, whole)
        ]
        for one in figures:
            del one["train_seconds"]
        assert figures[0] == pytest.approx(figures[1], rel=1e-4)
    status, output = finish(Command("train", "--resume", folder, "--trust"))
    assert status == 0 and "is complete" in output


@pytest.mark.slow
def test_two_processes_explore_and_learn_what_one_does(unbroken, tmp_path):
    whole, _ = unbroken
    config = write(tmp_path, "two", iterations=1)
    status, output = run("-c", MAIN, "train", config, "--num-processes", 2)
    assert status == 0, output
    folder = tmp_path / "two"
    parts = sorted(p.name for p in (folder / "iteration-1" / "explored").glob("*/process-*"))
    assert parts == ["process-0", "process-0", "process-1", "process-1"]
    assert episodes(folder, 1) == episodes(whole, 1)
    found, expected = (
        load_file(path / "iteration-1" / "model" / "model.safetensors") for path in (folder, whole)
    )
    for name, weight in found.items():
        # Adam makes steps of one size out of gradients that differ by their rounding alone.
        assert weight.allclose(expected[name], rtol=1e-3, atol=5e-4), name


def episodes(folder: Path, iteration: int) -> list[tuple[object, ...]]:
    """What was explored, whatever the order of writing and the number of processes."""
    found = []
    for part in (folder / f"iteration-{iteration}" / "explored").glob("*/process-*"):
        found += RunStore.open(part).trajectories("collected")[0]
    return sorted(
        (t.env, t.task, t.seed, t.sample, t.instruction, tuple(u.response for u in t.turns))
        for t in found
    )


def texts(played: list[tuple[object, ...]]) -> list[object]:
    return [t[-1] for t in played]
