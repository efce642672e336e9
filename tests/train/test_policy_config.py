"""One PolicyConfig describes the policy in training, evaluation, collection and audits."""

import json

import pytest
import yaml
from trl.chat_template_utils import qwen3_chat_template

import hosting
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.config.old_names import MOVED, REMOVED
from agentgym_train.config.options import settings_of
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.read import CONFIGS, config_from, method_config
from agentgym_train.rollout.chat import chat_of
from agentgym_train.rollout.policy import policy_of
from tests.train.command import Command, finish
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.templates import tokenizer_with

NEEDED = {
    "rl": {"env": hosting.GUESS}, "sft": {"data": ["runs/a"]}, "dpo": {"data": ["runs/a"]},
    "evolve": {"env": hosting.GUESS},
}  # fmt: skip
TEXTCRAFT = "agentgym/TextCraft-v0"
NO_THINKING = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("method", CONFIGS)
def test_an_old_config_key_is_rejected_with_its_new_name(method):
    values = {"method": method, "model": "m", "output_dir": "o", **NEEDED[method]}
    method_config(values)
    rejected = 0
    for old, new in MOVED.items():
        own = CONFIGS[method].__dataclass_fields__
        if new.partition(".")[0] in own and old not in own:
            said = f"keys of an earlier version: {old}: write `{new.partition('.')[0]}: "
            with pytest.raises(ConfigError, match=said):
                method_config({**values, old: 1})
            with pytest.raises(ConfigError, match=said):
                CONFIGS[method](**{**values, old: 1})
            rejected += 1
    assert rejected >= 3


def test_a_removed_key_of_rl_is_rejected_with_the_reason():
    values = {"model": "m", "output_dir": "o", **NEEDED["rl"]}
    for old, reason in REMOVED.items():
        with pytest.raises(ConfigError, match=f"leave out {old}: {reason}"):
            method_config({**values, old: None})


def test_a_method_that_samples_only_in_evaluation_rejects_a_temperature():
    for method in ("sft", "dpo"):
        values = {"method": method, "model": "m", "output_dir": "o", **NEEDED[method]}
        with pytest.raises(
            ConfigError, match="set eval: \\{temperature: VALUE\\} instead of temperature"
        ):
            method_config({**values, "temperature": 0.5})


@pytest.mark.parametrize("method", ["rl", "sft", "dpo"])
def test_an_evaluation_has_a_temperature_of_its_own(method):
    """One that the method's training would reject."""
    values = {"method": method, "model": "m", "output_dir": "o", **NEEDED[method]}
    policy = policy_of(method_config(values), tiny_model(), textcraft_tokenizer())
    assert callable(policy.actors(0.0)) and callable(policy.actors(0.7, "other"))


def test_the_instruction_of_the_action_format_is_appended_once():
    config = PolicyConfig(action_format="react")
    prompt = config.system_prompt("Craft things.")
    assert prompt == f"Craft things.\n\n{config.form.instructions}"
    assert config.system_prompt(prompt) == prompt
    assert PolicyConfig(instruction="").system_prompt("Craft things.") == ""
    assert PolicyConfig(instruction="Only this.").system_prompt("Craft things.") == "Only this."


def test_qwen3_does_not_think_in_any_turn_if_the_config_says_so():
    tokenizer = tokenizer_with(qwen3_chat_template)
    for kwargs, ending in (({}, "<|im_start|>assistant\n"),
                           ({"enable_thinking": False}, NO_THINKING)):  # fmt: skip
        config = PolicyConfig(chat_template_kwargs=kwargs, keep_reasoning=True)
        chat = chat_of(config, tokenizer, "Craft.")
        first = tokenizer.decode(chat.start("Goal: stick"))
        assert first.endswith(f"Goal: stick<|im_end|>\n{ending}")
        following = tokenizer.decode(chat.delta(chat.response_ids("get 1 stick"), "Got 1 stick"))
        assert following.endswith(f"Got 1 stick<|im_end|>\n{ending}")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A tiny model with the chat template of Qwen3."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = tokenizer_with(qwen3_chat_template)
    from examples.small_models import small_policy

    small_policy(tokenizer, layers=2, hidden=32, heads=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompts_of(run, name, tokenizer):
    store = RunStore.open(run)
    return [tokenizer.decode(t.tokens.prompt_ids) for t in store.trajectories(name)[0]]


def test_every_command_passes_the_arguments_of_the_chat_template_on(tmp_path, qwen):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen)
    words = ["--env", TEXTCRAFT, "--policy", qwen, "--horizon", 1, "--turn-max-tokens", 2]
    own = ["--chat-template-kwargs", '{"enable_thinking": false}', "--keep-reasoning"]
    chat = {"chat_template_kwargs": {"enable_thinking": False}, "keep_reasoning": True}
    stored = {**chat, "turn_max_tokens": 99}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(stored))
    collected = Command("collect", *words, *own, "--n", 2, "--out", tmp_path / "collected")
    words += ["--settings-of", tmp_path / "run.yaml"]
    evaluated = Command("eval", *words, "--limit", 2, "--out", tmp_path / "evaluated")
    for command in (collected, evaluated):
        status, output = finish(command)
        assert status == 0, output
    assert {p.endswith(NO_THINKING) for p in prompts_of(tmp_path / "collected", "collected",
                                                        tokenizer)} == {True}  # fmt: skip
    (file,) = (tmp_path / "evaluated" / "trajectories").glob("*.jsonl")
    assert {p.endswith(NO_THINKING) for p in prompts_of(tmp_path / "evaluated", file.stem,
                                                        tokenizer)} == {True}  # fmt: skip
    plan = json.loads((tmp_path / "evaluated" / "run.json").read_text())["evaluation"]
    assert plan["chat_template_kwargs"] == {"enable_thinking": False}
    assert plan["turn_max_tokens"] == 2


def test_settings_of_a_run_are_used_where_no_option_sets_another(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    world = {"env": "textcraft", "instruction": "Craft."}
    stored = {
        "instruction": "Play.", "agent": "window:2", "turn_max_tokens": 24, "max_tokens": 900,
        "temperature": 0.5, "output_dir": "runs/x", "envs": [world, {"env": "agentgym/BabyAI-v0"}],
    }  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(stored))
    for place in (run, run / "config.yaml"):
        config = PolicyConfig(**settings_of(str(place), {"max_tokens": 8192}, TEXTCRAFT))
        assert (config.instruction, config.agent) == ("Craft.", "window:2"), "the environment's own"
        assert (config.turn_max_tokens, config.max_tokens) == (24, 8192)
        assert config.temperature == 1.0, "not that of training"
    assert PolicyConfig(**settings_of(str(run), {}, "babyai")).instruction == "Play."
    (run / "config.yaml").write_text("agent: package.module:Class\n")
    with pytest.raises(
        ConfigError, match=r"the agent of .* is code or a program, 'package.module:Class'"
    ):
        settings_of(str(run), {})
    assert settings_of(str(run), {"agent": "plain"}) == {"agent": "plain"}
    with pytest.raises(ConfigError, match="neither the folder of a training run nor its config"):
        settings_of(str(tmp_path), {})
    for envs in ("5", "[5]", "textcraft"):
        (tmp_path / "config.yaml").write_text(f"model: m\nenvs: {envs}\n")
        with pytest.raises(ConfigError, match="envs"):
            settings_of(str(tmp_path), {})


def test_a_training_run_and_its_audit_use_the_arguments_of_the_chat_template(tmp_path, qwen):
    config = tmp_path / "rl.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model": str(qwen),
                "env": TEXTCRAFT,
                "output_dir": str(tmp_path / "run"),
                "chat_template_kwargs": {"enable_thinking": False},
                "keep_reasoning": True,
                "steps": 1,
                "prompts_per_step": 1,
                "num_generations": 2,
                "horizon": [2],
                "turn_max_tokens": 4,
                "max_tokens": 4096,
                "instruction": "Craft.",
                "eval": {"before": False, "after": False},
                "keep_tokens": "all",
            }
        )
    )
    status, output = finish(Command("train", config))
    assert status == 0, output
    found = config_from(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()))
    assert found.chat_template_kwargs == {"enable_thinking": False}
    status, output = finish(Command("audit", tmp_path / "run", "--trust"))
    assert "FAIL" not in output, output
    assert status == 0


def test_eval_and_collect_apply_wrappers(tmp_path):
    words = ["--env", TEXTCRAFT, "--policy", "expert", "--horizon", 1,
             "--wrapper", "agentgym_env.wrappers:AvailableActions"]  # fmt: skip
    collected = Command("collect", *words, "--n", 1, "--out", tmp_path / "collected")
    evaluated = Command("eval", *words, "--limit", 1, "--out", tmp_path / "evaluated")
    for command, name in ((collected, "collected"), (evaluated, "expert")):
        status, output = finish(command)
        assert status == 0, output
        folder = tmp_path / ("collected" if name == "collected" else "evaluated")
        (episode,), _ = RunStore.open(folder).trajectories(name)
        assert "vailable actions" in episode.observation
    again = Command("eval", *words[:-2], "--limit", 1, "--out", tmp_path / "evaluated")
    status, output = finish(again)
    assert status == 2 and "wrappers" in output, output
