"""A run that can not be is refused before torch is loaded, with what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentgym_env.launch import child_environment
from hosting import nobody
from tests.train.test_run import write_config

HEAVY = ("torch", "transformers", "trl", "accelerate")

REFUSED = """
import sys
{before}
from agentgym_env.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    loaded = [name for name in {heavy} if sys.modules.get(name)]
    print("status", end.code, "loaded", loaded)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("config"))


def refusal(*words: object, before: str = "", command: str = "train") -> str:
    """What a command says that is refused before anything heavy is loaded."""
    program = REFUSED.format(before=before, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program, command, *map(str, words)],
        capture_output=True, text=True, env=child_environment(), timeout=240,
    )  # fmt: skip
    assert done.stdout.strip() == "status 2 loaded []", done.stdout + done.stderr
    assert "error: " in done.stderr and "Traceback" not in done.stderr
    return done.stderr.partition("error: ")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("setps=3", "unknown key setps; did you mean steps?"),
        ("horizn=3", "unknown key horizn; did you mean horizon?"),
        ("steps=many", "steps must be an integer, got 'many'"),
        ("horizon=[10,10]", "a horizon must increase from stage to stage, got [10, 10]"),
        ("horizon.type=adaptive horizon.threshold=0", "threshold is above 0, got 0"),
        ("--num-processes 3", "prompts_per_step 2 is not divisible by 3 processes"),
        ("--accelerate none.yaml", "no accelerate config none.yaml; one is starter:accelerate/"),
        ("model=./nothing", "no model in ./nothing: there is no config.json"),
        ("env=agentgym/TextCart-v0", "did you mean agentgym/TextCraft-v0?"),
        ("split=validation", "validation"),
        ("servers=[http://NOBODY]", "Connect"),
    ],
)
def test_a_config_that_can_not_be_is_refused_at_once(config, word, said):
    with nobody() as place:
        assert said in refusal(config, *word.replace("NOBODY", place).split())
    assert not (config.parent / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("eval", ["--env", "TextCraft", "--policy", "hf:./nothing"]),
        ("collect", ["--env", "TextCraft", "--policy", "hf:./nothing", "--out", "episodes"]),
        ("gateway", ["--policy", "hf:./nothing"]),
        ("audit", ["./nothing"]),
    ],
)
def test_every_command_names_an_unknown_model_at_once(command, words):
    assert "./nothing" in refusal(*words, command=command)


def test_a_missing_extra_of_the_trainer_is_named_at_once(config):
    message = refusal(config, before="sys.modules['trl'] = sys.modules['torch'] = None")
    assert "agentgym train needs torch, trl: pip install 'agentgym-sdk[train]'" in message


def test_a_missing_extra_of_the_world_is_named(config, tmp_path):
    # A package of that name that can not be imported stands before the real one on the path.
    (tmp_path / "minigrid.py").write_text("raise ModuleNotFoundError(name='minigrid')\n")
    before = f"sys.path.insert(0, {str(tmp_path)!r})"
    message = refusal(config, "env=agentgym/BabyAI-v0", before=before)
    assert "pip install 'agentgym-sdk[babyai]'" in message
