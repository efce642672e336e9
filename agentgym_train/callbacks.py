"""What a run shows and keeps at each optimizer step, and how it stops on Ctrl-C."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from rich.progress import Progress
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_env.run_store import RunStore

KEPT = (
    "reward",
    "reward_std",
    "success",
    "horizon",
    "turns",
    "env_steps",
    "sampled_tokens",
    "rollout_seconds",
    "lost",
    "retried",
    "loss",
    "grad_norm",
    "entropy",
    "kl",
    "learning_rate",
    "clip_ratio/region_mean",
)
"""Of TRL's many figures a step, those that are kept; outcome rates are kept too."""


class Metrics(TrainerCallback):
    """Writes each step's figures to the run store and shows them on one line with the time left."""

    def __init__(self, store: RunStore, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._bar = progress.add_task("training", total=1, start=False, figures="")
        self._began = time.monotonic()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Start the bar where the run stands."""
        self._progress.update(self._bar, total=state.max_steps, completed=state.global_step)
        self._progress.start_task(self._bar)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Time the step."""
        self._began = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Keep and show one step's figures."""
        if not logs or "success" not in logs:
            return
        row = {"step": state.global_step, "seconds": time.monotonic() - self._began}
        row |= {k: v for k, v in logs.items() if k in KEPT or k.startswith("outcome/")}
        self._store.append_metrics(row)
        text = (
            f"reward {row['reward']:.2f}  success {row['success']:.2f}  "
            f"horizon {row['horizon']:.0f}  turns {row['turns']:.1f}"
        )
        self._progress.update(self._bar, completed=state.global_step, figures=text)


class StopOnInterrupt(TrainerCallback):
    """The first Ctrl-C ends the run after this step, with a checkpoint; a second one at once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> StopOnInterrupt:
        """Take over SIGINT."""
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Give SIGINT back."""
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.console.print(
            "[yellow]Stopping after this step, with a checkpoint. Ctrl-C again stops at once.[/]"
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop when asked to."""
        if self.asked:
            control.should_save = True
            control.should_training_stop = True
