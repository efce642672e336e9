"""One run of a comparison: trained by the product's own road, evaluated, kept, never run twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState

from agentgym_env.run_store import RunStore, run_metadata
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation.play import evaluate
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.progress import progress_bar
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs import methods
from agentgym_train.runs.stored import resumed_config
from agentgym_train.training.callbacks import Metrics
from agentgym_train.training.rl import RLTrainer

RESULT = "result.json"
_SILENT = Console(quiet=True)


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of a comparison, with one seed."""

    name: str
    config: RLConfig
    env_steps: int = 0
    """End after the optimizer step that reaches so many environment steps; 0 takes all steps."""

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return Path(self.config.output_dir)

    @property
    def wanted(self) -> dict[str, Any]:
        """What a kept result has to be of."""
        return {"config": self.config.as_dict(), "env_steps": self.env_steps}

    def result(self) -> dict[str, Any] | None:
        """The figures of this very run, if it is done."""
        kept = RunStore(self.path).read_json(RESULT)
        return kept if kept is not None and kept["wanted"] == self.wanted else None

    def steps_done(self) -> tuple[int, float]:
        """Optimizer steps so far, or environment steps where those are counted; the last reward."""
        rows, _ = RunStore(self.path).metrics()
        if not rows:
            return 0, 0.0
        done = sum(row["env_steps"] for row in rows) if self.env_steps else len(rows)
        return min(int(done), self.size), rows[-1]["reward"]

    @property
    def size(self) -> int:
        """How much `steps_done` will be."""
        return self.env_steps or self.config.steps


def play(arm: Arm, worlds: Worlds) -> dict[str, Any] | None:
    """Train an arm, evaluate it and keep the figures; None if Ctrl-C stopped it."""
    trained = train_to_budget if arm.env_steps else train
    if not trained(arm, worlds):
        return None
    store = RunStore.open(arm.path)
    rows, _ = store.metrics()
    report = final_evaluation(arm, worlds)
    store.write_json(
        RESULT,
        {
            "arm": arm.name,
            "seed": arm.config.seed,
            "success": report["success"],
            "episodes": report["episodes"],
            "lost": report["lost"] + int(sum(row["lost"] for row in rows)),
            "steps": len(rows),
            "env_steps": int(sum(row["env_steps"] for row in rows)),
            "train_seconds": round(sum(row["seconds"] for row in rows), 1),
            "rewards": [row["reward"] for row in rows],
            "evaluation": report,
            "wanted": arm.wanted,
        },
    )
    return store.read_json(RESULT)


def train(arm: Arm, worlds: Worlds) -> bool:
    """What `agentgym train` does, from the last checkpoint if there is one."""
    store = RunStore(arm.path)
    begun = store.read_json("run.json") is not None
    if not begun or resumed_config(arm.path, trusted=True) != arm.config:
        return methods.run(arm.config, _SILENT, worlds) == 0
    if store.read_json("summary.json") is not None:
        return True
    return methods.run(arm.config, _SILENT, worlds, resumes=True) == 0


class StopAtBudget(TrainerCallback):
    """Ends a run after the optimizer step that reaches a number of environment steps."""

    def __init__(self, env_steps: int) -> None:
        self._left: float = env_steps

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Count what the step has used."""
        self._left -= (logs or {}).get("env_steps", 0)
        if self._left <= 0:
            control.should_training_stop = True


def train_to_budget(arm: Arm, worlds: Worlds) -> bool:
    """Train until the environment steps are used up; an unfinished run starts anew."""
    config = arm.config
    store = RunStore.create(arm.path, run_metadata(config.as_dict()))
    trainer = RLTrainer(policy_of(config, config.model), config, worlds, store)
    trainer.remove_callback(PrinterCallback)
    with progress_bar(_SILENT) as progress:
        trainer.add_callback(Metrics(store, progress, methods.method_of(config).shown))
        trainer.add_callback(StopAtBudget(arm.env_steps))
        trainer.train()
    trainer.save_model(str(store.path / "model"))
    return True


def final_evaluation(arm: Arm, worlds: Worlds, model: str | None = None) -> dict[str, Any]:
    """What `agentgym eval --seed SEED` finds: every run draws its own evaluation episodes.

    It is of the run's own model, or another.
    """
    config = arm.config
    policy = policy_of(config, model or str(arm.path / "model"))
    (rollout_runner,) = worlds
    report, _ = evaluate(
        rollout_runner,
        policy.actors(config.eval.temperature),
        split=config.eval.split,
        horizon=config.worlds[0].eval.horizon,
        samples=config.eval.samples,
        seed=config.seed,
        instruction=policy.instruction,
    )
    return report.as_dict()


def policy_of(config: RLConfig, model: str) -> Any:
    """A model under the config's way of talking to it."""
    return make_policy(replace(config, model=model))


class Watched(AbstractContextManager["Watched"]):
    """Moves a bar along with the metrics that a run in this process writes."""

    def __init__(self, arm: Arm, advance: Callable[[int, str], None]) -> None:
        self._arm = arm
        self._advance = advance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            done, reward = self._arm.steps_done()
            self._advance(done, f"{self._arm.path.name}  reward {reward:.2f}")
