"""The `agentgym` command as a user meets it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from agentgym_env.cli.main import (
    SUMMARIES,
    _commands,
    _ending_on_errors,
    _naming_the_extra,
    main,
)
from agentgym_env.errors import ConfigError, MissingExtra, UnknownEnvironment
from commands import agentgym


def test_help_lists_every_rooms_commands_and_imports_none_and_no_library_of_one():
    script = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    script += "from agentgym_env.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    for command in ("envs", "serve", "train", "eval"):
        assert command in done.stdout
    modules = set(done.stderr.split())
    assert "agentgym_env.cli.main" in modules
    own = {name for name in modules if name.startswith("agentgym_")}
    assert not any(name.startswith(("agentgym_train", "agentgym_servers")) for name in own)
    for name in ("cli.play", "cli.check", "remote", "launch", "client.transports", "vector"):
        assert f"agentgym_env.{name}" not in own
    assert not modules & {"torch", "transformers", "requests", "aiohttp", "uvicorn", "msgspec"}


def test_the_list_of_commands_says_of_each_what_its_own_help_says():
    for name, load in _commands().items():
        assert inspect.getdoc(load()).partition("\n")[0] == SUMMARIES[name], name


@pytest.mark.slow
def test_environments_are_listed_with_their_splits():
    (textcraft,) = [
        row
        for row in json.loads(agentgym("envs", "--json").out)
        if row["id"] == "agentgym/TextCraft-v0"
    ]
    assert textcraft["splits"] == {"train": 444, "test": 100}
    assert textcraft["missing"] is None


COMPLETED = [
    ("agentgym tr", 1, {"train"}),
    ("agentgym ", 1, set(SUMMARIES)),
    ("agentgym serve --max-s", 2, {"--max-sessions"}),
    ("agentgym eval --pol", 2, {"--policy"}),
    ("agentgym export runs/x --fo", 3, {"--format"}),
    ("agentgym nothing", 1, set()),
]


@pytest.mark.parametrize(("line", "at", "found"), COMPLETED)
def test_a_shell_completes_commands_and_their_options(line, at, found, monkeypatch, capsys):
    monkeypatch.setenv("_AGENTGYM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(at))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == found


def test_zsh_is_told_what_each_command_does(monkeypatch, capsys):
    monkeypatch.setenv("_AGENTGYM_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "agentgym rep")
    with pytest.raises(SystemExit):
        main([])
    said = capsys.readouterr().out
    assert '"replay":"Repeat recorded episodes' in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "rl.yaml", "steps=3"], "agentgym train rl.yaml --num-processes 2"),
        (["train", "starter:a/b.yml"], "agentgym train starter:a/b.yml --num-processes 2"),
        (["train"], "agentgym train CONFIG --num-processes 2"),
    ],
)
def test_an_error_names_the_config_of_the_command_line(words, named, capsys):
    with pytest.raises(SystemExit), _ending_on_errors(words):
        raise ConfigError("start it with `agentgym train CONFIG --num-processes 2`")
    assert f"`{named}`" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_without_a_traceback(capsys):
    with pytest.raises(SystemExit) as ended, _ending_on_errors(["train"]):
        raise KeyboardInterrupt
    assert ended.value.code == 130 and capsys.readouterr().err == ""
    with pytest.raises(KeyboardInterrupt), _ending_on_errors(["train", "--debug"]):
        raise KeyboardInterrupt


def test_the_version_is_the_installed_ones():
    assert agentgym("--version").out.strip() == f"agentgym-sdk {version('agentgym-sdk')}"


def test_an_error_is_one_line_with_its_remedy_and_status_2():
    ran = agentgym("eval", "--env", "agentgym/TextCraft-v1", "--policy", "expert")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: ") and "agentgym/TextCraft-v0" in ran.err
    with pytest.raises(UnknownEnvironment):  # Python prints its traceback
        agentgym("--debug", "eval", "--env", "x", "--policy", "expert")


def test_a_path_that_is_too_long_is_one_short_line(capsys):
    with pytest.raises(SystemExit) as ended, _ending_on_errors(["train"]):
        Path("x" * 5000).stat()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the path xxx") and said.endswith("... is too long\n")
    assert said.count("\n") == 1 and len(said) < 250


def test_a_missing_extra_names_what_to_install_brackets_and_all(capsys):
    with pytest.raises(SystemExit) as ended, _ending_on_errors(["train"]):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "agentgym train needs torch: pip install 'agentgym-sdk[train]'" in said


def test_a_bug_of_ours_is_not_taken_for_a_missing_extra():
    with pytest.raises(ModuleNotFoundError), _naming_the_extra("train"):
        raise ModuleNotFoundError("No module named 'agentgym_typo'", name="agentgym_typo")
    with pytest.raises(MissingExtra), _naming_the_extra("bench"):
        raise ModuleNotFoundError("No module named 'httptools'", name="httptools")
