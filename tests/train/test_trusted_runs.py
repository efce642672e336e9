"""Training, audits and the viewer use what a run folder names only with `--trust`."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import yaml
from peft import LoraConfig

from agentgym_env import TaskSet, TextEnv
from agentgym_env.cli import main
from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest
from agentgym_env.registration import register
from agentgym_env.run_store import RunStore
from agentgym_train.algorithms import ALGORITHMS
from agentgym_train.audit.audit import subject_of
from agentgym_train.config.checks import type_hints
from agentgym_train.config.engines import ENGINES
from agentgym_train.config.read import CONFIGS, method_config
from agentgym_train.config.trainer_args import ALLOWED
from agentgym_train.config.trust import HARMLESS, NESTED, is_harmless, names_in_run, trust_option
from agentgym_train.config.worlds import World
from agentgym_train.runs import launch
from agentgym_train.runs.stored import resumed_config
from agentgym_viewer.episodes import StoredEpisode
from agentgym_viewer.pictures import NoPicture, Pictures
from tests.env.test_trust import agentgym, folder
from tests.train.small import save_tiny_policy

__all__ = ["folder"]
NAMED = {
    "env": "evil:World",
    "agent": {"type": "evil:Agent", "address_file": "victim", "host": "0.0.0.0", "port": 8100},
    "engine": {
        "type": "vllm",
        "servers": ["http://evil"],
        "weights_dir": "victim",
        "nccl_address": "evil",
        "extra": {"trust_remote_code": True, "plugin": "x"},
    },
    "algorithm": "evil:Algorithm",
    "horizon": {"type": "evil:Schedule", "turns": 3},
    "attention": "evil/kernels",
    "env_kwargs": {
        "judge": "os:system",
        "address": "ws://10.0.0.1:80",
        "server": ["python", "-c"],
        "peer": "evil.example.com",
        "other": "10.0.0.1",
        "port": "localhost:80",
        "deep": {"list": [{"index": "/etc/passwd"}]},
    },
    "servers": ["evil"],
    "envs": [
        {"env": "agentgym/Search-v0", "servers": ["http://evil"]},
        {"env": "evil:World", "horizon": {"type": "evil:Own"}},
    ],
    "wrappers": [
        "evil:Outer",
        {"wrapper": "evil:Inner", "path": "/tmp/x", "scale": 0.5},
        "agentgym_env.wrappers.evil:Other",
    ],
    "trainer_args": {
        "report_to": "wandb",
        "push_to_hub": True,
        "project": "victim",
        "model_init_kwargs": {"code": "evil/code"},
    },
    "sampler": {"type": "evil:Tasks", "path": "/tmp/x"},
    "admission": "evil:Gate",
    "lora": {"megatron_core": "antigravity", "corda_config": {"cache_file": "victim"}},
    "eval": {"compare": ["expert", "a=some/model", "b=openai:gpt@http://evil", "vllm:http://evil"]},
}
PLACES = [
    "env", "env_kwargs.judge", "env_kwargs.address", "env_kwargs.server[0]", "env_kwargs.server[1]",
    "env_kwargs.peer", "env_kwargs.other", "env_kwargs.port", "env_kwargs.deep.list[0].index",
    "servers[0]", "envs[0].servers[0]", "envs[1].env", "wrappers[0]",
    "wrappers[1].wrapper", "wrappers[1].path", "wrappers[2]", "algorithm", "attention",
    "engine.servers[0]", "engine.extra.trust_remote_code", "engine.extra.plugin",
    "trainer_args.report_to", "trainer_args.push_to_hub", "trainer_args.model_init_kwargs.code",
    "lora.megatron_core", "lora.corda_config.cache_file", "agent.type", "agent.address_file",
    "agent.host", "agent.port", "engine.weights_dir", "engine.nccl_address", "trainer_args.project",
    "horizon.type", "envs[1].horizon.type", "sampler.type", "admission",
    "wrappers[1].scale", "eval.compare[2]", "eval.compare[3]",
]  # fmt: skip
PLAIN = {
    "env": "agentgym/WebArena-v0",
    "agent": "window:8",
    "algorithm": {"type": "ppo", "lam": 0.9},
    "horizon": {"type": "stepwise", "turns": [4, 8], "every": 7},
    "sampler": {"type": "contrast", "envs": True},
    "admission": {"type": "informative", "budget": 2, "max_tokens": 900},
    "attention": "flash_attention_2",
    "model": "org/model",
    "eval": {"compare": ["expert", "longer=runs/sft/model", "starter:tower/sft_policy"]},
    "instruction": "Answer with one action: see http://example.com",
    "env_kwargs": {"layout": "browsergym", "seed": 3, "sites": "embedded"},
    "servers": [],
    "envs": [
        {
            "env": "agentgym/Search-v0",
            "split": "train",
            "env_kwargs": {"topk": 3, "corpus": "synthetic:0"},
            "wrappers": ["agentgym_env.wrappers:EndAfterInvalid"],
        }
    ],
    "wrappers": [{"wrapper": "agentgym_env.wrappers:EndAfterInvalid", "count": 3}],
    "engine": {
        "type": "vllm",
        "dtype": "bfloat16",
        "max_batch": 8,
        "extra": {},
        "weights_dir": None,
    },
    "trainer_args": {
        "lr_scheduler_type": "linear",
        "report_to": "tensorboard",
        "push_to_hub": False,
    },
    "lora": {"r": 16, "target_modules": ["model.layers.0.self_attn.q_proj"]},
}
CONFIG = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": "run"}
EVIL = {"agent": "evil:Nobody", "env_kwargs": {"judge": "evil:reply"}, "servers": ["http://evil"]}


def test_resume_lists_every_name_of_the_folder_and_imports_none(folder):
    RunStore.create(folder / "run", {"config": CONFIG | NAMED})
    status, said = agentgym(folder, "train", "--resume", "run")
    assert status == 2 and "run/run.json names code, addresses or files" in said
    for place in PLACES:
        assert f"{place}=" in said.replace("\n", "")
    assert not (folder / "imported").exists()


def test_resume_with_trust_and_an_explicit_config_import_what_they_name(folder):
    RunStore.create(folder / "run", {"config": CONFIG | EVIL})
    (folder / "own.yaml").write_text(yaml.safe_dump(CONFIG | EVIL))
    for words in (["--resume", "run", "--trust"], ["own.yaml"]):
        status, said = agentgym(folder, "train", *words)
        assert status == 2 and "no agent evil:Nobody" in said, said
        (folder / "imported").unlink()


def test_the_processes_of_a_resumed_run_are_told_that_it_is_trusted(tmp_path, monkeypatch):
    def become(command, environ):
        raise InterruptedError(*command)

    monkeypatch.setattr(launch, "_become", become)
    named = {"model": save_tiny_policy(tmp_path / "policy"), "servers": ["http://127.0.0.1:9"]}
    RunStore.create(tmp_path / "run", {"config": CONFIG | named})
    words = ["train", "--resume", str(tmp_path / "run"), "--num-processes", "2", "--trust"]
    with pytest.raises(InterruptedError) as became:
        main(words)
    assert became.value.args[-4:] == ("agentgym_train", "--resume", words[2], "--trust")


def test_everything_that_is_not_known_to_be_harmless_is_found_by_its_place():
    assert sorted(names_in_run(NAMED)) == sorted(PLACES)


def test_what_is_registered_built_in_or_prose_needs_no_trust():
    assert names_in_run(PLAIN) == {}
    assert (trust_option(PLAIN), trust_option(NAMED)) == ("", " --trust")


@pytest.mark.parametrize("yes", [True, 1, 2.5, "true", "yes", "1"])
def test_a_switch_is_found_whatever_true_value_it_has(yes):
    for switch in ("push_to_hub", "use_vllm", "trust_remote_code", "hub_always_push"):
        assert list(names_in_run({"trainer_args": {switch: yes}})) == [f"trainer_args.{switch}"]


@pytest.mark.parametrize("no", [False, 0, None, "", "false", "no"])
def test_a_switch_that_is_off_names_nothing(no):
    assert names_in_run({"trainer_args": {"push_to_hub": no, "trust_remote_code": no}}) == {}


@pytest.mark.parametrize("value", ["", "0", "no"])
def test_a_host_that_reads_like_a_switch_needs_trust(value):
    agent = {"type": "external", "host": value}
    assert names_in_run({"agent": agent}) == {"agent.type": "external", "agent.host": value}


def test_every_setting_of_a_gateway_needs_trust():
    agent = {"type": "external", "calls": 9, "crashes": "failure", "port": 0, "any": {"else": 1}}
    found = {f"agent.{name}" for name in ("type", "calls", "crashes", "port", "any.else")}
    assert names_in_run({"agent": agent}).keys() == found


@pytest.mark.parametrize(
    "setting",
    [
        {"agent": {"command": "touch imported"}}, {"agent": {"external": None}},
        {"engine": "evil:Engine"}, {"engine": {"type": "evil:Engine"}},
        {"horizon": {"type": ["fixed"], "turns": 3}}, {"algorithm": {"type": "evil:Algorithm"}},
    ],
)  # fmt: skip
def test_a_type_that_is_written_in_another_way_is_found(setting):
    assert names_in_run(setting), "a mapping may stand for a program"


def fields_of(kind) -> set[str]:
    return {f.name for f in fields(kind)}


FIELDS = {
    "engine": set().union(*map(fields_of, ENGINES.values())),
    "trainer_args": ALLOWED,
    "lora": fields_of(LoraConfig),
}


NEED_TRUST = {
    "env", "env_kwargs", "servers", "token_file", "wrappers", "envs", "lora", "trainer_args",
    "agent", "engine", "attention", "algorithm", "sampler", "admission", "horizon", "eval",
}  # fmt: skip
ENGINES_NEED_TRUST = {"extra", "nccl_address", "servers", "weights_dir"}


def test_a_new_field_needs_trust_unless_it_is_a_number_or_a_choice_or_listed():
    kinds = (*CONFIGS.values(), World)
    assert set().union(*map(fields_of, kinds)) >= HARMLESS
    for kind in kinds:
        asked = {f for f in fields_of(kind) if not is_harmless(f, type_hints(kind)[f])}
        assert asked <= NEED_TRUST and {"env", "env_kwargs", "servers", "wrappers"} <= asked
    for kind in ENGINES.values():
        hints = type_hints(kind)
        asked = {name for name in hints if not is_harmless(name, hints[name], NESTED["engine"])}
        assert asked <= ENGINES_NEED_TRUST, kind
    for group, known in NESTED.items():
        assert known <= FIELDS[group], group
    assert not {"base_model_name_or_path", "revision"} & NESTED["lora"]


def test_every_dataclass_within_a_config_has_a_list():
    assert set(FIELDS) == set(NESTED)
    free = {f.name for kind in CONFIGS.values() for f in fields(kind) if "Any" in str(f.type)}
    # Arguments of chat templates, whose template is the model's.
    assert free - {"env_kwargs", "wrappers", "chat_template_kwargs"} == set(NESTED) - {"engine"}


def test_the_arguments_of_built_in_algorithms_choose_among_few_texts():
    for algorithm in ALGORITHMS.values():
        for f in fields(algorithm):
            kinds = ("bool", "Share", "Count", "NonNegative", "AboveZero")
            assert f.type in kinds or str(f.type).startswith("Literal["), f


@pytest.mark.parametrize("method", CONFIGS)
def test_the_defaults_of_a_method_need_no_trust(method, tmp_path):
    given = {"model": "m", "output_dir": "r", "method": method, "env": "agentgym/TextCraft-v0"}
    config = method_config(given | ({"data": ["x"]} if method in ("sft", "dpo") else {}))
    assert names_in_run(config.as_dict()) == {}


def test_a_run_that_links_out_of_its_folder_needs_trust(tmp_path):
    run = RunStore.create(tmp_path / "run", {"config": CONFIG}).path
    (run / "own").symlink_to(run / "trajectories")
    resumed_config(run)
    (run / "metrics.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(BadRequest, match=r"metrics\.jsonl='.*victim'.*--trust"):
        resumed_config(run)
    resumed_config(run, trusted=True)


def test_an_audit_imports_the_agent_and_environment_of_a_run_only_if_trusted(folder, capsys):
    RunStore.create(folder / "run", {"config": CONFIG | EVIL | {"env": "evil:World"}})
    for words, said in (((), "env='evil:World', agent='evil:Nobody'"), (["--trust"], "no agent")):
        assert not (folder / "imported").exists()
        with pytest.raises(SystemExit) as end:
            main(["audit", "run", *words])
        error = capsys.readouterr().err
        assert end.value.code == 2 and said in error
        assert "http://evil" not in error, "an audit connects to no server"
    assert (folder / "imported").exists()


def test_an_audit_imports_no_environment_of_the_list_of_a_run_unless_trusted(folder, capsys):
    envs = [{"env": "agentgym/TextCraft-v0"}, {"env": "evil:World", "servers": ["http://evil"]}]
    for worlds in (envs, envs[1:]):
        run = RunStore.create(folder / f"run{len(worlds)}", {"config": CONFIG | {"envs": worlds}})
        with pytest.raises(SystemExit) as end:
            main(["audit", str(run.path)])
        error = capsys.readouterr().err
        assert end.value.code == 2 and f"envs[{len(worlds) - 1}].env='evil:World'" in error
        assert "http://evil" not in error, "an audit connects to no server"
    assert not (folder / "imported").exists()


class Drawn(TextEnv):
    """A white square, whatever is done."""

    metadata = {**TextEnv.metadata, "render_modes": ["rgb_array"]}  # noqa: RUF012
    instruction = ""
    tasks = TaskSet({"train": ["1"], "test": ["2"]})

    def __init__(self, render_mode=None, judge=None):
        super().__init__(render_mode)
        if judge is not None:
            load_named(judge)

    def _reset(self, task):
        return "Go."

    def _step(self, action):
        return "Done.", 1.0, True

    def render(self):
        return np.full((2, 2, 3), 255, np.uint8)


def test_pictures_are_drawn_with_settings_that_name_code_only_if_trusted(folder):
    register("tests/Drawn-v0", "tests.train.test_trusted_runs:Drawn")
    episode = StoredEpisode(env="tests/Drawn-v0", task="1", observation="Go.")
    key, settings = (1, "p", 0), {"judge": "evil:reply"}
    with pytest.raises(NoPicture, match=r"env_kwargs\.judge='evil:reply'.*--trust"):
        Pictures().pictures_of(key, episode, settings)
    assert not (folder / "imported").exists()
    assert len(Pictures().pictures_of(key, episode, {})) == 1
    assert len(Pictures(trusted=True).pictures_of(key, episode, settings)) == 1
    assert (folder / "imported").exists()


def test_an_audit_does_not_import_the_horizon_schedule_of_an_untrusted_run(tmp_path):
    run = tmp_path / "run"
    config = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": str(run),
              "horizon": {"type": "evil.module:Schedule"}}  # fmt: skip
    RunStore.create(run, {"config": config})
    with pytest.raises(BadRequest, match=r"horizon\.type"):
        subject_of(str(run), "float32", {})
