"""The training methods: what starts and resumes a run of each, and the parts that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from transformers import TrainerCallback

from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.data.datasets import SFTDataset, warnings_of_shown_tasks
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.progress import RolloutBar
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.runs import agent_evol
from agentgym_train.runs import run as runs
from agentgym_train.runs.run import MakeTrainer, Method, Notify
from agentgym_train.runs.summary import Panel, last_words, learning_summary, panels_of, summary
from agentgym_train.runs.turn_limit import with_turn_limit
from agentgym_train.training.callbacks import Shown
from agentgym_train.training.checkpoints import CheckpointMarker, HorizonState
from agentgym_train.training.dpo import AgentDPOTrainer, DPODataset, check_dpo
from agentgym_train.training.rl import RLTrainer, check_rl
from agentgym_train.training.sft import AgentSFTTrainer, check_sft
from agentgym_train.training.step_metrics import StepMetrics


def method_of(config: RunConfig) -> Method:
    """The parts of a run that depend on the method; AgentEvol's are those of its fine-tuning."""
    return METHODS[config.method]


def run(
    config: RunConfig,
    console: Console,
    worlds: Worlds,
    processes: int = 1,
    *,
    resumes: bool = False,
) -> int:
    """Start a run, or resume an interrupted one where it stopped. Returns the exit status.

    A new run moves an earlier run in its folder aside.
    """
    if not config.turn_max_tokens:
        config = with_turn_limit(config)
        console.print(f"turn_max_tokens is {config.turn_max_tokens}.")
    if isinstance(config, AgentEvolConfig):
        return agent_evol.run_agent_evol(_SFT, config, console, worlds, processes, resumes=resumes)
    return runs.run_method(method_of(config), config, console, worlds, processes, resumes=resumes)


def _prepare_rl(policy: Policy, config: RLConfig, worlds: Worlds, notify: Notify) -> MakeTrainer:
    is_inherited = type(policy.engine).keep_own_weights is GenerationEngine.keep_own_weights
    if config.max_policy_age and is_inherited:
        policy.engine.keep_own_weights()  # raises, before an earlier run is moved
    return partial(RLTrainer, policy, config, worlds)


def _callbacks_rl(
    trainer: Any, checkpoint: str | None, progress: Progress
) -> list[TrainerCallback]:
    if trainer.is_world_process_zero():
        limits = trainer.step_worlds[0].runner.concurrency_limits  # of all environments
        trainer.rollouts.bar = RolloutBar(progress, limits)
    horizons = {world.env: world.horizon for world in trainer.step_worlds}
    trainer.step_state.checkpoint = checkpoint
    return [HorizonState(horizons, checkpoint, progress.console.print)]


def _text_rl(row: StepMetrics) -> str:
    """The figures of a step beside the progress bar; "-" where all its episodes were lost."""
    shown = [("reward", ".2f"), ("success", ".2f"), ("horizon", ".0f"), ("turns", ".1f")]
    if row.get("cut_turns"):
        shown.append(("cut_turns", ".0%"))
    values = ((name, row[name], form) for name, form in shown)
    return "  ".join(
        f"{name} -" if value is None else f"{name} {value:{form}}" for name, value, form in values
    )


def _prepare_rows(dataset: Any, trainer: Any) -> Callable[..., MakeTrainer]:
    """The `Method.prepare` of a method that reads all of its rows before it trains."""

    def prepare(
        policy: Policy, config: SFTConfig | DPOConfig, worlds: Worlds, notify: Notify
    ) -> MakeTrainer:
        data = dataset.read(config, policy.tokenizer)
        messages = data.sentences()
        for world, runner in zip(config.worlds, worlds, strict=True):
            messages += warnings_of_shown_tasks(
                runner.tasks, world.eval.split, runner.env_id, data.episodes
            )
        for message in messages:
            notify(message)
        return lambda store: trainer(
            policy.model, policy.tokenizer, data.rows, config, store.checkpoints
        )

    return prepare


def _callbacks_of_rows(
    trainer: Any, checkpoint: str | None, progress: Progress
) -> list[TrainerCallback]:
    """Marks checkpoints as complete."""
    return [CheckpointMarker()]


def _text_sft(row: StepMetrics) -> str:
    return f"loss {row['loss']:.3f}  token accuracy {row['mean_token_accuracy']:.2f}"


def _text_dpo(row: StepMetrics) -> str:
    return (
        f"loss {row['loss']:.3f}  correct pairs {row['rewards/accuracies']:.2f}  "
        f"margin {row['rewards/margins']:.2f}"
    )


_RL: Final = Method(
    name="RL",
    check=check_rl,
    prepare=_prepare_rl,
    callbacks=_callbacks_rl,
    shown=Shown(named_by="success", text=_text_rl),
    summary=summary,
    panels=panels_of,
    last_words=last_words,
)

_SFT: Final = Method(
    name="SFT",
    check=check_sft,
    prepare=_prepare_rows(SFTDataset, AgentSFTTrainer),
    callbacks=_callbacks_of_rows,
    shown=Shown(named_by="mean_token_accuracy", text=_text_sft),
    summary=learning_summary,
    panels=lambda rows: [
        Panel("loss", {"loss": "loss"}),
        Panel("token accuracy", {"mean_token_accuracy": "token accuracy"}),
    ],
)

_DPO: Final = Method(
    name="DPO",
    check=check_dpo,
    prepare=_prepare_rows(DPODataset, AgentDPOTrainer),
    callbacks=_callbacks_of_rows,
    shown=Shown(named_by="rewards/accuracies", text=_text_dpo),
    summary=learning_summary,
    panels=lambda rows: [
        Panel("loss", {"loss": "loss"}),
        Panel("correctly ranked pairs", {"rewards/accuracies": "pairs"}, is_share=True),
        Panel("margin", {"rewards/margins": "margin"}),
    ],
)

METHODS: Final[Mapping[str, Method]] = {"rl": _RL, "sft": _SFT, "dpo": _DPO, "evolve": _SFT}
