"""Nothing that a stored file names is imported or connected to without `--trust`."""

from __future__ import annotations

import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import commands
from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_env.trust import names_in, require_trust, trust_option

CODE = """
    from pathlib import Path
    from agentgym_env import TaskSet, TextEnv

    Path("imported").touch()

    class World(TextEnv):
        instruction = ""
        tasks = TaskSet({"train": ["1"], "test": ["2"]})
        def __init__(self, render_mode=None, judge=None, mood="calm"):
            super().__init__(render_mode)
        def _reset(self, task): return "Go."
        def _step(self, action): return "Done.", 1.0, True

    reply = print
"""
NAMED = {
    "env": "evil:World",
    "agent": "evil:Agent",
    "algorithm": "evil:Algorithm",
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
    "envs": [{"env": "agentgym/Search-v0", "servers": ["http://evil"]}, {"env": "evil:World"}],
    "wrappers": [
        "evil:Outer",
        {"wrapper": "evil:Inner", "path": "/tmp/x", "scale": 0.5},
        "agentgym_env.wrappers.evil:Other",
    ],
    "engine_args": {
        "servers": ["http://evil"],
        "extra": {"trust_remote_code": True, "plugin": "x"},
    },
    "trainer_args": {
        "report_to": "wandb",
        "push_to_hub": True,
        "model_init_kwargs": {"code": "evil/code"},
    },
    "lora": {"megatron_core": "antigravity"},
}
PLACES = [
    "env", "env_kwargs.judge", "env_kwargs.address", "env_kwargs.server[0]", "env_kwargs.server[1]",
    "env_kwargs.peer", "env_kwargs.other", "env_kwargs.port", "env_kwargs.deep.list[0].index",
    "servers[0]", "envs[0].servers[0]", "envs[1].env", "wrappers[0]",
    "wrappers[1].wrapper", "wrappers[1].path", "wrappers[2]", "agent", "algorithm", "attention",
    "engine_args.servers[0]", "engine_args.extra.trust_remote_code", "engine_args.extra.plugin",
    "trainer_args.report_to", "trainer_args.push_to_hub", "trainer_args.model_init_kwargs.code",
    "lora.megatron_core",
]  # fmt: skip
PLAIN = {
    "env": "agentgym/WebArena-v0",
    "agent": "window:8",
    "algorithm": "grpo",
    "attention": "flash_attention_2",
    "model": "org/model",
    "instruction": "Answer with one action: see http://example.com",
    "env_kwargs": {"layout": "browsergym", "seed": 3, "corpus": "synthetic:0", "told": "Be kind!"},
    "servers": [],
    "envs": [
        {
            "env": "agentgym/Search-v0",
            "split": "train",
            "env_kwargs": {"topk": 3},
            "wrappers": ["agentgym_env.wrappers:EndAfterInvalid"],
        }
    ],
    "wrappers": [{"wrapper": "agentgym_env.wrappers:EndAfterInvalid", "count": 3}],
    "engine_args": {"dtype": "bfloat16", "max_batch": 8, "extra": {}},
    "trainer_args": {
        "lr_scheduler_type": "linear",
        "report_to": "tensorboard",
        "push_to_hub": False,
    },
    "lora": {"r": 16, "target_modules": ["model.layers.0.self_attn.q_proj"]},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A working directory in which the module `evil` leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "evil.py").write_text(textwrap.dedent(CODE))
    yield tmp_path
    sys.modules.pop("evil", None)


def stored(folder: Path, env: str, run: dict) -> str:
    store = RunStore.create(folder / "run", run)
    turn = Turn("x", "x", "Done.", 1.0)
    store.append_trajectories(
        "p", [Trajectory(env, "1", 0, "", "Go.", [turn], "success", "p", 9, success=True)]
    )
    return "run"


def agentgym(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    ran = commands.agentgym(*words, folder=folder)
    sys.modules.pop("evil", None)
    return ran.status, ran.text


def test_every_name_is_found_by_its_place():
    assert list(names_in(NAMED)) == PLACES


def test_what_is_registered_built_in_or_prose_is_no_name():
    assert names_in(PLAIN) == {}
    assert (trust_option(PLAIN), trust_option(NAMED)) == ("", " --trust")


@pytest.mark.parametrize("yes", [True, 1, 2.5, "true", "yes", "1"])
def test_a_flag_is_found_whatever_true_value_it_has(yes):
    for flag in ("push_to_hub", "use_vllm", "trust_remote_code", "hub_always_push"):
        assert list(names_in({"trainer_args": {flag: yes}})) == [f"trainer_args.{flag}"]
    assert "trainer_args.model_init_kwargs.trust_remote_code" in names_in(
        {"trainer_args": {"model_init_kwargs": {"trust_remote_code": 1}}}
    )


@pytest.mark.parametrize("no", [False, 0, None, "", "false", "no"])
def test_a_flag_that_is_off_names_nothing(no):
    assert names_in({"trainer_args": {"push_to_hub": no, "trust_remote_code": no}}) == {}


@pytest.mark.parametrize("odd", [None, 3, [], ["a:b"], {"x": [None, {"y": 1.5}]}, "\x1b[2Ja:b"])
def test_settings_of_any_shape_are_read(odd):
    for key in NAMED:
        for text in names_in({key: odd}).values():
            assert text in ("a:b", "\x1b[2Ja:b")


def test_the_error_lists_all_names_with_their_places_in_one_line():
    require_trust("run", names_in(NAMED), trusted=True)
    require_trust("run", {}, trusted=False)
    with pytest.raises(BadRequest) as error:
        require_trust("run", names_in(NAMED) | {"x": "\x1b[2J\n"}, trusted=False)
    for place in PLACES:
        assert f"{place}=" in str(error.value)
    assert "env='evil:World'" in str(error.value) and "--trust" in str(error.value)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


def test_replay_imports_what_a_file_names_only_if_it_is_trusted(folder):
    run = stored(folder, "evil:World", {"config": {"env_kwargs": {"judge": "evil:reply"}}})
    status, said = agentgym(folder, "replay", run)
    assert status == 2, said
    assert "p.jsonl:1 env='evil:World'" in said and "env_kwargs.judge='evil:reply'" in said
    assert not (folder / "imported").exists()
    # A client of AgentGym's own servers takes the instruction from the class here.
    status, said = agentgym(folder, "replay", run, "--server", "agentgym+http://127.0.0.1:9")
    assert status == 2 and "p.jsonl:1 env='evil:World'" in said
    assert not (folder / "imported").exists()
    status, said = agentgym(folder, "replay", run, "--trust")
    assert status == 0 and "1 of 1 episodes agree" in said


def test_replay_trusts_what_the_user_names(folder):
    run = stored(folder, "evil:World", {"config": {"env_kwargs": {"judge": "evil:reply"}}})
    status, said = agentgym(folder, "replay", run, "--env", "evil:World")
    assert status == 2 and "env_kwargs.judge" in said and "p.jsonl" not in said
    assert not (folder / "imported").exists()
    words = ("--env", "evil:World", "--env-kwargs", '{"judge": "evil:reply"}')
    assert agentgym(folder, "replay", run, *words)[0] == 0
    RunStore(folder / "run").write_json("run.json", {"config": {"env_kwargs": {"mood": "glad"}}})
    assert agentgym(folder, "replay", run, "--env", "evil:World")[0] == 0


def test_replay_connects_to_no_address_of_a_file(folder):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        run = stored(
            folder, "agentgym/OpenEnv-v0", {"config": {"env_kwargs": {"address": address}}}
        )
        status, said = agentgym(folder, "replay", run)
        assert status == 2 and f"env_kwargs.address='{address}'" in said
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_export_imports_nothing_that_a_file_names(folder):
    stored(folder, "evil:World", {})
    words = ("--format", "conversations", "--out", "out.json")
    status, said = agentgym(folder, "export", "run/trajectories/p.jsonl", *words)
    assert status == 0 and (folder / "out.json").is_file(), said
    assert not (folder / "imported").exists()
