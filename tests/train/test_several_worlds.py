"""The study of examples/several_worlds: its tables, its configs, and a step of its joint run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_servers.worlds.search.corpora import open_world
from agentgym_train import AgentTrainer
from agentgym_train.config.read import read_config
from agentgym_train.models.loading import load_tokenizer
from examples.several_worlds import setting, study, tables, warm_start
from examples.several_worlds.corpus import short_names
from examples.several_worlds.setting import ENVS, WORLDS, Run, run_config, runs

FOLDER = Path(setting.__file__).parent


def result(arm, seed, **by_task):
    """A made-up result with the success of every task in every world."""
    return {
        "name": f"{arm}-{seed}",
        "arm": arm,
        "seed": seed,
        "steps": 10,
        "env_steps": 300,
        "sampled_tokens": 1000,
        "train_seconds": 60.0,
        "evaluations": {world: {"by_task": values} for world, values in by_task.items()},
    }


def test_a_difference_is_the_mean_over_seeds_and_tasks_of_paired_successes():
    results = [
        result("joint", 11, babyai=[1.0, 0.5, 0.0, 0.0]),
        result("joint", 12, babyai=[1.0, 0.5, 0.5, 0.0]),
        result("babyai", 11, babyai=[0.5, 0.5, 0.5, 0.0]),
        result("babyai", 12, babyai=[0.5, 0.5, 0.0, 0.0]),
        result("babyai", 13, babyai=[1.0, 1.0, 1.0, 1.0]),  # without a joint run
    ]
    found = tables.difference(results, "joint", "babyai", "babyai")
    assert found.by_seed == (0.0, 0.25) and found.mean == 0.125
    assert found.low < 0.125 < found.high
    assert tables.difference(results, "joint", "search", "search") is None


def test_equal_policies_have_an_interval_of_zero():
    same = [0.0, 0.5, 1.0]
    results = [result(arm, seed, search=same) for arm in ("joint", "search") for seed in (1, 2)]
    found = tables.difference(results, "joint", "search", "search")
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_the_table_states_whether_the_joint_policy_is_within_the_margin():
    results = [
        result("start", 11, textcraft=[0.0, 0.0], babyai=[0.0, 0.0]),
        result("textcraft", 11, textcraft=[1.0, 0.5]),
        result("babyai", 11, babyai=[1.0, 0.5]),
        result("joint", 11, textcraft=[1.0, 0.5], babyai=[1.0, 0.0]),
    ]
    textcraft, babyai, search = list(tables.success_table(results))[2:]
    assert "| textcraft | 0.000 | 0.750 | 0.750 | +0.000 |" in textcraft
    assert textcraft.endswith("| within 0.05 |")
    assert "| -0.250 |" in babyai and babyai.endswith("| not within 0.05 |")
    assert "| search |  |  |  |" in search
    gains = list(tables.difference_table(results))[2:]
    assert [line.split(" | ")[2] for line in gains] == ["+0.750", "+0.750", "+0.750", "+0.500"]
    costs = list(tables.cost_table(results))[2:]
    assert costs[0] == "| joint | 1 | 10 | 300 | 1,000 | 60 |"


def test_the_joint_config_has_the_worlds_of_the_specialists():
    joint = {world.env: world for world in read_config(FOLDER / "joint.yaml").envs}
    shared = ("model", "turn_max_tokens", "max_tokens", "instruction", "algorithm", "learning_rate")
    whole = yaml.safe_load((FOLDER / "joint.yaml").read_text())
    groups = 0
    for name in WORLDS:
        own, world = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), joint[ENVS[name]]
        assert own.get("env_kwargs", {}) == world.env_kwargs and [own["horizon"]] == world.horizon
        assert own["prompts_per_step"] == world.weight, "a joint step is a step of each specialist"
        assert [own[key] for key in shared] == [whole[key] for key in shared]
        groups += own["prompts_per_step"]
    assert whole["prompts_per_step"] == groups


def test_large_batches_have_three_times_the_groups_and_the_same_budget(tmp_path):
    own, large = Run("babyai", 11), Run("babyai-x3", 11)
    assert large.worlds == own.worlds == ("babyai",) and large.env_steps == own.env_steps
    groups = [run_config(run, tmp_path).prompts_per_step for run in (own, large)]
    assert groups == [3, 9]


def test_specialists_together_have_the_budget_of_a_joint_run():
    budget = {run.arm: run.env_steps for run in runs()}
    assert {run.env_steps for run in runs(joint_env_steps=900)} == {0, 300, 900}
    assert sum(budget[world] for world in WORLDS) == budget["joint"] and budget["start"] == 0


def test_a_finished_run_of_the_summary_is_not_repeated(tmp_path):
    first, second = result("start", 11, babyai=[1.0]), result("babyai", 11, babyai=[1.0])
    (tmp_path / "babyai-11").mkdir()
    for row in (first, second):
        (tmp_path / row["name"]).mkdir(exist_ok=True)
        (tmp_path / row["name"] / study.RESULT).write_text(json.dumps(row))
    study.write(tmp_path)
    for row in (first, second):
        (tmp_path / row["name"] / study.RESULT).unlink()
    assert study.finished(tmp_path) == {"start-11": first, "babyai-11": second}
    study.check_budget(tmp_path, setting.ENV_STEPS)
    with pytest.raises(ConfigError, match="have 20400 environment steps, not 600"):
        study.check_budget(tmp_path, 600)


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"runs": [', "is damaged"), ("[]", "is not a JSON object"), ("{}", "no summary of this")],
)
def test_a_damaged_summary_is_named_and_kept(tmp_path, text, message):
    (tmp_path / study.SUMMARY).write_text(text)
    with pytest.raises(BadRequest, match=message):
        study.check_budget(tmp_path, setting.ENV_STEPS)
    assert (tmp_path / study.SUMMARY).read_text() == text


def test_new_merges_leave_the_old_tokens_as_they_are():
    tokenizer = load_tokenizer(str(warm_start.TEXTCRAFT_POLICY))
    old = dict(tokenizer.get_vocab())
    goal = "Goal: craft dark oak sign."
    ids = tokenizer(goal)["input_ids"]
    warm_start.extend(tokenizer, ["The Observatory of Zanzibel. " * 9], len(old) + 12)
    assert len(tokenizer) == len(old) + 12
    assert {token: tokenizer.get_vocab()[token] for token in old} == old
    assert tokenizer(goal)["input_ids"] == ids
    assert tokenizer.decode(tokenizer(" Observatory")["input_ids"]) == " Observatory"
    assert tokenizer.tokenize(" Observatory") == ["ĠObservatory"]


def test_numbers_and_dates_have_the_forms_of_passages():
    assert list(warm_start.forms("36814")) == ["36814", "36,814"]
    assert list(warm_start.forms("2 June 1829"))[1:] == ["June 2, 1829", "2nd of June 1829"]
    assert list(warm_start.forms("12 June 1829"))[2] == "12th of June 1829"
    assert list(warm_start.forms("Badan Rolus")) == ["Badan Rolus"]


def test_demonstrations_of_search_are_answered_in_the_words_of_their_passages():
    for episode in warm_start.search_demonstrations(5, seed=3):
        search, answer = episode.turns
        query = search.action.removeprefix("<search> ").removesuffix(" </search>")
        spelled = answer.action.removeprefix("<answer> ").removesuffix(" </answer>")
        assert query in episode.observation and f" {spelled}" in search.observation
        assert episode.task.startswith("train/")


def test_the_corpus_has_short_names_in_both_splits():
    world = open_world(str(FOLDER / "corpus.jsonl.xz"))
    assert {split: len(found) for split, found in world.questions.items()} == {
        "train": 5400,
        "test": 600,
    }
    assert {question.hops for found in world.questions.values() for question in found} == {1}
    for found in world.questions.values():
        named = sum(bool(short_names(question.text)) for question in found)
        assert named == len(found)


@pytest.mark.slow
def test_a_step_of_the_joint_run_has_episodes_of_all_worlds(tmp_path):
    config = run_config(Run("joint", 11), tmp_path)
    with AgentTrainer(args=config, console=Console(quiet=True)) as trainer:
        trainer.add_callback(study.StopAtEnvSteps(1))
        trainer.train()
    (row,), _ = RunStore.open(tmp_path / "joint-11").metrics()
    episodes = {world: row[f"episodes/{env}"] for world, env in ENVS.items()}
    weights = {world: read_config(FOLDER / f"{world}.yaml").prompts_per_step for world in WORLDS}
    assert episodes == {world: 8 * weight for world, weight in weights.items()}
