"""The trainer from the wheel alone: newest dependencies, no pins, another directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTCRAFT = ROOT / "examples" / "train" / "textcraft"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Installed:
    """An environment with the wheel in it, and a directory outside the repository."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.directory = folder / "elsewhere"
        self.directory.mkdir()

    def run(self, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess:
        """Run the installed command; its output, both streams together."""
        ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        return subprocess.run(
            [self.bin / "agentgym", *arguments],
            cwd=self.directory, env=inherited | environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=300,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-q", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("agentgym_sdk-*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv" / "bin" / "python", *pip[1:], "install", "-q", "--no-compile"]
    # torch goes first, as the README says: a CPU build, where this one knows where to find it.
    subprocess.run([*pip, "torch==2.13.0", "--extra-index-url", TORCH_INDEX], check=True)
    subprocess.run([*pip, f"{wheel}[serve,textcraft,train]"], check=True)
    return Installed(folder)


def test_it_trains_a_step_and_evaluates_what_it_trained(installed):
    trained = installed.run(
        "train", TEXTCRAFT / "quickstart.yaml", f"model={TEXTCRAFT / 'warm_policy'}",
        "output_dir=run", "steps=1", "prompts_per_step=2", "num_generations=2",
        "eval_before=false", "eval_after=false",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stdout
    metrics = (installed.directory / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [1]
    figures = installed.run(
        "eval", "--env", "textcraft", "--policy", "run/model", "--split", "test",
        "--per-category", "1", "--horizon", "3", "--out", "figures",
    )  # fmt: skip
    assert figures.returncode == 0, figures.stdout
    report = json.loads((installed.directory / "figures" / "report.json").read_text())
    assert [one["episodes"] for one in report["reports"].values()] == [4], report


def test_it_audits_and_saves_a_model(installed):
    audited = installed.run("audit", TEXTCRAFT / "warm_policy", "--turns", "1", "--episodes", "1")
    assert audited.returncode == 0, audited.stdout
    saved = installed.run("models", TEXTCRAFT / "warm_policy", "--save", "saved")
    assert saved.returncode == 0, saved.stdout
    assert (installed.directory / "saved" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", TEXTCRAFT / "quickstart.yaml", "model=nobody/nothing", "output_dir=none"),
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
