"""The configs of examples/train: what they say, and that small ones run, but for their length."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_env.registry import find
from agentgym_env.run_store import RunStore
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.read import read_config, read_method_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.rollout.horizon import Adaptive, Fixed, ScalingInterStepwise, make_horizon
from examples.train.textcraft.variants import STACK, ReactiveTextCraft, RenamedTextCraft

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "train"
WORLDS = ("textcraft", "babyai", "sciworld", "search", "webarena")
SHORT = (
    "--steps 2 --horizon [2] --prompts_per_step 2 --num_generations 2 "
    "--eval.before false --eval.after false --save_every 2"
)
# Of the paper's scripts: world, fixed turns, stages and their steps, then of each of the two
# prompts x episodes, mini-batches x epochs, tokens of prompt + response, tokens a turn; last, turns
# in evaluation.
PAPER = [
    ("textcraft", 30, [10, 20, 30], 100, (32, 8, 4, 2, 10752, 512), (32, 8, 4, 2, 10752, 512), 30),
    ("babyai", 20, [6, 13, 20], 100, (16, 8, 2, 1, 5120, 200), (32, 4, 4, 2, 8704, 512), 20),
    ("sciworld", 20, [10, 20, 30], 100, (16, 8, 2, 1, 5120, 200), (16, 8, 2, 1, 9216, 200), 30),
    ("search", 5, [5, 8, 10], 100, (32, 4, 4, 2, 9216, 512), (32, 4, 4, 2, 9216, 512), 30),
    ("webarena", 15, [8, 12, 15], 80, (32, 4, 8, 2, 14848, 512), (32, 4, 8, 2, 14848, 512), 15),
]

IMITATION = {
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "evolve": AgentEvolConfig,
    "agentgym_sft": SFTConfig,
    "agentgym_dpo": DPOConfig,
    "agentgym_evolve": AgentEvolConfig,
}

SMOLLM2 = {"smollm2_sft": SFTConfig, "smollm2_rl": RLConfig}


def config_of(world: str, name: str):
    return read_config(TRAIN / world / f"{name}.yaml")


@pytest.mark.parametrize("world", WORLDS)
def test_each_world_has_the_papers_two_runs_and_a_small_one(world):
    names = {path.stem for path in (TRAIN / world).glob("*.yaml")} - set(IMITATION) - set(SMOLLM2)
    assert names - {"rl"} == {"agentgym_rl", "scaling_inter", "small"}
    for name in names:
        config = config_of(world, name)
        assert find(config.env).env_id == config.env
        assert config.env.lower() == f"agentgym/{world}-v0"
        text = (TRAIN / world / f"{name}.yaml").read_text()
        assert text.startswith("# "), "it says what it is"
        small = name in ("small", "rl")
        assert config.model == (
            "starter:textcraft/warm_policy" if small else "Qwen/Qwen2.5-7B-Instruct"
        )


@pytest.mark.parametrize(
    ("world", "fixed", "stages", "every", "fixed_batch", "staged_batch", "eval_horizon"), PAPER
)
def test_the_papers_runs_have_the_papers_numbers(
    world, fixed, stages, every, fixed_batch, staged_batch, eval_horizon
):
    rl, scaling = config_of(world, "agentgym_rl"), config_of(world, "scaling_inter")
    assert make_horizon(rl.horizon) == Fixed(fixed)
    assert make_horizon(scaling.horizon) == ScalingInterStepwise(tuple(stages), every)
    assert scaling.steps == rl.steps == every * len(stages)
    for config, expected in ((rl, fixed_batch), (scaling, staged_batch)):
        batch = (config.prompts_per_step, config.num_generations)
        batch += (config.minibatches_per_rollout, config.epochs_per_rollout)
        assert (*batch, config.max_tokens, config.turn_max_tokens) == expected
        assert (config.learning_rate, config.beta, config.temperature) == (1e-6, 0.001, 1.0)
        assert config.worlds[0].eval.horizon == eval_horizon
        assert config.eval.temperature == 1.0
        assert config.algorithm == {"type": "grpo", "average": "sequence"}
        assert (config.entropy_bonus, config.trainer_args["weight_decay"]) == (0.001, 0.01)
        assert config.engine == "vllm_colocate"
        config.check_processes(8)


@pytest.mark.parametrize("name", IMITATION)
def test_textcraft_has_a_small_run_and_the_papers_of_every_method(name):
    path = TRAIN / "textcraft" / f"{name}.yaml"
    text, config = path.read_text(), read_method_config(path)
    assert type(config) is IMITATION[name]
    assert text.startswith("# ") and f"agentgym train examples/train/textcraft/{name}.yaml" in text
    for folder in config.data:
        assert f"--out {folder}" in text.replace("$ID", Path(folder).name.partition("-")[0]), (
            "it says how its data are made"
        )


def test_the_papers_runs_of_imitation_have_the_numbers_of_its_scripts():
    sft, dpo, evolve = (
        read_method_config(TRAIN / "textcraft" / f"agentgym_{name}.yaml")
        for name in ("sft", "dpo", "evolve")
    )
    assert (sft.learning_rate, sft.epochs, sft.rows_per_step, sft.max_tokens) == (1e-5, 1, 32, 4096)
    assert (dpo.learning_rate, dpo.epochs, dpo.pairs_per_step, dpo.beta) == (5e-7, 3, 64, 0.5)
    assert (evolve.iterations, evolve.samples, evolve.temperature) == (4, 3, 1.2)
    assert (evolve.per_task, evolve.merge, evolve.from_base) == (1, "data", True)
    assert [(w.env, w.stages) for w in evolve.worlds] == [
        ("agentgym/TextCraft-v0", [20]),
        ("agentgym/BabyAI-v0", [20]),
        ("agentgym/SciWorld-v0", [30]),
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_the_stages_of_smollm2_have_one_prompt_and_one_evaluation(world):
    sft, rl = (read_method_config(TRAIN / world / f"{name}.yaml") for name in SMOLLM2)
    assert [type(config) for config in (sft, rl)] == list(SMOLLM2.values())
    text = (TRAIN / world / "smollm2_sft.yaml").read_text()
    # In TextCraft a further stage comes between; the comment has its command.
    before_rl = re.findall(r"output_dir=(\S+)", text) or [sft.output_dir]
    assert rl.model == f"{before_rl[-1]}/model"
    same = ("env", "instruction", "agent", "turn_max_tokens", "max_tokens", "compute_dtype")
    for name in same:
        assert getattr(sft, name) == getattr(rl, name), name
    assert sft.eval.split == rl.eval.split
    assert sft.worlds[0].eval.horizon == rl.worlds[0].eval.horizon
    assert rl.worlds[0].eval.horizon == rl.stages[-1]
    assert rl.split != rl.eval.split
    assert f"--split {rl.split} --policy expert" in text and f"--out {sft.data[0]}" in text


def test_a_renamed_textcraft_is_the_same_game_with_other_words():
    plain, renamed = TextCraft(), RenamedTextCraft()
    for task in renamed.tasks.split("paper_train")[::25]:
        starts = {seed: renamed.reset(seed=seed, options={"task": task})[0] for seed in (1, 2, 1)}
        assert starts[1] != starts[2]
        observation, _ = plain.reset(seed=1, options={"task": task})
        assert starts[1] != observation
        assert [line.count(",") for line in starts[1].splitlines()] == [
            line.count(",") for line in observation.splitlines()
        ]
        ended = False
        while not ended:
            action = renamed.expert_action()
            _, _, ended, _, info = renamed.step(action)
        assert info["success"], (task, action)


def test_the_reactive_expert_neither_computes_nor_repeats():
    plain, reactive = TextCraft(), ReactiveTextCraft()
    computed = repeated = 0
    for task in plain.tasks.split("paper_train")[::5]:
        for env in (plain, reactive):
            page, info = env.reset(seed=1, options={"task": task})
            ended, last, before = False, "", page
            while not ended:
                action = env.expert_action()
                new = set(re.findall(r"\d+", action)) - set(re.findall(r"\d+", page))
                if env is reactive:
                    assert new <= {str(STACK)} and action != last, (task, action)
                    if lacking := re.match(r"Not enough ([a-z ]+):", before):
                        assert re.match(rf"(get|craft) \d+ {lacking[1]}\b", action), (task, action)
                else:
                    computed += bool(new)
                    repeated += action == last
                before, _, ended, _, info = env.step(action)
                last = action
            assert info["success"], task
    assert computed > 10 and repeated > 10, "what it is for"


def test_the_small_run_of_textcraft_has_an_adaptive_horizon():
    assert isinstance(make_horizon(config_of("textcraft", "small").horizon), Adaptive)


def one_run(config: Path, folder: Path, *words: str) -> list[dict[str, float]]:
    """The metrics of a run that ends well."""
    command = [
        sys.executable, "-c", "from agentgym_env.cli import main; main()", "train", str(config),
        *SHORT.split(), "--output_dir", str(folder / "run"), *words,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, broken = RunStore.open(folder / "run").metrics()
    assert broken == []
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("world", ["babyai", "sciworld"])
def test_a_world_trains_for_two_steps(world, tmp_path):
    rows = one_run(TRAIN / world / "small.yaml", tmp_path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["env_steps"] == 2 * 2 * 2 and row["lost"] == 0 for row in rows), rows
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 16


@pytest.mark.slow
def test_the_small_run_of_textcraft_takes_a_step(tmp_path):
    (row,) = one_run(TRAIN / "textcraft" / "small.yaml", tmp_path, "horizon=[4,6]", "steps=1")
    assert row["horizon"] == 4 and row["lost"] == 0


@pytest.mark.parametrize("variant", [ReactiveTextCraft, RenamedTextCraft])
def test_random_turns_of_the_variants_make_errors_to_recover_from(variant):
    env = variant()
    refused = []
    for seed in range(5):
        env.reset(seed=seed)
        for action in env.available_actions():
            *_, ended, _, info = env.step(action)
            refused.append(info["invalid_action"])
            if ended:
                break
    assert 0 < sum(refused) < len(refused)
    env.reset(seed=0)
    while (action := env.expert_action()) is not None:
        *_, ended, _, info = env.step(action)
        if ended:
            break
    assert info["success"]
