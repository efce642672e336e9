"""What a log file shows of a run's steps, where no bar moves."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress
from transformers import TrainerControl, TrainerState

from agentgym_env.run_store import RunStore
from agentgym_train.training import callbacks
from agentgym_train.training.callbacks import Metrics, Shown


@pytest.mark.parametrize(
    ("every_s", "is_terminal", "lines"), [(0, False, 2), (0, True, 0), (1e9, False, 0)]
)
def test_a_log_file_has_a_line_about_the_steps_now_and_then(
    tmp_path, monkeypatch, every_s, is_terminal, lines
):
    monkeypatch.setattr(callbacks, "_LINE_EVERY_S", every_s)
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=200)
    shown = Shown("loss", lambda row: f"loss {row['loss']:.1f}")
    metrics = Metrics(RunStore.create(tmp_path / "run", {}), Progress(console=console), shown)
    for step in (1, 2):
        state = TrainerState(global_step=step, max_steps=9)
        metrics.on_log(None, state, TrainerControl(), {"loss": 0.5})
    said = [line for line in written.getvalue().splitlines() if line.startswith("step ")]
    assert len(said) == lines and said == ["step 1/9  loss 0.5", "step 2/9  loss 0.5"][:lines]
