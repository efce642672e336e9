"""Sends to a run's trackers what transformers does not: config, held-out results and episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import yaml
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from agentgym_env.run_store import BrokenLine, RunStore, each_line
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.run import RunConfig
from agentgym_train.evaluation.report import Reports

SAMPLES: Final = 4
"""Episodes in the table of each file: the first of an evaluation, and the last of the training."""
COLUMNS: Final = ("of", "env", "task", "success", "reward", "turns", "outcome", "text")
_MOST: Final = 4000
"""Characters of an episode's text."""


class Trackers(TrainerCallback, AbstractContextManager["Trackers"]):
    """The trackers of a run (`report_to`); they end with it, after the last evaluation.

    transformers' own callbacks log the metrics. They end with the training, so their end is kept
    until this is closed. Add it after them, which `Trainer` does first.
    """

    def __init__(self, trainer: Any, config: RunConfig, store: RunStore, before: Reports) -> None:
        kinds = tuple(get_reporting_integration_callbacks(trainer.args.report_to))
        self._trainer, self._config, self._store = trainer, config, store
        self._before = before
        self._trackers = [c for c in trainer.callback_handler.callbacks if isinstance(c, kinds)]
        self._ends = [tracker.on_train_end for tracker in self._trackers]
        self._has_begun = False
        self._finish: Any = None
        for tracker in self._trackers:
            tracker.on_train_end = lambda *_, **__: None
            if isinstance(tracker, TensorBoardCallback) and tracker.logging_dir is None:
                tracker.logging_dir = str(store.path / "tensorboard")
            if isinstance(tracker, WandbCallback) and tracker._wandb.run is None:
                self._finish = tracker._wandb.finish  # a run that the user began is the user's
        if self._trackers:
            trainer.add_callback(self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Send the config, and at the first step the evaluation before it."""
        self._has_begun = True
        if not state.is_world_process_zero:
            return
        values = {**self._config.as_dict(), "run_folder": str(self._store.path.absolute())}
        for tracker in self._trackers:
            match tracker:
                case TensorBoardCallback():
                    text = yaml.safe_dump(values, sort_keys=False)
                    tracker.tb_writer.add_text("agentgym", _as_code(text))
                case WandbCallback():
                    tracker._wandb.config.update({"agentgym": values}, allow_val_change=True)
                case TrackioCallback():
                    tracker._trackio.config.update({"agentgym": values}, allow_val_change=True)
        if state.global_step == 0:
            self.evaluated(self._before)

    def evaluated(self, reports: Reports) -> None:
        """Send held-out results as `eval/success` and so on, at the current step."""
        logs = {
            f"eval_{name}" + (f"/{env}" if len(reports) > 1 else ""): value
            for env, report in reports.items()
            for name, value in (
                ("success", report.success),
                ("reward", report.reward),
                ("turns", report.turns),
            )
        }
        if not (logs and self._has_begun):
            return
        of = self._trainer
        for tracker in self._trackers:
            tracker.on_log(of.args, of.state, of.control, model=of.model, logs=dict(logs))

    def __exit__(self, *error: object) -> None:
        """Send some episodes, and end the trackers; not those that a failed training never met."""
        of = self._trainer
        if not self._has_begun:
            return
        try:
            rows = list(self._rows()) if of.state.is_world_process_zero else []
            if rows:
                self._send(rows, of.state.global_step)
        finally:
            for end in self._ends:
                end(of.args, of.state, of.control, model=of.model)
            if self._finish is not None:
                self._finish()

    def _send(self, rows: list[list[Any]], step: int) -> None:
        for tracker in self._trackers:
            match tracker:
                case TensorBoardCallback() if tracker.tb_writer is not None:
                    for number, row in enumerate(rows):
                        text = yaml.safe_dump(dict(zip(COLUMNS, row, strict=True)), sort_keys=False)
                        tracker.tb_writer.add_text(f"episodes/{number}", _as_code(text), step)
                case WandbCallback():
                    table = tracker._wandb.Table(columns=list(COLUMNS), data=rows)
                    tracker._wandb.log({"episodes": table})
                case TrackioCallback():
                    table = tracker._trackio.Table(columns=list(COLUMNS), data=rows)
                    tracker._trackio.log({"episodes": table})

    def _rows(self) -> Iterator[list[Any]]:
        """The sample episodes, by `COLUMNS`."""
        files = sorted((self._store.path / "trajectories").glob("*.jsonl"))
        for file in files:
            episodes = (row for _, row in each_line(file, Trajectory))
            kept: deque[Trajectory] = deque(maxlen=SAMPLES)
            for episode in episodes:
                if not isinstance(episode, BrokenLine):
                    kept.append(episode)
                if len(kept) == SAMPLES and file.stem != "train":
                    break
            yield from (_row(file.stem, episode) for episode in kept)


def _row(name: str, episode: Trajectory) -> list[Any]:
    parts = [episode.observation]
    for turn in episode.turns:
        parts += [f"> {turn.response or turn.action}", turn.observation]
    text = "\n".join(parts)
    of = f"{name}, step {episode.step}" if name == "train" else name
    return [
        of, episode.env, episode.task, episode.success, episode.reward, len(episode.turns),
        episode.outcome, text if len(text) <= _MOST else f"{text[:_MOST]}...",
    ]  # fmt: skip


def _as_code(text: str) -> str:
    """A text as a block of Markdown that shows it as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
