"""Run folders of somebody else: what they name is not imported, contacted, opened or overwritten.

Every field of every config is in a list: `tests/train/test_trusted_runs.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from agentgym_env.cli import replay
from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory, Turn
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy

VICTIM = "a file of the user\n"
EXTERNAL = {"address_file": "victim", "host": "0.0.0.0"}
HOSTILE = {
    "a gateway that writes its address": {"agent": {"type": "external", **EXTERNAL}},
    "a gateway on all interfaces": {"agent": {"type": "external", "host": ""}},
    "an agent that somebody else runs": {"agent": "external"},
    "a program": {"agent": "command:rm victim"},
    "a program, as YAML reads it": {"agent": {"command": "rm victim"}},
    "a program in a key": {"agent": {"command:rm victim": None}},
    "an agent that somebody else runs, in a key": {"agent": {"external": []}},
    "an address in a key": {"env_kwargs": {"sites": {"http://victim": True}}},
    "a wrapper in a key": {"wrappers": [{"evil:Wrapper": None}]},
    "a folder for weights": {"engine": {"type": "vllm", "weights_dir": "victim"}},
    "a port for weights": {"engine": {"type": "vllm", "nccl_address": "0"}},
    "a file of PEFT's": {"lora": {"corda_config": {"cache_file": "victim"}}},
    "a repository": {"trainer_args": {"push_to_hub": True, "hub_model_id": "victim"}},
    "a server": {"servers": ["victim"]},
    "a server of one of several": {
        "env": "", "envs": [{"env": "textcraft", "servers": ["victim"]}],
    },
    "a file of an environment": {"env_kwargs": {"log": "victim"}},
    "an argument of a wrapper": {
        "wrappers": [{"wrapper": "agentgym_env.wrappers:StepPenalty", "penalty": "victim"}]
    },
    "a class of a module of ours": {"wrappers": ["agentgym_env.wrappers:load_named"]},
    "kernels of the hub": {"attention": "victim/kernels"},
}  # fmt: skip


def stored(folder: Path, settings: dict) -> Path:
    """A run of somebody else, in a folder with the file `victim`."""
    folder.mkdir()
    (folder / "victim").write_text(VICTIM)
    config = {
        "model": save_tiny_policy(folder / "policy"), "env": "agentgym/TextCraft-v0",
        "output_dir": "run", "steps": 1, "eval": {"before": False, "after": False},
    } | settings  # fmt: skip
    store = RunStore.create(folder / "run", {"config": config})
    store.write_text("config.yaml", yaml.safe_dump(config))
    turn = Turn("x", "x", "Done.", 1.0)
    store.append_trajectories(
        "train", [Trajectory("agentgym/TextCraft-v0", "1", 0, "", "Go.", [turn], "failure", "p", 9)]
    )
    return folder


def tried(folder: Path, *words: object) -> str:
    """What a command says that must reject the folder, and leave the file."""
    status, said = finish(Command(*words, cwd=folder))
    assert status == 2, said
    assert (folder / "victim").read_text() == VICTIM
    return " ".join(said.split())


def test_no_folder_resumes_with_more_than_harmless_settings(tmp_path):
    for number, (case, settings) in enumerate(HOSTILE.items()):
        folder = stored(tmp_path / str(number), settings)
        said = tried(folder, "train", "--resume", "run")
        assert "names code, addresses or files" in said and "--trust" in said, (case, said)
        for key in settings.keys() - {"engine", "env"}:
            assert key in said, (case, said)
    sys.stdout.write(f"resumes of {len(HOSTILE)} hostile folders: all rejected\n")


@pytest.mark.parametrize("linked", ["metrics.jsonl", "trajectories", "checkpoints"])
def test_no_resumed_run_writes_through_a_link_out_of_its_folder(tmp_path, linked):
    folder = stored(tmp_path / "theirs", {})
    (outside := folder / "outside").mkdir()
    if (place := folder / "run" / linked).is_dir():
        place.rename(place.with_name("moved"))
    place.symlink_to(outside if linked != "metrics.jsonl" else folder / "victim")
    said = tried(folder, "train", "--resume", "run")
    assert f"{linked}='{place.resolve()}'" in said and not list(outside.iterdir())
    sys.stdout.write(f"a run whose {linked} leads elsewhere: not resumed\n")


@pytest.mark.parametrize("agent", ["external", "command:rm victim", "evil:Agent"])
def test_no_agent_comes_from_the_settings_of_a_run(tmp_path, agent):
    folder = stored(tmp_path / "theirs", {"agent": {"type": agent, **EXTERNAL}})
    given = ("--env", "textcraft", "--policy", "policy", "--settings-of", "run")
    for words in (("eval", *given, "--limit", 1), ("collect", *given, "--out", "out")):
        assert "name it with --agent if you trust it" in tried(folder, *words)
    sys.stdout.write(f"eval and collect with a run's agent {agent}: rejected\n")


def test_replay_and_audit_use_nothing_that_a_run_names(tmp_path):
    settings = {"env_kwargs": {"log": "victim"}, "agent": {"type": "evil:Agent", **EXTERNAL},
                "horizon": {"type": "evil:Grow"}, "env": "evil:World"}  # fmt: skip
    folder = stored(tmp_path / "theirs", settings)
    (folder / "evil.py").write_text("open('imported', 'w')")
    said = tried(folder, "replay", "run")
    assert "env_kwargs.log='victim'" in said
    said = tried(folder, "audit", "run")
    for key in ("agent.type", "env", "horizon.type"):
        assert f"{key}='evil:" in said
    assert not (folder / "imported").exists()
    sys.stdout.write("replay and audit of a run that names code and files: rejected\n")


def test_replay_trusts_what_it_uses_and_not_what_the_file_said_before(tmp_path, monkeypatch):
    folder = stored(tmp_path / "theirs", {})
    (folder / "evil.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(folder)
    file = folder / "run" / "trajectories" / "train.jsonl"
    read = replay._chosen

    def replaced(*words):
        yield from read(*words)
        file.write_text(file.read_text().replace("agentgym/TextCraft-v0", "evil:World"))

    monkeypatch.setattr(replay, "_chosen", replaced)
    with pytest.raises(BadRequest, match="env='evil:World'"):
        replay.replay("run", server="inprocess")
    assert not (folder / "imported").exists()


def test_a_config_of_few_lines_that_stand_for_billions_is_rejected(tmp_path):
    folder = stored(tmp_path / "theirs", {})
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (folder / "run" / "config.yaml").write_text("\n".join(lines))
    words = ("eval", "--env", "textcraft", "--policy", "policy", "--settings-of", "run")
    assert "more than 100,000 values" in tried(folder, *words)


def test_a_run_of_your_own_resumes_without_trust(tmp_path):
    """With defaults, harmless settings, and paths that are read."""
    settings = {"horizon": {"type": "fixed", "turns": [1]},
                "trainer_args": {"report_to": "none", "weight_decay": 0.1},
                "env_kwargs": {"legacy": True},
                "prompts_per_step": 1, "num_generations": 2, "turn_max_tokens": 4,
                "lora": {"r": 2, "target_modules": "all-linear"}}  # fmt: skip
    folder = stored(tmp_path / "own", settings)
    (folder / "run" / "trajectories" / "train.jsonl").unlink()
    status, said = finish(Command("train", "--resume", "run", cwd=folder))
    assert status == 0, said
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == 1
    sys.stdout.write("a folder with harmless settings alone: resumed without --trust\n")
