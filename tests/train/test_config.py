"""The training config: a YAML file, words laid over it, and clear refusals."""

from __future__ import annotations

import pickle
from dataclasses import fields
from math import inf, nan
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import pytest

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.algorithms import ALGORITHMS
from agentgym_train.audit.audit import subject_of
from agentgym_train.config.checks import type_hints
from agentgym_train.config.engines import ENGINES
from agentgym_train.config.episodes import EpisodeFilter, PairRules
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.policy import CollectConfig, PolicyConfig, RolloutLimits
from agentgym_train.config.read import (
    CONFIGS,
    config_from,
    method_config,
    parse_overrides,
    read_config,
    read_method_config,
)
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.worlds import World
from agentgym_train.evaluation.suite import read_suite
from agentgym_train.models.available import check_available
from agentgym_train.runs.stored import is_complete, resumed_config

NEEDED = {"model": "org/model", "env": "agentgym/TextCraft-v0", "output_dir": "runs/x"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: org/model\nenv: agentgym/TextCraft-v0\noutput_dir: runs/x\nsteps: 7\n")
    return path


def test_words_of_the_command_line_win_over_the_file(file):
    config = read_config(
        file, ["--steps", "9", "--horizon=[6, 10]", "--algorithm", "{type: ppo, a: 1}"]
    )
    assert (config.steps, config.horizon) == (9, [6, 10])
    assert config.algorithm == {"type": "ppo", "a": 1}
    assert read_config(file).steps == 7


def test_a_config_without_a_method_is_one_of_rl_and_others_are_told_apart(file):
    assert read_method_config(file) == read_config(file)
    assert read_method_config(file, ["method=rl"]).method == "rl"
    words = ["method=sft", "data=[runs/shown]"]
    assert read_method_config(file, words).data == ["runs/shown"]
    assert read_method_config(file, words).as_dict()["method"] == "sft"
    with pytest.raises(BadRequest, match="no method 'ppo'; choose from rl, sft, dpo, evolve"):
        read_method_config(file, ["method=ppo"])
    with pytest.raises(BadRequest, match="an RL config is needed here, got method s"):
        read_config(file, words)


def test_words_reach_into_mappings_and_leave_the_rest_of_them(file):
    file.write_text(file.read_text() + "trainer_args: {weight_decay: 0.3}\n")
    words = ["trainer_args.adam_beta1=0.1", "--algorithm.gamma", "0.9", "steps=1", "steps=2"]
    config = read_config(file, words)
    assert config.trainer_args == {"weight_decay": 0.3, "adam_beta1": 0.1}
    assert config.algorithm == {"type": "grpo", "gamma": 0.9}
    assert config.steps == 2
    assert read_config(file, ["trainer_args={}", "trainer_args.adam_beta1=1"]).trainer_args == {
        "adam_beta1": 1
    }
    with pytest.raises(BadRequest, match="steps is 7 and has no key often; write steps=VALUE"):
        read_config(file, ["steps.often=1"])
    with pytest.raises(BadRequest, match=r"unknown key trainer_arg; did you mean trainer_args\?"):
        read_config(file, ["trainer_arg.adam_beta1=0.1"])


def test_a_batch_that_does_not_divide_among_the_processes_is_refused():
    said = "prompts_per_step 8 is not divisible by 3 processes; make it a multiple"
    with pytest.raises(BadRequest, match=said):
        config_from(NEEDED).check_processes(3)
    config_from(NEEDED).check_processes(4)


@pytest.mark.parametrize("word", ["1e-6", "1E-6", "1.0e-6", "0.000001", ".1e-5"])
def test_a_learning_rate_is_a_number_however_it_is_written(file, word):
    assert read_config(file, ["--learning_rate", word]).learning_rate == pytest.approx(1e-6)


def test_words_that_old_yaml_takes_for_booleans_are_texts(file):
    setting = "importance_sampling"
    assert read_config(file, [f"{setting}=off"]).importance_sampling == "off"
    with pytest.raises(BadRequest, match="choose from auto, off, token, geometric"):
        read_config(file, [f"{setting}=on"])
    assert read_config(file, ["eval.before=false"]).eval.before is False


def test_a_text_that_only_looks_like_a_number_stays_a_text():
    assert parse_overrides(["--model", "e5-small"]) == {"model": "e5-small"}
    assert parse_overrides(["--model", "3.e"]) == {"model": "3.e"}


def test_a_config_comes_back_from_its_own_plain_values(file):
    config = read_config(file, ["--instruction", '""'])
    assert config.instruction == ""
    assert config_from(config.as_dict()) == config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"setps": 3}, r"unknown key setps; did you mean steps\?"),
        ({"qqqq": 3, "setps": 1}, r"unknown keys qqqq, setps; valid keys: .*horizon, .*steps"),
        ({"steps": "many"}, "steps must be an integer, got 'many'"),
        ({"steps": 0}, "steps is at least 1, got 0"),
        ({"num_generations": 1}, "num_generations is at least 2, got 1"),
        ({"rows_per_forward": 7}, "unknown key rows_per_forward"),
        (
            {"limits": {"max_lost_rate": 2.0}},
            "limits.max_lost_rate is at most 1, got 2.0",
        ),
        ({"horizon": [10, 5]}, "must increase from stage to stage"),
        ({"horizon": {"type": "fixed", "turns": [5, 10]}}, "a fixed horizon must be one number"),
        ({"horizon": {"type": "cubic"}}, "horizon has no type 'cubic'; choose from fixed"),
        (
            {"horizon": {"type": "adaptive", "turns": [5, 9], "threshold": 1.5}},
            "threshold .* got 1.5",
        ),
        ({"action_format": "xml"}, "no action format 'xml'; available: plain, react"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name_and_value(changes, said):
    with pytest.raises(BadRequest, match=said):
        config_from({**NEEDED, **changes})


CONFIG_KINDS = [
    *CONFIGS.values(), PolicyConfig, CollectConfig, World, EpisodeFilter, PairRules, RolloutLimits,
    *ENGINES.values(), *ALGORITHMS.values(),
]  # fmt: skip
GIVEN = {"data": ["shown"], "env": "agentgym/TextCraft-v0", "output_dir": "runs/x"}
MAY_BE_NEGATIVE = {"min_reward"}  # environments may pay negative rewards


def test_no_numeric_field_of_any_config_takes_nan_or_a_senseless_negative_number():
    seen = set()
    for kind in CONFIG_KINDS:
        given = {f.name: GIVEN[f.name] for f in fields(kind) if f.name in GIVEN}
        made = kind(**given)
        for f in fields(made):
            if not {int, float} & set(numbers_in(type_hints(kind)[f.name])):
                continue
            seen.add(f.name)
            for value in [nan, inf] + [-1] * (f.name not in MAY_BE_NEGATIVE):
                with pytest.raises(ConfigError, match=rf"^{f.name}\b.* got {value}"):
                    kind(**given, **{f.name: value})
                    pytest.fail(f"{kind.__name__}({f.name}={value})")
    assert seen >= {"learning_rate", "seed", "temperature", "samples", "max_batch", "gamma"}


def numbers_in(hint) -> list[Any]:
    """The types that a field itself may have, without those of what is in a list or mapping."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return numbers_in(inner[0])
    return (
        [kind for each in inner for kind in numbers_in(each)] if UnionType is type(hint) else [hint]
    )


def test_numbers_in_mappings_are_checked_too():
    for changes, said in (
        ({"lora": {"r": 0}}, "lora.r is at least 1, got 0"),
        ({"lora": {"lora_dropout": nan}}, "lora.lora_dropout must be a finite number, got nan"),
        (
            {"trainer_args": {"weight_decay": inf}},
            "trainer_args.weight_decay must be a finite",
        ),
        ({"horizon": [nan]}, r"horizon\[0\] must be a finite number, got nan"),
        ({"steps": "3"}, "steps must be an integer, got '3'"),
    ):
        with pytest.raises(ConfigError, match=said):
            RLConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"importance_sampling": "tokens"}, {"admission": "most"},
        {"keep_tokens": "everything"}, {"eval": {"after": "no"}}, {"horizon": None},
        {"horizon": 3.5},
        {"env_kwargs": 3}, {"wrappers": "a:B"}, {"trainer_args": 3}, {"lora": 3}, {"agent": 3},
        {"model": 3}, {"dtype": "fp32"}, {"servers": "http://x"}, {"algorithm": [1]},
        {"temperature": 0},
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_in_python_names_its_key(changes):
    with pytest.raises(ConfigError, match=f"^{next(iter(changes))}"):
        RLConfig(**changes)


def test_a_path_is_taken_for_text():
    assert RLConfig(output_dir=Path("runs/x")).as_dict()["output_dir"] == "runs/x"


def test_a_resumed_run_takes_more_steps_and_no_other_change(tmp_path):
    config = {**config_from(NEEDED).as_dict(), "output_dir": str(tmp_path), "steps": 4}
    store = RunStore(tmp_path)
    (tmp_path / "trajectories").mkdir()
    store.write_json("run.json", {"config": config})
    for words in (["steps=9"], ["--steps", "9"], ["--steps=9"]):
        assert resumed_config(tmp_path, words).as_dict() == {**config, "steps": 9}
    store.append_metrics({"step": 3})
    assert resumed_config(tmp_path, ["steps=3"]).as_dict()["steps"] == 3, "fewer than planned"
    for words, said in (
        (["steps=2"], "is trained to step 3; steps is at least that, got 2"),
        (["steps=many"], "steps"),
        (["steps=9", "seed=1"], "leave out seed, or"),
        (["run.yaml", "steps=9"], "leave out run.yaml, or"),
        (["--no-keep-reasoning"], "leave out keep_reasoning, or"),
    ):
        with pytest.raises(ConfigError, match=said):
            resumed_config(tmp_path, words)
    assert not is_complete(resumed_config(tmp_path))
    store.write_json("summary.json", {"steps": 4})
    assert is_complete(resumed_config(tmp_path))
    assert not is_complete(resumed_config(tmp_path, ["steps=5"]))
    # As summaries of other programs are.
    store.write_json("summary.json", {})
    assert is_complete(resumed_config(tmp_path))
    assert not is_complete(resumed_config(tmp_path, ["steps=5"]))


def test_a_run_folder_that_is_incomplete_or_of_an_earlier_version_says_what_to_do(tmp_path):
    config = {**config_from(NEEDED).as_dict(), "output_dir": str(tmp_path)}
    store = RunStore(tmp_path)
    store.write_json("run.json", {"config": config})
    with pytest.raises(ConfigError, match="it has no folder trajectories"):
        resumed_config(tmp_path)
    (tmp_path / "trajectories").mkdir()
    assert resumed_config(tmp_path).as_dict() == config
    config["group_size"] = config.pop("num_generations")
    store.write_json("run.json", {"config": config})
    said = "group_size: write `num_generations: VALUE` instead. Edit it in run.json and config.yaml"
    with pytest.raises(ConfigError, match=said):
        resumed_config(tmp_path)
    with pytest.raises(ConfigError, match=said):
        subject_of(str(tmp_path), "float32", {})


def test_a_wrong_key_in_python_is_named_with_the_right_one():
    with pytest.raises(
        ConfigError,
        match="of an earlier version: group_size: write `num_generations: VALUE` instead",
    ):
        RLConfig(group_size=4)
    with pytest.raises(ConfigError, match=r"unknown key stepz; did you mean steps\?"):
        SFTConfig(data=["d"], stepz=4)
    assert pickle.loads(pickle.dumps(RLConfig(steps=7))) == RLConfig(steps=7)


@pytest.mark.parametrize("name", ["messages", "tokenize", "chat_template", "return_dict"])
def test_arguments_that_are_no_variables_of_a_chat_template_are_rejected(name):
    with pytest.raises(ConfigError, match=rf"chat_template_kwargs\.{name} is not a variable"):
        RLConfig(chat_template_kwargs={name: True})


def test_a_missing_key_is_named():
    with pytest.raises(BadRequest, match="missing env"):
        config_from({"model": "m", "output_dir": "o"})


@pytest.mark.parametrize(
    ("words", "said"),
    [(["steps", "3"], "'steps' is not a setting; write key=value or --key value"),
     (["--steps"], "--steps has no value"), (["--", "3"], "'--' is not a setting"),
     (["=3"], "'=3' is not a setting"), (["a=[1"], "the value of a is not valid YAML")],
)  # fmt: skip
def test_a_bad_word_is_refused(words, said):
    with pytest.raises(BadRequest, match=said):
        parse_overrides(words)


def test_a_file_that_is_absent_or_no_mapping_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="no config file"):
        read_config(tmp_path / "none.yaml")
    for text, said in (("- 1\n", "no keys and values"), ("a: [1\n", "is not valid YAML")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(BadRequest, match=said):
            read_config(tmp_path / "bad.yaml")


def test_a_local_model_that_is_not_there_is_missed_before_anything_is_loaded(tmp_path):
    with pytest.raises(BadRequest, match=r"there is no config\.json"):
        check_available(str(tmp_path / "nothing"))
    # Two slashes are no hub id: a path, from a folder where it does not lead anywhere.
    with pytest.raises(BadRequest, match=r"there is no config\.json"):
        check_available("no/such/folder")


def test_the_fixed_evaluation_horizon_is_the_last_stages_unless_given():
    (world,) = config_from({**NEEDED, "horizon": [5, 9]}).worlds
    assert world.eval.horizon == 9
    (world,) = config_from({**NEEDED, "horizon": [5, 9], "eval": {"horizon": 7}}).worlds
    assert world.eval.horizon == 7


@pytest.mark.parametrize(
    "field", ["engine_concurrency", "env_concurrency", "episode_timeout_s", "retries"]
)
def test_limits_of_rollouts_are_not_below_zero(field):
    with pytest.raises(BadRequest, match=rf"limits\.{field} is at least 0, got -1"):
        config_from({**NEEDED, "limits": {field: -1}})


def test_the_shipped_configs_are_valid():
    from pathlib import Path

    folder = Path(__file__).parents[2] / "examples" / "train"
    suites = sorted(folder.glob("suites/*.yaml"))
    configs = sorted({*folder.rglob("*.yaml")} - {*suites})
    assert configs and suites
    for path in configs:
        read_method_config(path)
    for path in suites:
        read_suite(str(path))


def test_environments_in_python_may_be_mappings_as_in_yaml(tmp_path):
    values = {"model": "m", "output_dir": str(tmp_path), "data": ["d"]}
    config = AgentEvolConfig(**values, envs=[{"env": "textcraft", "horizon": 7}])
    assert config.worlds[0].env == "agentgym/TextCraft-v0" and config.worlds[0].stages == [7]
    with pytest.raises(ConfigError, match=r"unknown key horizn in envs\[0\]"):
        AgentEvolConfig(**values, envs=[{"env": "textcraft", "horizn": 7}])


def test_the_error_about_missing_episodes_shows_how_to_collect_them(tmp_path):
    config = SFTConfig(
        model="m", output_dir="o", env="textcraft", instruction="Craft it.", data=["runs/none"]
    )
    with pytest.raises(ConfigError) as caught:
        config.check_processes(1)
    assert "--env textcraft --policy expert --instruction 'Craft it.' --out runs/none" in str(
        caught.value
    )


def test_a_file_that_is_no_training_config_is_named_as_what_it_is():
    with pytest.raises(ConfigError, match="config file of accelerate"):
        read_config(Path("starter:accelerate/fsdp2.yaml"))
    with pytest.raises(ConfigError, match="is a folder"):
        read_config(Path("starter:textcraft/warm_policy"))


def test_a_model_of_a_run_that_was_not_trained_says_so(tmp_path):
    with pytest.raises(ConfigError, match="runs/sft does not exist or has not finished"):
        check_available(f"{tmp_path}/runs/sft/model")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": 5}, "agent must be text or a mapping, got 5"),
        ({"horizon": {"type": []}}, r"horizon.type must be text, got \[\]"),
        ({"horizon": {"type": {}, "turns": 3}}, "horizon.type must be text, got {}"),
        ({"horizon": {"turns": True}}, "horizon.turns must be a number, or a list of them"),
        ({"horizon": {"type": "decimal:Decimal", "turns": [3]}}, "is called with turns: "),
        ({"horizon": {"type": "builtins:max", "turns": [3]}}, "makes 3, no function"),
        ({"horizon": {5: 3}}, r"the keys of horizon must be text, got \{5: 3\}"),
        ({"sampler": {"type": "contrast", "tasks": 1}}, "sampler.tasks must be true or false"),
        ({"model": "\ud800"}, "model cannot be"),
        ({"limits": {"episode_timeout_s": inf}}, "limits.episode_timeout_s must be a finite"),
        ({"importance_sampling": {"cap": inf}}, "importance_sampling.cap must be a finite number"),
        ({"agent": {"type": "window", "size": True}}, "agent.size must be an integer, got True"),
        ({"agent": {"size": 4}}, "unknown key size in agent of type plain"),
        ({"trainer_args": {"report_to": {}}}, "report_to has no tracker"),
    ],
)  # fmt: skip
def test_a_value_that_no_setting_can_have_is_named_and_never_a_traceback(changes, said):
    with pytest.raises(ConfigError, match=said):
        config_from({**NEEDED, **changes})
    with pytest.raises(ConfigError, match=said):
        RLConfig(**{**NEEDED, **changes})


def test_a_program_is_an_agent_however_it_is_written():
    for agent in ({"command": "python a.py", "port": 8100},
                  {"type": "command:python a.py", "port": 8100}):  # fmt: skip
        config = RLConfig(**NEEDED, agent=agent)
        assert config.agent == {"type": "command:python a.py", "port": 8100}
    assert RLConfig(**NEEDED, agent={"command": "true"}).agent == "command:true"


def test_what_a_method_needs_is_missing_and_no_traceback():
    for method in ("sft", "dpo"):
        with pytest.raises(ConfigError, match="missing data"):
            method_config({"method": method, "model": "m", "output_dir": "o"})


def test_a_horizon_in_an_entry_of_agentevol_is_a_number():
    values = {"model": "m", "output_dir": "o", "data": ["d"]}
    for horizon in ({"turn": 5}, {"type": "linear", "turns": 5}, [4, 8]):
        with pytest.raises(ConfigError, match="horizon is one number with method evolve"):
            AgentEvolConfig(**values, envs=[{"env": "textcraft", "horizon": horizon}])
