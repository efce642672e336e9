"""Checkpoints: what they contain beyond transformers' own, and what marks one as complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from agentgym_train.rollout.horizon import Horizon


class HorizonState(TrainerCallback):
    """Saves the horizon schedule's state in each checkpoint, and reports when it grows.

    The file is written last, so a checkpoint that contains it is complete.
    """

    FILE = "horizon.json"

    def __init__(
        self, horizon: Horizon, checkpoint: str | None, report: Callable[[str], object]
    ) -> None:
        """`checkpoint` is the folder that the run resumes from, if any."""
        self._horizon = horizon
        self._report = report
        if checkpoint is not None:
            kept = json.loads((Path(checkpoint) / self.FILE).read_text(encoding="utf-8"))
            horizon.load_state_dict(kept["state"])
        self._reported = len(horizon.growths)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report that the horizon grew."""
        for growth in self._horizon.growths[self._reported :]:
            self._report(f"horizon {growth.turns} from step {growth.step + 1}: {growth.reason}")
        self._reported = len(self._horizon.growths)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the state to the checkpoint, atomically."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        kept = {
            "step": step,
            "turns": self._horizon(step),
            "state": self._horizon.state_dict(),
        }
        _finish_checkpoint(args, state, self.FILE, kept)


class CheckpointMarker(TrainerCallback):
    """Marks each checkpoint as complete, for methods without a horizon schedule."""

    FILE = "whole.json"

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the file, atomically."""
        if state.is_world_process_zero:
            _finish_checkpoint(args, state, self.FILE, {"step": state.global_step})


class TokenCounter(TrainerCallback):
    """Keeps TRL's count of the trained tokens in the checkpoints; TRL begins again at 0."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Continue from the checkpoint's count."""
        self._trainer._total_train_tokens = int(state.num_input_tokens_seen)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count the step."""
        state.num_input_tokens_seen = self._trainer._total_train_tokens


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint; incomplete ones of a killed process are skipped."""
    names = (HorizonState.FILE, CheckpointMarker.FILE)
    whole = [path.parent for name in names for path in folder.glob(f"checkpoint-*/{name}")]
    steps = {str(path): path.name.removeprefix("checkpoint-") for path in whole}
    numbered = [(int(step), path) for path, step in steps.items() if step.isdecimal()]
    return max(numbered)[1] if numbered else None


def _finish_checkpoint(
    args: TrainingArguments, state: TrainerState, name: str, kept: dict[str, Any]
) -> None:
    target = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / name
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)
