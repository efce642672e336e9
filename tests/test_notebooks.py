"""The notebooks of examples/notebooks in a real kernel, and what a notebook shows of a run."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from agentgym_env.errors import ConfigError
from agentgym_train.runs.stored import resumed_config

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "notebooks"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the kernel's client
slow = pytest.mark.slow

CELLS = [
    """
from agentgym_env import TaskSet, TextEnv
from agentgym_train import AgentTrainer, CollectConfig, RLConfig, collect
from tests.train.small import textcraft_tokenizer, tiny_model

ANSWER = {"train": "look", "test": "wait"}


def right(task):
    return ANSWER[task.partition("-")[0]]


class Word(TextEnv):
    instruction = "Say the word."
    tasks = TaskSet({"train": ["train-1", "train-2"], "test": ["test-1"]})

    def _reset(self, task):
        self.task = task
        return "Say it."

    def _step(self, action):
        done = action == right(self.task)
        return "Yes." if done else "No.", float(len(action)), done

    def expert(self):
        yield right(self.task)
""",
    """
asked = {"env": "__main__:Word", "model": "expert", "n": 4}
assert collect(CollectConfig(output_dir="runs/word", **asked)) == 0
""",
    """
ANSWER["train"] = "craft"
assert collect(CollectConfig(output_dir="runs/again", **asked)) == 0
""",
    """
args = RLConfig(
    output_dir="runs/rl", horizon=[2], steps=2, prompts_per_step=2, num_generations=2,
    turn_max_tokens=8, max_tokens=512, instruction="",
)
with AgentTrainer(tiny_model(), Word, args, processing_class=textcraft_tokenizer()) as trainer:
    result = trainer.train()
result
""",
]  # fmt: skip


def executed(notebook, folder, monkeypatch):
    """The notebook's cells with their outputs, after a run in a kernel of this Python."""
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=resources, allow_errors=False
    ).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell, kind="text/plain"):
    """The last state of all that a cell shows, in one text."""
    return "\n".join(
        output.text if output.output_type == "stream" else output.data.get(kind, "")
        for output in cell.outputs
    )


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The folder and the cells of a run with an environment of the notebook itself."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    with pytest.MonkeyPatch.context() as monkeypatch:
        return folder, executed(notebook, folder, monkeypatch)


def test_an_environment_of_a_cell_is_collected_and_trained_as_it_is_now(cells):
    folder, _ = cells
    for run, word in (("word", "look"), ("again", "craft")):
        lines = (folder / "runs" / run / "trajectories" / "collected.jsonl").read_text()
        assert set(re.findall(r'"action":"(\w+)"', lines)) == {word}
    assert (folder / "runs" / "rl" / "summary.json").is_file()
    with pytest.raises(ConfigError, match=r"trained with Python objects \(env: Word\)"):
        resumed_config(folder / "runs" / "rl", trusted=True)


def test_a_notebook_shows_one_bar_per_phase_and_no_complaint_about_widgets(cells):
    *_, training = cells[1]
    text = shown(training)
    assert not [output for output in training.outputs if output.output_type == "stream"]
    for phase in ("eval before", "training", "eval after"):
        bars = [o for o in training.outputs if phase in o.get("data", {}).get("text/plain", "")]
        assert len([o for o in bars if "━" in o.data["text/plain"]]) == 1, phase
    assert re.search(r"training .*2/2", text) and re.search(r"eval after .*1/1", text)


def test_what_train_returns_is_shown_with_curves_and_is_a_mapping(cells):
    result = cells[1][-1].outputs[-1]
    assert result.output_type == "execute_result"
    assert "data:image/png;base64," in result.data["text/html"]
    assert "success after" in result.data["text/html"]
    assert result.data["text/plain"].startswith("{'step': 2")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quickstart", "95 % interval over"),
        ("own_world", "ok   other processes give the same episode"),
        ("reading_an_evaluation", "warm - random: "),
    ],
)
@slow
def test_an_example_runs_as_it_is(name, said, tmp_path, monkeypatch):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    found = executed(notebook, tmp_path, monkeypatch)
    whole = "\n".join(map(shown, found))
    assert said in whole and "FAIL" not in whole
    assert not [o for cell in found for o in cell.outputs if o.get("name") == "stderr"]
    assert any("image/png" in o.get("data", {}) or "data:image/png" in shown(cell, "text/html")
               for cell in found for o in cell.outputs)  # fmt: skip


def test_the_examples_are_stored_without_outputs():
    files = sorted(FOLDER.glob("*.ipynb"))
    assert [file.stem for file in files] == ["own_world", "quickstart", "reading_an_evaluation"]
    for file in files:
        notebook = nbformat.read(file, 4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs")]
