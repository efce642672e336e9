"""Training, audits and the viewer use what a run folder names only with `--trust`."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from agentgym_env import TaskSet, TextEnv
from agentgym_env.cli import main
from agentgym_env.errors import BadRequest
from agentgym_env.registration import load_named, register
from agentgym_env.run_store import RunStore
from agentgym_train.audit.audit import subject_of
from agentgym_train.runs import preflight
from agentgym_train.viewer.query import NoPicture, Pictures, Stored
from tests.env.test_trust import NAMED, PLACES, agentgym, folder
from tests.train.small import save_tiny_policy

__all__ = ["folder"]
CONFIG = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": "run"}
EVIL = {"agent": "evil:Nobody", "env_kwargs": {"judge": "evil:reply"}, "servers": ["http://evil"]}


def test_resume_lists_every_name_of_the_folder_and_imports_none(folder):
    RunStore.create(folder / "run", {"config": CONFIG | NAMED})
    status, said = agentgym(folder, "train", "--resume", "run")
    assert status == 2 and "run/run.json names code or addresses" in said
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

    monkeypatch.setattr(preflight, "_become", become)
    named = {"model": save_tiny_policy(tmp_path / "policy"), "servers": ["http://127.0.0.1:9"]}
    RunStore.create(tmp_path / "run", {"config": CONFIG | named})
    words = ["train", "--resume", str(tmp_path / "run"), "--num-processes", "2", "--trust"]
    with pytest.raises(InterruptedError) as became:
        main(words)
    assert became.value.args[-4:] == ("agentgym_train", "--resume", words[2], "--trust")


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
    episode = Stored(env="tests/Drawn-v0", task="1", observation="Go.")
    key, settings = (1, "p", 0), {"judge": "evil:reply"}
    with pytest.raises(NoPicture, match=r"env_kwargs\.judge='evil:reply'.*--trust"):
        Pictures().of(key, episode, settings)
    assert not (folder / "imported").exists()
    assert len(Pictures().of(key, episode, {})) == 1
    assert len(Pictures(trusted=True).of(key, episode, settings)) == 1
    assert (folder / "imported").exists()


def test_an_audit_does_not_import_the_horizon_schedule_of_an_untrusted_run(tmp_path):
    run = tmp_path / "run"
    config = {"model": "m", "env": "agentgym/TextCraft-v0", "output_dir": str(run),
              "horizon_schedule": "evil.module:Schedule"}  # fmt: skip
    RunStore.create(run, {"config": config})
    with pytest.raises(BadRequest, match=r"horizon_schedule"):
        subject_of(str(run), "float32", {})
