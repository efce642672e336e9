"""What the methods' runs share: metrics, checkpoints, Ctrl-C, and the interface of a method."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.progress import Progress
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_env.run_store import RunStore
from agentgym_train.evaluation.evaluate import EvalReport
from agentgym_train.models.distributed import gathered
from agentgym_train.rollout.horizon import Horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner

StepMetrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Shown:
    """Which log entries are a step's metrics, and the text beside the progress bar."""

    named_by: str
    """A log entry with this metric is a step's; others, such as the last one, are ignored."""
    text: Callable[[StepMetrics], str]
    """The text beside the bar."""
    hidden: tuple[str, ...] = ()
    """Metrics whose names begin with one of these are not written; all others are."""


class Metrics(TrainerCallback):
    """Writes each step's figures to the run store and shows them on one line with the time left."""

    def __init__(self, store: RunStore, progress: Progress, shown: Shown) -> None:
        self._store = store
        self._shown = shown
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
        if not logs or self._shown.named_by not in logs:
            return
        row = {"step": state.global_step, "seconds": time.monotonic() - self._began}
        row |= {k: v for k, v in logs.items() if not k.startswith(self._shown.hidden)}
        self._store.append_metrics(row)
        self._progress.update(self._bar, completed=state.global_step, figures=self._shown.text(row))


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
        """Save and stop when asked to, all processes after the same step."""
        self.asked = any(gathered(self.asked))
        if self.asked:
            control.should_save = True
            control.should_training_stop = True


class LastStepReached(Exception):
    """The checkpoint that a run resumes from is that of its last step."""


class StopAtLastStep(TrainerCallback):
    """Ends a resumed training that has no step left, by `LastStepReached`.

    transformers compares the step with `max_steps` only after a step, and so trains one too many.
    When it calls `on_train_begin`, the checkpoint's weights are loaded, and sharded if need be.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Raise when there is no step left; a control flag would be read after the next step."""
        if state.global_step >= state.max_steps:
            raise LastStepReached


class HorizonState(TrainerCallback):
    """Keeps the horizon schedule's state in each checkpoint, and says when and why it grew.

    The file is the last that is written, so a checkpoint that has it is whole.
    """

    FILE = "horizon.json"

    def __init__(
        self, horizon: Horizon, checkpoint: str | None, tell: Callable[[str], object]
    ) -> None:
        """`checkpoint` is the folder that the run goes on from, if it does."""
        self._horizon = horizon
        self._tell = tell
        if checkpoint is not None:
            kept = json.loads((Path(checkpoint) / self.FILE).read_text(encoding="utf-8"))
            horizon.load_state_dict(kept["state"])
        self._told = len(horizon.growths)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Say it when the horizon grew."""
        for growth in self._horizon.growths[self._told :]:
            self._tell(f"horizon {growth.turns} from step {growth.step + 1}: {growth.reason}")
        self._told = len(self._horizon.growths)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the state into the checkpoint, whole or not at all."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        kept = {
            "step": step,
            "turns": self._horizon(step),
            "state": self._horizon.state_dict(),
        }
        _finish_checkpoint(args, state, self.FILE, kept)


class Whole(TrainerCallback):
    """Writes the last file of each checkpoint where there is no other state to keep."""

    FILE = "whole.json"

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write it, whole or not at all."""
        if state.is_world_process_zero:
            _finish_checkpoint(args, state, self.FILE, {"step": state.global_step})


def _finish_checkpoint(
    args: TrainingArguments, state: TrainerState, name: str, kept: dict[str, Any]
) -> None:
    target = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / name
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint; one that a killed process left half written is passed over."""
    names = (HorizonState.FILE, Whole.FILE)
    whole = [path.parent for name in names for path in folder.glob(f"checkpoint-*/{name}")]
    numbered = [(int(path.name.rpartition("-")[2]), str(path)) for path in whole]
    return max(numbered)[1] if numbered else None


MakeTrainer = Callable[..., Any]

"""Makes a trainer of transformers' kind, with `whole_model()` and `close()`, for a run folder."""

Say = Callable[[str], object]

"""Tells the user a sentence."""


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a run that are a method's own; `config` is the method's."""

    check: Callable[[Any], None]
    """Raise `ConfigError` for names that only the libraries know, before a folder is touched."""
    prepare: Callable[[Policy, Any, RolloutRunner | None, Say], MakeTrainer]
    """What can be refused once the policy is loaded, and how the trainer is made."""
    callbacks: Callable[[Any, str | None, Progress], list[TrainerCallback]]
    """Of a trainer and the checkpoint that it goes on from. One of them writes the file that makes
    a checkpoint whole."""
    shown: Shown
    """Which figures of a step are kept, and what is said of them."""
    summary: Callable[[Any, RunStore, EvalReport | None, EvalReport | None], dict[str, Any]]
    plot: Callable[[Any, RunStore], Path | None]
    next_commands: Callable[[Any, RunStore], list[tuple[str, str]]]
    """(command, what it does) of what a user would type now."""
    last_words: Callable[[RunStore], str | None] = lambda store: None
    """What is said at the end beside figures and commands, if anything."""
