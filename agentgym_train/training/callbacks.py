"""Callbacks for all training methods: metrics, Ctrl-C and the last step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.progress import Progress
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_env.run_store import RunStore
from agentgym_train.event_loop import in_main_thread
from agentgym_train.models.distributed import gathered
from agentgym_train.rollout.progress import is_redrawn
from agentgym_train.training.step_metrics import StepMetrics


@dataclass(frozen=True, slots=True)
class Shown:
    """Which log entries are a step's metrics, and the text next to the progress bar."""

    named_by: str
    """Only log entries with this metric are written; the final entry, for example, is not."""
    text: Callable[[StepMetrics], str]
    """The text next to the bar."""


_LINE_EVERY_S = 30.0
"""Seconds between two lines about the steps in a log file, where no bar moves."""


class Metrics(TrainerCallback):
    """Writes each step's metrics to the run store and shows them next to the progress bar."""

    def __init__(self, store: RunStore, progress: Progress, shown: Shown) -> None:
        self._store = store
        self._shown = shown
        self._progress = progress
        self._bar = progress.add_task("training", total=1, start=False, status="")
        self._began = time.monotonic()
        self._line_at = self._began + _LINE_EVERY_S

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Remove what later steps have stored, and start the bar at the current step."""
        # Here the checkpoint is loaded: a resume that fails before has removed nothing.
        self._store.keep_steps(state.global_step)
        self._progress.update(self._bar, total=state.max_steps, completed=state.global_step)
        self._progress.start_task(self._bar)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the step's timer."""
        self._began = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Write and show a step's metrics."""
        if not logs or self._shown.named_by not in logs:
            return
        row = {"step": state.global_step, "seconds": time.monotonic() - self._began}
        row |= logs
        self._store.append_metrics(row)
        text = self._shown.text(row)
        self._progress.update(self._bar, completed=state.global_step, status=text)
        console = self._progress.console
        if time.monotonic() >= self._line_at and not is_redrawn(console):
            self._line_at = time.monotonic() + _LINE_EVERY_S
            console.print(f"step {state.global_step}/{state.max_steps}  {text}", soft_wrap=True)


class StopOnInterrupt(TrainerCallback):
    """Stops the run after the current step with a checkpoint; a second Ctrl-C stops it at once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> StopOnInterrupt:
        """Install the SIGINT handler; Ctrl-C reaches only the main thread."""
        if in_main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous SIGINT handler."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.console.print(
            "[yellow]Stopping after this step with a checkpoint. Press Ctrl-C again to stop now.[/]"
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop if requested; all processes stop after the same step."""
        self.asked = any(gathered(self.asked))
        if self.asked:
            control.should_save = True
            control.should_training_stop = True


class CurrentLearningRate(TrainerCallback):
    """Sets the first learning rate of a resumed training by its own schedule.

    A checkpoint has the rate of the schedule with which it was written, and a run that is trained
    further has a longer one.
    """

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        """Compute it; without a longer schedule, this is the checkpoint's to the last bit."""
        schedule = getattr(lr_scheduler, "scheduler", lr_scheduler)
        if optimizer is None or not isinstance(schedule, LambdaLR):
            return
        shares = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        rates = [base * share(schedule.last_epoch) for base, share in shares]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule.load_state_dict({**schedule.state_dict(), "_last_lr": rates})


class LastStepReached(Exception):
    """The run resumes from the checkpoint of its last step, so no step is left."""


class StopAtLastStep(TrainerCallback):
    """Ends a resumed training that has no step left, by raising `LastStepReached`.

    transformers compares the step with `max_steps` only after a step, so it would train one step
    too many. When it calls `on_train_begin`, the checkpoint's weights are loaded and sharded.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Raise if no step is left; transformers reads control flags only after a step."""
        if state.global_step >= state.max_steps:
            raise LastStepReached


class StopAtEnvSteps(TrainerCallback):
    """Ends a run after the optimizer step that reaches a number of environment steps.

    The count is from the trainer's log, which checkpoints contain: a resumed run counts on. It
    raises `LastStepReached` if the steps were used before the checkpoint was saved.
    """

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Raise if no step is left."""
        if self._are_used(state):
            raise LastStepReached

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop if the steps are used; transformers saves a checkpoint afterwards."""
        if self._are_used(state):
            control.should_training_stop = True

    def _are_used(self, state: TrainerState) -> bool:
        return sum(row.get("env_steps", 0) for row in state.log_history) >= self.env_steps
