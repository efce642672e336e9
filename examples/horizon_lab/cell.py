"""One cell of the study: trained to its budget, evaluated on the way, resumed after a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers import TrainerControl, TrainerState

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train import AgentTrainer
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation.play import evaluate
from agentgym_train.models.loading import load_policy
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.callbacks import StopAtEnvSteps

RESULT = "result.json"
EVALUATIONS = "evaluations.jsonl"
_SCORED_EPISODES = 64
"""Episodes of an evaluation whose tokens are scored for entropy and KL divergence."""
_ROWS = 16
"""Rows per forward pass of that."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured in every evaluation of a cell."""

    horizons: tuple[int, ...]
    """Success is reported within each of these numbers of turns."""
    during: tuple[str, int] = ("dev", 3)
    """Split and episodes per task of the evaluations during training."""
    final: tuple[str, int] = ("test", 8)
    """The same of the one after it."""
    number: int = 10
    """Evaluations during training, at equal shares of the budget, after the one before it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    name: str
    config: RLConfig
    env_steps: int
    """The run ends after the optimizer step that reaches this number of environment steps."""
    measured: Measured
    labels: dict[str, Any] = field(default_factory=dict)
    """Its place in the plan: part, world, schedule, algorithm, seed, ..."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.config.output_dir)

    @property
    def plan(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as JSON."""
        values = asdict(self)
        # Folders may move, which changes nothing about the run.
        del values["config"]["output_dir"]
        values["config"]["model"] = Path(self.config.model).name
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    def result(self) -> dict[str, Any] | None:
        """What a finished run has stored; raises `ConfigError` if it was another plan's."""
        kept = read_result(self.path)
        if kept is not None and kept["plan"] != self.plan:
            raise ConfigError(
                f"{self.path} was run with another plan; choose another --out, or remove it "
                "and its entry in summary.json"
            )
        return kept


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run has stored; raises an `AgentGymError` if the file is damaged."""
    kept = RunStore(folder).read_json(RESULT)
    if kept is not None and not {"plan", "final", "evaluations", "training"} <= kept.keys():
        raise ConfigError(f"{folder / RESULT} is incomplete; restore or remove it")
    return kept


def _without_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not the defaults; also of those within `eval` and `limits`."""
    return {
        key: _without_defaults(value, defaults[key])
        if isinstance(value, Mapping) and isinstance(defaults.get(key), Mapping)
        else value
        for key, value in values.items()
        if key not in defaults or defaults[key] != value
    }


def digest(plan: Mapping[str, Any]) -> str:
    """A short hash of a plan; settings with their default values are not part of it.

    So a new setting of the trainer does not make the published cells those of another plan.
    """
    config = _without_defaults(plan["config"], RLConfig().as_dict())
    text = json.dumps([config, plan["env_steps"], plan["measured"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def play(cell: Cell, console: Console) -> dict[str, Any]:
    """Train, evaluate and store a cell, from its last checkpoint if it was begun.

    Raises `KeyboardInterrupt` after Ctrl-C, with a checkpoint.
    """
    kept = cell.result()
    if kept is not None:
        return kept
    begun = (cell.path / "run.json").is_file()
    with AgentTrainer(args=cell.config, console=Console(quiet=True)) as trainer:
        trainer.add_callback(Budget(cell, trainer, console))
        trainer.train(resume_from_checkpoint=begun)
        store = RunStore.open(cell.path)
        rows, _ = store.metrics()
        split, samples = cell.measured.final
        final = _evaluation(cell, trainer, split, samples)
    store.write_json(
        RESULT,
        {
            "plan": cell.plan,
            "final": final,
            "evaluations": read_evaluations(cell.path),
            "training": _training(rows),
        },
    )
    # For the viewer, which takes a run without a summary for an interrupted one.
    longest = str(max(cell.measured.horizons))
    store.write_json("summary.json", {"success_after": final["success"][longest], **cell.labels})
    result = store.read_json(RESULT)
    assert result is not None
    return result


_KEPT = (
    "step", "horizon", "env_steps", "sampled_tokens", "reward", "success", "turns", "entropy",
    "grad_norm", "informative_groups", "seconds", "rollout_seconds", "lost",
)  # fmt: skip


def _training(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The metrics of all steps, by name."""
    return {name: [row.get(name) for row in rows] for name in _KEPT}


class Budget(StopAtEnvSteps):
    """Evaluates at equal shares of the environment steps, and ends the run when they are used.

    All counts are from the trainer's log, which checkpoints contain: a resumed run counts on.
    """

    def __init__(self, cell: Cell, trainer: AgentTrainer, console: Console) -> None:
        super().__init__(cell.env_steps)
        self._cell, self._trainer, self._console = cell, trainer, console

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Drop the evaluations of steps that are repeated; evaluate before the first step.

        Raises `LastStepReached` if the budget was used before the checkpoint was saved.
        """
        kept = [
            row for row in read_evaluations(self._cell.path) if row["step"] <= state.global_step
        ]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        (self._cell.path / EVALUATIONS).write_text(text, encoding="utf-8")
        self._evaluate_if_due(state)
        super().on_train_begin(args, state, control)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Count a step; transformers saves a checkpoint of it afterwards."""
        if "env_steps" not in (logs or {}):
            return
        self._evaluate_if_due(state)
        super().on_log(args, state, control)

    def _evaluate_if_due(self, state: TrainerState) -> None:
        spent = _total(state, "env_steps")
        measured = self._cell.measured
        due = min(int(spent * measured.number / self._cell.env_steps), measured.number)
        rows = read_evaluations(self._cell.path)
        if rows and rows[-1]["due"] >= due:
            return
        split, samples = measured.during
        row = {
            "due": due,
            "step": state.global_step,
            "env_steps": spent,
            "sampled_tokens": _total(state, "sampled_tokens"),
            **_evaluation(self._cell, self._trainer, split, samples),
        }
        with (self._cell.path / EVALUATIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shown = " ".join(f"{h}: {value:.2f}" for h, value in row["success"].items())
        self._console.print(
            f"{self._cell.name}: step {state.global_step}, {spent:,} environment steps, success "
            f"at {shown}",
            highlight=False,
            soft_wrap=True,
        )


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run so far; a line that a kill has cut is not one."""
    path = folder / EVALUATIONS
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); remove {folder} to repeat it") from error


def _total(state: TrainerState, name: str) -> int:
    return int(sum(row.get(name, 0) for row in state.log_history))


def _evaluation(cell: Cell, trainer: AgentTrainer, split: str, samples: int) -> dict[str, Any]:
    """The figures of the current weights at all horizons."""
    model = trainer.policy.model if trainer.trainer is None else trainer.trainer.gathered_model()
    version = 0 if trainer.trainer is None else trainer.trainer.state.global_step
    (runner,) = trainer.worlds
    runner.run(trainer.policy.engine.update_weights(model, version))
    report, episodes = played(
        trainer.policy, runner, split, max(cell.measured.horizons), samples, cell.config
    )
    was_training = model.training
    figures = token_figures(model, cell.config.model, _spread(episodes))
    model.train(was_training)
    return {
        "split": split,
        "success": {str(h): fmean(within(episodes, h)) for h in cell.measured.horizons},
        "by_task": {str(h): by_task(episodes, h) for h in cell.measured.horizons},
        "categories": {
            name: {
                str(h): fmean(within([e for e in episodes if e.category == name], h))
                for h in cell.measured.horizons
            }
            for name in sorted({e.category or "" for e in episodes})
            if name
        },
        **figures,
        "turns": report.turns,
        "tokens": report.tokens,
        "invalid_actions": report.invalid_actions,
        "episodes": report.episodes,
        "lost": report.lost,
    }


def played(
    policy: Policy, runner: RolloutRunner, split: str, horizon: int, samples: int, config: RLConfig
) -> tuple[Any, list[Trajectory]]:
    """(report, episodes) of a policy; all cells of a seed have the same starts and draws."""
    return evaluate(
        runner,
        policy.actors(config.eval.temperature),
        split=split,
        horizon=horizon,
        samples=samples,
        seed=config.seed,
        per_category=config.eval.per_category or None,
        instruction=policy.instruction,
    )


def within(episodes: Sequence[Trajectory], horizon: int) -> list[float]:
    """Whether each episode succeeded within so many turns.

    A policy does not know the horizon, so that an episode's first turns are the same under any.
    """
    return [float(e.success and len(e.turns) <= horizon) for e in episodes]


def by_task(episodes: Sequence[Trajectory], horizon: int) -> dict[str, float]:
    """The share of each task's episodes that succeeded within so many turns."""
    values: dict[str, list[float]] = {}
    for episode, solved in zip(episodes, within(episodes, horizon), strict=True):
        values.setdefault(episode.task, []).append(solved)
    return {task: fmean(solved) for task, solved in values.items()}


def _spread(episodes: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """At most so many episodes as are scored, spread over all tasks."""
    return episodes[:: -(-len(episodes) // _SCORED_EPISODES)]


@torch.no_grad()
def token_figures(model: Any, start: str, episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Mean entropy, and KL divergence from the start policy, of the sampled tokens, in nats."""
    reference, tokenizer = load_policy(start, "float32")
    rows = [row for episode in episodes for row in episode.rows]
    sums = torch.zeros(3, dtype=torch.float64)
    model.eval()
    reference.eval()
    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        ids, mask = padded(part, tokenizer.pad_token_id)  # (R, T)
        attention = (torch.arange(ids.shape[1]) < _lengths(part).unsqueeze(1)).long()  # (R, T)
        own, other = (
            torch.log_softmax(m(ids, attention_mask=attention).logits[:, :-1].double(), -1)
            for m in (model, reference)
        )  # (R, T - 1, V)
        chosen = mask[:, 1:]  # (R, T - 1)
        probabilities = own.exp()  # (R, T - 1, V)
        sums[0] += -(probabilities * own).sum(-1)[chosen].sum()
        sums[1] += (probabilities * (own - other)).sum(-1)[chosen].sum()
        sums[2] += chosen.sum()
    entropy, kl = (sums[:2] / sums[2]).tolist()
    return {"entropy": entropy, "kl": kl}


def padded(rows: Sequence[Any], pad_id: int) -> tuple[Tensor, Tensor]:
    """(R, T) ids padded on the right, and (R, T) whether the policy sampled each."""
    longest = int(_lengths(rows).max())
    ids = torch.full((len(rows), longest), pad_id)  # (R, T)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)  # (R, T)
    for number, row in enumerate(rows):
        prompt, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        ids[number, :end] = torch.tensor([*row.prompt_ids, *row.completion_ids])
        mask[number, prompt:end] = torch.tensor(row.loss_mask) > 0
    return ids, mask


def _lengths(rows: Sequence[Any]) -> Tensor:
    return torch.tensor([len(row.prompt_ids) + len(row.completion_ids) for row in rows])
