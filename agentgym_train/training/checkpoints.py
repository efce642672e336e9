"""Checkpoints: what they contain beyond transformers' own, and what marks one as complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from agentgym_env.errors import ConfigError
from agentgym_train.rollout.horizon import Horizon


class HorizonState(TrainerCallback):
    """Saves the state of the horizon schedules in each checkpoint, and reports when one grows.

    The file is written last, so a checkpoint that contains it is complete.
    """

    FILE = "horizon.json"

    def __init__(
        self,
        horizons: Mapping[str, Horizon],
        checkpoint: str | None,
        report: Callable[[str], object],
    ) -> None:
        """`horizons` are by environment; `checkpoint` is what the run resumes from, if anything."""
        self._horizons = horizons
        self._report = report
        if checkpoint is not None:
            self._load(json.loads((Path(checkpoint) / self.FILE).read_text(encoding="utf-8")))
        self._reported = {env: len(horizon.growths) for env, horizon in horizons.items()}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Report that a horizon grew."""
        for env, horizon in self._horizons.items():
            place = f" in {env}" if len(self._horizons) > 1 else ""
            for growth in horizon.growths[self._reported[env] :]:
                when = f"from step {growth.step + 1}: {growth.reason}"
                self._report(f"horizon {growth.turns}{place} {when}")
            self._reported[env] = len(horizon.growths)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the state to the checkpoint, atomically."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        kept = {
            env: {"turns": horizon(step), "state": horizon.state_dict()}
            for env, horizon in self._horizons.items()
        }
        _finish_checkpoint(args, state, self.FILE, {"step": step, "horizons": kept})

    def _load(self, kept: Mapping[str, Any]) -> None:
        """Restore the schedules; raises `ConfigError` if they are of other environments."""
        if "horizons" in kept:
            states = {env: found["state"] for env, found in kept["horizons"].items()}
        elif set(kept["state"]) & set(self._horizons):
            states = kept["state"]
        else:  # an earlier version stored the state of a single schedule without its environment
            states = dict.fromkeys(self._horizons, kept["state"])
        if set(states) != set(self._horizons):
            raise ConfigError(
                f"the checkpoint's horizons are of {', '.join(sorted(states))}, the config has "
                f"{', '.join(sorted(self._horizons))}; resume with the run's own config"
            )
        for env, horizon in self._horizons.items():
            horizon.load_state_dict(states[env])


class CheckpointMarker(TrainerCallback):
    """Marks each checkpoint as complete, for methods without a horizon schedule."""

    FILE = "whole.json"

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Write the file, atomically."""
        if state.is_world_process_zero:
            _finish_checkpoint(args, state, self.FILE, {"step": state.global_step})


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint; incomplete ones of a killed process are skipped."""
    names = (HorizonState.FILE, CheckpointMarker.FILE)
    whole = [path.parent for name in names for path in folder.glob(f"checkpoint-*/{name}")]
    steps = {str(path): path.name.removeprefix("checkpoint-") for path in whole}
    numbered = [(int(step), path) for path, step in steps.items() if step.isdecimal()]
    return max(numbered)[1] if numbered else None


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the current step's checkpoint."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _finish_checkpoint(
    args: TrainingArguments, state: TrainerState, name: str, kept: dict[str, Any]
) -> None:
    target = checkpoint_folder(args, state) / name
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)
