"""RL in several environments: groups, whitening, horizons, metrics and evaluations of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
import yaml
from rich.console import Console
from transformers import TrainerCallback

import hosting
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Turn
from agentgym_train import AgentTrainer, RLConfig
from agentgym_train.algorithms import make_algorithm
from agentgym_train.algorithms.base import advantages_per_env
from agentgym_train.config.read import config_from, method_config, read_config
from agentgym_train.config.worlds import env_file_name
from agentgym_train.data.collect import FilteredEpisodes
from agentgym_train.data.datasets import SFTDataset
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.evaluation.report import EvalReport
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.horizon import Adaptive, Fixed, Horizon, make_horizon
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs.methods import method_of
from agentgym_train.runs.run import Run
from agentgym_train.runs.summary import next_commands
from tests.train.demonstrating import demonstration
from tests.train.ragged import Episode, PlayedTurn, Step
from tests.train.small import save_tiny_policy, textcraft_tokenizer

pytestmark = pytest.mark.usefixtures("guess_server", "textcraft_server")
TEXTCRAFT = "agentgym/TextCraft-v0"
NEEDED = {"model": "hub/id", "output_dir": "x"}
BOTH = [{"env": TEXTCRAFT, "weight": 3.0}, {"env": hosting.GUESS}]
QUIET = Console(quiet=True)


def mixed_step():
    """Two groups of two in an easy environment, and one in a hard one."""
    returns = [1.0, 1.0, 1.0, 0.0, 0.1, 0.0]
    return Step([Episode([PlayedTurn(1, 2 + i % 3, r)]) for i, r in enumerate(returns)], 2)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline", "grpo", "rloo"])
def test_whitening_is_within_an_environment_and_group_baselines_are_unchanged(name):
    algorithm, step = make_algorithm(name), mixed_step()
    batch = replace(step.batch(), envs=torch.tensor([0, 0, 0, 0, 1, 1]))
    found = advantages_per_env(algorithm, batch)
    together = algorithm.advantages(step.batch())
    parts = [Step(step.episodes[:4], 2).batch(), Step(step.episodes[4:], 2).batch()]
    for part, rows in zip(parts, (slice(0, 4), slice(4, 6)), strict=True):
        width = part.loss_mask.shape[1]
        assert torch.allclose(found[rows][:, :width], algorithm.advantages(part), atol=1e-6)
    if name in ("grpo", "rloo"):
        assert torch.allclose(found, together, atol=1e-6)
    if name == "reinforce_pp":
        # The better episode of the hard environment is worse than the step's average.
        assert together[4].max() <= 0 < found[4].max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": [*BOTH, {"env": "textcraft"}]}, "TextCraft-v0 is twice in envs"),
        ({"envs": BOTH, "env": "textcraft"}, "name the environments with envs, or one"),
        ({"envs": [{"env": TEXTCRAFT, "wieght": 2}]}, "wieght"),
        ({"envs": [{"env": TEXTCRAFT, "weight": 0}]}, "weight is above 0, got 0"),
        ({"envs": [{"env": TEXTCRAFT, "horizon": [9, 5]}]}, "TextCraft-v0 in envs: .*increase"),
        ({"envs": [TEXTCRAFT]}, r"envs\[0\] must be a mapping, got 'agentgym/TextCraft-v0'"),
        ({"envs": BOTH, "horizon": {"type": "adaptive", "turns": 4}}, "needs at least two numbers"),
        ({"envs": [{"env": TEXTCRAFT, "horizon": [4, 8]}], "horizon": [9, 5]}, "increase"),
        (
            {"env": "textcraft", "sampler": {"type": "contrast", "tasks": False, "envs": True}},
            "set envs",
        ),
        (
            {"env": "textcraft", "weight": 2},
            "weight is a key of an entry of envs: write .*weight: 2",
        ),
        ({"envs": [{"horizon": 3}]}, "an entry of envs has no env; write"),
        (
            {"envs": [{"env": TEXTCRAFT, "horizon": [2.5]}]},
            r"envs\[0\]\.horizon\[0\] must be an integer, got 2\.5",
        ),
        ({}, "missing env"),
    ],
)
def test_a_wrong_list_of_environments_is_rejected_with_what_to_write(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_from({**NEEDED, **changes})


def test_env_on_the_command_line_replaces_envs_of_the_file_and_the_other_way_round(tmp_path):
    file, needed = tmp_path / "config.yaml", ["model=m", "output_dir=o"]
    file.write_text("env: textcraft\nenv_kwargs: {legacy: true}\nhorizon: 4\n")
    config = read_config(file, [*needed, "envs=[{env: babyai}]"])
    assert [(w.env, w.env_kwargs) for w in config.worlds] == [("agentgym/BabyAI-v0", {})]
    file.write_text("envs: [{env: textcraft}, {env: babyai}]\n")
    assert [w.env for w in read_config(file, [*needed, "--env", "search"]).worlds] == [
        "agentgym/Search-v0"
    ]
    with pytest.raises(ConfigError, match="both are set"):
        read_config(file, [*needed, "env=search", "envs=[{env: babyai}]"])


def test_values_that_an_environment_leaves_open_are_the_run_s():
    config = config_from({
        **NEEDED, "horizon": [4, 8], "split": "train",
        "eval": {"horizon": 12, "samples": 2, "per_category": 5}, "instruction": "Play.",
        "envs": [{"env": "textcraft", "horizon": 6, "instruction": "Craft."},
                 {"env": "babyai", "eval": {"samples": 3, "per_category": 1}}],
    })  # fmt: skip
    first, second = config.worlds
    assert (first.stages, second.stages) == ([6], [4, 8])
    assert (first.instruction, second.instruction) == ("Craft.", "Play.")
    assert first.eval.horizon == second.eval.horizon == 12
    assert (first.eval.samples, second.eval.samples) == (2, 3)
    assert (first.eval.per_category, second.eval.per_category) == (5, 1)
    assert first.env == TEXTCRAFT and first.eval.split == "test"
    assert config_from(yaml.safe_load(yaml.safe_dump(config.as_dict()))) == config


def test_one_environment_may_keep_its_horizon_where_that_of_others_grows():
    envs = [{"env": "textcraft", "horizon": [4, 8]}, {"env": "babyai", "horizon": 20}]
    config = config_from({**NEEDED, "envs": envs, "horizon": {"type": "adaptive"}})
    first, second = (make_horizon(world.horizon) for world in config.worlds)
    assert isinstance(first, Adaptive) and isinstance(second, Fixed) and second(99) == 20


def test_a_list_of_one_environment_and_one_environment_are_the_same_run(tmp_path):
    model = save_tiny_policy(tmp_path / "tiny")
    both = {"eval": {"samples": 2, "per_category": 1}, "steps": 2}
    runs = {
        "list": {"envs": [{"env": TEXTCRAFT, "horizon": [1, 2], "instruction": ""}]},
        "one": {
            "env": "textcraft",
            "envs": [],
            "horizon": {"turns": [1, 2], "every": 1},
            "instruction": "",
        },
    }
    for name, values in runs.items():
        config = run_config(model, tmp_path / name, **both, **values)
        with AgentTrainer(args=config, console=QUIET) as trainer:
            trainer.train()
    stores = [RunStore.open(tmp_path / name) for name in runs]
    rows, other = (untimed(store.metrics()[0]) for store in stores)
    assert rows == other and [row["horizon"] for row in rows] == [1.0, 2.0]
    assert not [name for row in rows for name in row if TEXTCRAFT in name]
    summaries = [store.read_json("summary.json") for store in stores]
    assert summaries[0]["after"]["episodes"] == summaries[1]["after"]["episodes"] > 0
    assert summaries[0]["env"] == summaries[1]["env"] == TEXTCRAFT
    files = [{path.name for path in store.path.rglob("eval_*")} for store in stores]
    assert files[0] == files[1] == {
        "eval_before.json", "eval_before.jsonl", "eval_after.json", "eval_after.jsonl"
    }  # fmt: skip


class Watching(Horizon):
    """A fixed horizon that keeps what it observes."""

    def __init__(self):
        self.observed = []

    def __call__(self, step):
        return 2

    def observe(self, step, success):
        self.observed.append((step, success))


def test_a_schedule_is_copied_for_each_environment_and_follows_the_success_there(tmp_path):
    envs = [
        {"env": TEXTCRAFT, "instruction": ""},
        {"env": hosting.GUESS, "eval": {"split": "train"}},
    ]
    config = run_config(
        save_tiny_policy(tmp_path / "tiny"), tmp_path / "run", envs=envs, steps=2,
        eval={"before": False, "after": False},
    )  # fmt: skip
    given = Watching()
    with AgentTrainer(args=config, horizon=given, console=QUIET) as trainer:
        trainer.train()
        found = {world.env: world.horizon.observed for world in trainer.trainer.step_worlds}
    rows, _ = RunStore.open(tmp_path / "run").metrics()
    assert given.observed == [] and len(rows) == 2
    for env, observed in found.items():
        assert observed == [(row["step"] - 1, row[f"success/{env}"]) for row in rows]


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_sft_and_dpo_are_evaluated_in_every_environment(tmp_path, method):
    model = save_tiny_policy(tmp_path / "tiny")
    data = RunStore.create(tmp_path / "data", {})
    worse = msgspec.structs.replace(demonstration(), success=False, outcome="failure")
    worse.turns[:] = [Turn("look", "look", "You see a table.")]
    data.append_trajectories("train", [demonstration(), worse])
    envs = [
        {"env": TEXTCRAFT, "eval": {"per_category": 1, "horizon": 2}},
        {"env": hosting.GUESS, "eval": {"split": "train", "samples": 2}, "instruction": "Guess."},
    ]
    config = method_config({
        "method": method, "model": model, "output_dir": str(tmp_path / "run"), "envs": envs,
        "data": [str(data.path)], "steps": 1, "turn_max_tokens": 16, "max_tokens": 900,
        "eval": {"horizon": 3, "before": False},
        {"sft": "rows_per_step", "dpo": "pairs_per_step"}[method]: 1,
    })  # fmt: skip
    with AgentTrainer(args=config, console=QUIET) as trainer:
        trainer.train()
    store = RunStore.open(tmp_path / "run")
    summary = store.read_json("summary.json")
    assert set(summary["after"]) == {TEXTCRAFT, hosting.GUESS}
    assert summary["envs"][TEXTCRAFT] == {"eval_split": "test", "eval_horizon": 2}
    episodes, _ = store.trajectories(f"eval_after-{env_file_name(hosting.GUESS)}")
    assert {e.horizon for e in episodes} == {3} and {e.instruction for e in episodes} == {"Guess."}
    commands = [command for command, _ in next_commands(trainer.args, store)]
    assert [words.split()[3] for words in commands[1:3]] == [TEXTCRAFT, hosting.GUESS]
    assert "--horizon 2" in commands[1] and "--split train --horizon 3" in commands[2]


@pytest.mark.parametrize("method", ["sft", "dpo", "rl"])
def test_keys_that_a_method_does_not_use_are_rejected(method):
    given = {**NEEDED, "method": method, **({} if method == "rl" else {"data": ["x"]})}
    unused = {"tasks": 3, "min_reward": 0.5}
    if method != "rl":
        unused |= {"horizon": 5, "split": "train", "weight": 2.0}
    for name, value in unused.items():
        with pytest.raises(ConfigError, match=f"{name} in envs has no effect with method {method}"):
            method_config({**given, "envs": [{"env": TEXTCRAFT, name: value}]})


def test_an_entry_has_its_own_prompt_in_learning_too(tmp_path):
    """As in exploration and evaluation: else the policy acts under a prompt that it never saw."""
    envs = [{"env": "textcraft", "instruction": "Craft."}, {"env": "babyai"}]
    there = demonstration(env="agentgym/BabyAI-v0", instruction="Walk.")
    for run, others in ((None, "Walk."), ("Play.", "Play.")):
        config = method_config({
            **NEEDED, "method": "sft", "data": ["x"], "envs": envs, "instruction": run,
        })  # fmt: skip
        tokenizer = textcraft_tokenizer()
        made = EpisodeTokenizer(tokenizer, config, instructions=config.instructions)
        for episode, prompt in ((demonstration(), "Craft."), (there, others)):
            assert made.chat_of(episode).start("") == Chat(tokenizer, prompt).start("")
        filtered = FilteredEpisodes(selected=[demonstration(), there])
        rows = SFTDataset.from_episodes(config, tokenizer, filtered, []).rows
        expected = [made.rows(e)[0].prompt_ids for e in (demonstration(), there)]
        assert [
            row["input_ids"][: len(ids)] for row, ids in zip(rows, expected, strict=True)
        ] == expected


def test_a_stored_report_is_not_repeated(tmp_path):
    """It was killed between NAME-ENV.json and NAME.json, which the viewer reads."""
    report = EvalReport(
        policy="p", env=TEXTCRAFT, split="test", horizon=4, seed=0, tasks=2, samples=1, episodes=2,
        lost=0, success=0.5, success_interval=None, reward=0.5, turns=2.0, sampled_tokens=0,
        outcomes={}, categories={},
    )  # fmt: skip
    one = RunStore.create(tmp_path / "one", {})
    one.write_json("eval_before.json", report.as_dict())
    worlds = [SimpleNamespace(env_id=TEXTCRAFT), SimpleNamespace(env_id="agentgym/BabyAI-v0")]

    def found(store, worlds, **envs):
        config = config_from({**NEEDED, **envs, "output_dir": str(store.path)})
        # Without a policy: it fails if it evaluates.
        run = Run(config, method_of(config), QUIET, Worlds(worlds), policy=None)
        return run.evaluated(None)

    assert found(one, worlds[:1], env="textcraft") == {TEXTCRAFT: report}
    several = RunStore.create(tmp_path / "several", {})
    for world in worlds:
        several.write_json(f"eval_before-{env_file_name(world.env_id)}.json", report.as_dict())
    found(several, worlds, envs=[{"env": world.env_id} for world in worlds])
    assert several.read_json("eval_before.json")["agentgym/BabyAI-v0"]["success"] == 0.5


def untimed(rows):
    timed = ("seconds", "rollout_seconds", "eval_runtime")
    return [{k: v for k, v in row.items() if k not in timed} for row in rows]


class StopAt(TrainerCallback):
    """Stops after a step, with a checkpoint."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= state.global_step == self.step


def run_config(model, out, **changes):
    values = {
        "model": model, "output_dir": str(out), "steps": 3, "prompts_per_step": 3,
        "num_generations": 2, "turn_max_tokens": 6, "max_tokens": 900, "learning_rate": 1e-2,
        "eval": {"per_category": 1}, "save_every": 1,
        "horizon": {"type": "stepwise", "turns": 30, "every": 1},
        "algorithm": "reinforce_pp",
        "envs": [
            {"env": TEXTCRAFT, "horizon": [2, 3], "weight": 2.0, "instruction": ""},
            {"env": hosting.GUESS, "horizon": 4,
             "eval": {"split": "train", "horizon": 5, "samples": 3},
             "wrappers": [{"wrapper": "agentgym_env.wrappers:StepPenalty", "penalty": 0.5}]},
        ], **changes,
    }  # fmt: skip
    return RLConfig(**values)


def test_a_run_in_two_environments_reports_each_and_resumes_exactly(tmp_path):
    model = save_tiny_policy(tmp_path / "tiny")
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    with AgentTrainer(args=run_config(model, whole), console=QUIET) as trainer:
        trainer.train()
        with pytest.raises(ConfigError, match="name the environment to evaluate in"):
            trainer.evaluate()
        assert trainer.evaluate(env="textcraft").tasks > 0
    store = RunStore.open(whole)
    rows, _ = store.metrics()
    episodes, _ = store.trajectories("train")
    assert len(rows) == 3 and len(episodes) == 18
    for row in rows:
        own = [e for e in episodes if e.step == row["step"] - 1]
        for env, horizons in ((TEXTCRAFT, [2, 3, 3]), (hosting.GUESS, [4, 4, 4])):
            there = [e for e in own if e.env == env]
            assert row[f"episodes/{env}"] == len(there) > 0
            assert {e.horizon for e in there} == {horizons[row["step"] - 1]}
            assert row[f"lost/{env}"] == 0 and row[f"turns/{env}"] <= max(horizons)
            assert row[f"reward/{env}"] == pytest.approx(sum(e.reward for e in there) / len(there))
        for name in ("env_steps", "discarded_env_steps", "lost", "retried"):
            assert row[name] == sum(row[f"{name}/{env}"] for env in (TEXTCRAFT, hosting.GUESS))
        for start in range(0, 6, 2):
            assert own[start].env == own[start + 1].env and own[start].task == own[start + 1].task
    guesses = [e for e in episodes if e.env == hosting.GUESS]
    assert all(turn.reward <= 0.5 for e in guesses for turn in e.turns), "its own wrapper"
    assert {e.instruction for e in episodes if e.env == TEXTCRAFT} == {""}
    assert "" not in {e.instruction for e in guesses}
    summary = store.read_json("summary.json")
    assert set(summary["after"]) == {TEXTCRAFT, hosting.GUESS}
    assert summary["envs"][hosting.GUESS] == {"eval_split": "train", "eval_horizon": 5}
    assert {env: r["episodes"] / r["tasks"] for env, r in summary["after"].items()} == {
        TEXTCRAFT: 1, hosting.GUESS: 3,
    }  # fmt: skip
    assert (Path(whole) / "trajectories" / "eval_after-tests_Guess-v0.jsonl").is_file()

    stop = StopAt(1)
    with AgentTrainer(args=run_config(model, parted), callbacks=[stop], console=QUIET) as trainer:
        trainer.train()
    with AgentTrainer(args=run_config(model, parted), console=QUIET) as trainer:
        trainer.train(resume_from_checkpoint=True)
    resumed, _ = RunStore.open(parted).metrics()
    assert untimed(resumed) == untimed(rows)


@pytest.mark.parametrize("changes", [
    {"admission": "informative", "sampler": {"type": "contrast", "tasks": True, "envs": True}},
    pytest.param({"max_policy_age": 2}, marks=pytest.mark.slow),
    pytest.param({"algorithm": "ppo", "prompts_per_step": 2}, marks=pytest.mark.slow),
])  # fmt: skip
def test_steps_without_an_environment_and_other_options_work(tmp_path, changes):
    model = save_tiny_policy(tmp_path / "tiny")
    envs = [
        {"env": TEXTCRAFT, "horizon": 2, "weight": 30.0, "instruction": ""},
        {"env": hosting.GUESS, "horizon": 2, "eval": {"split": "train"}},
    ]
    config = run_config(
        model, tmp_path / "run", envs=envs, eval={"before": False, "after": False}, **changes
    )
    with AgentTrainer(args=config, console=QUIET) as trainer:
        trainer.train()
    rows, broken = RunStore.open(tmp_path / "run").metrics()
    assert len(rows) == 3 and not broken
    missing = [row for row in rows if not row[f"episodes/{hosting.GUESS}"]]
    assert missing and all(row[f"success/{hosting.GUESS}"] is None for row in missing)
    assert (tmp_path / "run" / "curves.png").is_file()
