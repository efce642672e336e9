"""What a new user does: the wheel alone, newest dependencies, no pins, another directory."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
WARM = "starter:textcraft/warm_policy"
SMALL = ("eval.before=false", "eval.after=false", "save_every=1")
WORLDS = {
    "TextCraft": "textcraft",
    "BabyAI": "babyai",
    "SciWorld": "sciworld",
    "Search": "search",
    "WebArena": "web",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


class Installed:
    """A virtual environment with the wheel in it, and a directory outside the repository."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.directory = folder / "elsewhere"
        self.directory.mkdir()
        self.wheel = wheel
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def install(self, *wanted: str | Path) -> None:
        pip = [self.bin / "python", "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-compile", *wanted], check=True)

    def environ(self, **more: str) -> dict[str, str]:
        ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        path = f"{self.bin}{os.pathsep}{inherited['PATH']}"
        return inherited | {"PATH": path, "COLUMNS": "100"} | more

    def run(self, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess:
        """Run the installed command; its output, both streams together."""
        return self.call([self.bin / "agentgym", *arguments], **environ)

    def call(self, words: list, text: str = "", **environ: str) -> subprocess.CompletedProcess:
        """Run any program in the directory; its output, both streams together."""
        return subprocess.run(
            words, cwd=self.directory, env=self.environ(**environ), input=text,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-q", "-w", folder, ROOT], check=True)
    return next(folder.glob("agentgym_sdk-*.whl"))


@pytest.fixture(scope="module")
def base(tmp_path_factory, wheel) -> Installed:
    """The wheel without extras."""
    installed = Installed(tmp_path_factory.mktemp("base"), wheel)
    installed.install(wheel)
    return installed


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel) -> Installed:
    """With what the README says to install."""
    installed = Installed(tmp_path_factory.mktemp("installed"), wheel)
    # torch goes first, as the README says: a CPU build, where this one knows where to find it.
    installed.install("torch==2.13.0", "--extra-index-url", TORCH_INDEX)
    installed.install(f"{wheel}[textcraft,train]")
    return installed


def test_without_extras_an_error_names_all_that_a_command_needs(base):
    config = base.directory / "mine.yaml"
    config.write_text("env: agentgym/BabyAI-v0\nmodel: me/mine\noutput_dir: run\n")
    failed = base.run("train", config)
    assert failed.returncode == 2, failed.stdout
    (line,) = failed.stdout.splitlines()
    assert "torch" in line and "pip install 'agentgym-sdk[babyai,train]'. On a machine" in line
    assert line.endswith(TORCH_INDEX)


def test_without_extras_an_environment_is_made_checked_and_evaluated(base):
    created = base.run("new", "my-maze")
    assert created.returncode == 0, created.stdout
    where = {"PYTHONPATH": str(base.directory / "my-maze")}
    # It is not installed, so it is named by its module.
    shared = ("--env", "my_maze:MyMaze", "--horizon", "10")
    for arguments in (
        ("check", "my_maze:MyMaze", "--sessions", "4"),
        ("eval", *shared, "--policy", "expert", "--policy", "random", "--out", "figures"),
        ("collect", *shared, "--policy", "expert", "--n", "4", "--out", "episodes"),
    ):
        done = base.run(*arguments, **where)
        assert done.returncode == 0, done.stdout
    report = json.loads((base.directory / "figures" / "report.json").read_text())
    assert report["reports"]["expert"]["success"] == 1.0


def test_the_readmes_python_example_works_with_what_it_says_to_install(installed):
    readme = (ROOT / "README.md").read_text()
    assert "[textcraft,train]" in readme
    example = re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)[1]
    done = installed.call([installed.bin / "python", "-c", f"{example}\nprint(observation)"])
    assert done.returncode == 0 and done.stdout.startswith("Got 2 oak logs"), done.stdout


def trained_a_step(installed: Installed, method: str, config: str, *settings: str) -> None:
    name = f"starter:textcraft/{config}.yaml"
    trained = installed.run("train", name, *settings, *SMALL, f"output_dir={method}")
    assert trained.returncode == 0, trained.stdout
    facts = json.loads((installed.directory / method / "run.json").read_text())
    assert facts["config"]["method"] == method
    assert (installed.directory / method / "summary.json").is_file()


@pytest.mark.vital
def test_it_trains_a_step_of_rl(installed):
    trained_a_step(installed, "rl", "rl", "steps=1", "prompts_per_step=2", "num_generations=2")


def test_it_trains_a_step_of_the_other_methods_and_evaluates_and_audits_the_result(installed):
    played = ("--env", "textcraft", "--split", "train", "--instruction", "", "--horizon", "8")
    for policy in ("expert", "random"):
        done = installed.run("collect", "--policy", policy, *played, "--n", "8", "--out", policy)
        assert done.returncode == 0, done.stdout
    methods = {
        "sft": ("sft", "data=[expert]", "epochs=1", "rows_per_step=8"),
        "dpo": ("dpo", "data=[expert,random]", "epochs=1", "pairs_per_step=8", f"model={WARM}"),
        "evolve": (
            "evolve", "data=[expert]", "iterations=1", "samples=1", "epochs=1",
            "envs=[{env: agentgym/TextCraft-v0, horizon: 3, tasks: 2}]",
        ),
    }  # fmt: skip
    for method, (config, *settings) in methods.items():
        trained_a_step(installed, method, config, *settings)
    figures = installed.run(
        "eval", "--env", "textcraft", "--policy", "sft/model", "--split", "test",
        "--per-category", "1", "--horizon", "3", "--out", "figures",
    )  # fmt: skip
    assert figures.returncode == 0, figures.stdout
    report = json.loads((installed.directory / "figures" / "report.json").read_text())
    assert [one["episodes"] for one in report["reports"].values()] == [4], report
    audited = installed.run("audit", "sft/model", "--turns", "1", "--episodes", "1")
    assert audited.returncode == 0, audited.stdout
    saved = installed.run("models", WARM, "--save", "saved")
    assert saved.returncode == 0, saved.stdout
    assert (installed.directory / "saved" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "starter:textcraft/rl.yaml", "model=nobody/nothing", "output_dir=none"),
        ("eval", "--env", "textcraft", "--policy", "hf:nobody/nothing", "--split", "test"),
        ("audit", "nobody/nothing"),
        ("models", "nobody/nothing", "--save", "none"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_model_that_is_not_available_is_one_line_before_torch_is_loaded(
    installed, arguments, tmp_path
):
    # Nobody listens at the port that discards: the hub cannot be reached, wherever this runs.
    trap = tmp_path / "torch.py"
    trap.write_text("raise SystemExit('torch was loaded')\n")
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    failed = installed.run(*arguments, **environ)
    assert failed.returncode == 2, failed.stdout
    (line,) = failed.stdout.splitlines()
    assert line.startswith("error: 'nobody/nothing' ") and "cannot be reached" in line
    assert not (installed.directory / "none").exists()


def test_get_started_is_the_transcript_of_a_first_hour(installed):
    """Each command of the page runs, and prints what the page shows, but for the numbers."""
    page = (ROOT / "docs" / "get_started.md").read_text()
    commands = list(transcript(page))
    assert len(commands) > 12
    for command, typed, shown in commands:
        if command.startswith("pip install"):
            continue  # done by the fixture; the project of `agentgym new` is installed below
        if command.startswith("python"):
            command = f"{installed.bin}/{command}"
        printed = (
            until_interrupted(installed, command)
            if command.startswith("agentgym view")
            else finished(installed, command, typed)
        )
        found = comparable(printed)
        for line in shown:
            assert comparable(line) in found, f"{command} does not print:\n{line}\n{printed}"
        if command.startswith("agentgym new"):
            installed.install("--no-deps", installed.directory / "my-maze")
        if command.startswith("cd "):
            installed.directory = installed.directory / command.removeprefix("cd ")


@pytest.mark.parametrize("world", WORLDS)
def test_gymnasium_makes_each_world(installed, world):
    installed.install(f"{installed.wheel}[{WORLDS[world]}]")
    example = f"""
import agentgym_env, gymnasium
env = gymnasium.make("agentgym/{world}-v0")
observation, info = env.reset(seed=0)
assert observation and isinstance(observation, str)
observation, reward, terminated, truncated, info = env.step("something else")
print("answered:", bool(observation), reward, terminated)
env.close()
"""
    done = installed.call([installed.bin / "python", "-c", example])
    assert done.returncode == 0 and "answered: True 0.0 False" in done.stdout, done.stdout


def transcript(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """(command, what is typed into it, lines of output) of a page's console blocks, in order.

    A Python block is run as `python FILE`, with the console block that follows it.
    """
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            lines = output.splitlines()
            typed = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
            shown = [line for line in lines if line.strip() and not line.startswith(("> ", "..."))]
            yield command.partition("  # ")[0].strip(), "".join(f"{t}\n" for t in typed), shown


def finished(installed: Installed, command: str, typed: str) -> str:
    if command.startswith("cd "):
        return ""
    done = installed.call(["bash", "-c", command], text=typed)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def until_interrupted(installed: Installed, command: str) -> str:
    """What a command prints that runs until Ctrl-C; it must end well then."""
    printed = ""
    with subprocess.Popen(
        shlex.split(command), cwd=installed.directory, env=installed.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for line in process.stdout:
            printed += line
            if "http://" in line:
                process.send_signal(signal.SIGINT)
        watchdog.cancel()
    assert process.returncode == 0, printed
    return printed


def comparable(text: str) -> str:
    """The text without frames, repeated spaces and figures."""
    plain = re.sub(r"[\u2500-\u259f]+", " ", text)
    return re.sub(r"\s+", " ", re.sub(r"[+-]?\d+([.,:]\d+)*", "#", plain)).strip()
