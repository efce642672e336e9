"""Audits a model or a run: loads it, and applies every rule to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from transformers.trainer_utils import get_last_checkpoint

from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_env.registration import env_class
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import names_in, require_trust
from agentgym_train.agents import format_of
from agentgym_train.audit import number_rules, stored_rules, template_rules, token_rules
from agentgym_train.audit.findings import Finding, Rule, apply
from agentgym_train.audit.settings import Settings
from agentgym_train.audit.subject import Stored, Subject
from agentgym_train.config import TrainConfig, config_from
from agentgym_train.model_folders import is_model
from agentgym_train.models import load_policy

RULES: Final[Sequence[Rule[Subject]]] = [
    *template_rules.RULES,
    *token_rules.RULES,
    *number_rules.RULES,
    *stored_rules.RULES,
]
_SCORING: Final = frozenset(
    {"bf16", "fp16", "tf32", "cast_lm_head_to_fp32", "mask_truncated_completions"}
    | {"pad_to_multiple_of", "disable_dropout"}
)
"""TRL's settings on which masks and log-probabilities depend."""

_IMPORTED: Final = ("env", "agent")
"""The settings of a run that name code which an audit imports."""


def audit(subject: Subject) -> Iterator[Finding]:
    """Apply every rule; a finding as each is done."""
    for rule in RULES:
        yield apply(rule, subject)


def subject_of(
    run_or_model: str, dtype: str, changes: dict[str, Any], *, trusted: bool = False
) -> Subject:
    """What is named by a run's folder, a model's folder or a hub id; raises `BadRequest`.

    `changes` are fields of `Settings` that the user set; a run brings its own for the others. The
    code that a run names is imported only if it is trusted.
    """
    path = Path(run_or_model).expanduser()
    if (path / "run.json").is_file():
        return _subject_of_run(path, dtype, changes, trusted)
    if path.is_dir() and not is_model(path):
        raise BadRequest(f"{run_or_model} holds neither a run (run.json) nor a model (config.json)")
    model, tokenizer = load_policy(run_or_model, dtype)
    return Subject(run_or_model, model, tokenizer, replace(Settings(), **changes))


def _subject_of_run(path: Path, dtype: str, changes: dict[str, Any], trusted: bool) -> Subject:
    store = RunStore.open(path)
    facts = store.read_json("run.json") or {}
    values = facts.get("config")
    if not isinstance(values, dict) or "model" not in values:
        raise BadRequest(f"{path} is no training run: its run.json has no config with a model")
    # Before it becomes a config, which imports the agent.
    require_trust(f"{path}/run.json", names_in(values, _IMPORTED), trusted=trusted)
    config = config_from(values)
    source, version = _weights(store, config)
    trajectories = _trajectories(store)
    told = _instruction(config, trajectories)
    values = {
        "temperature": config.temperature,
        "instruction": told,
        "action_format": format_of(config.agent, config.action_format).name,
        "keep_reasoning": config.keep_reasoning,
        "turn_max_tokens": config.turn_max_tokens,
        "max_tokens": config.max_tokens,
        "seed": config.seed,
        "trl": {key: value for key, value in config.trl.items() if key in _SCORING},
    }
    model, tokenizer = load_policy(source, dtype)
    return Subject(
        source,
        model,
        tokenizer,
        replace(Settings(), **{**values, **changes}),
        stored=Stored(config, trajectories, version),
    )


def _weights(store: RunStore, config: TrainConfig) -> tuple[str, int | None]:
    """(where the run's newest weights are, their version)."""
    final = store.path / "model"
    if is_model(final):
        return str(final), config.steps
    last = get_last_checkpoint(str(store.checkpoints)) if store.checkpoints.is_dir() else None
    if last is not None:
        number = re.search(r"\d+$", last)
        return last, int(number[0]) if number else None
    return config.model, 0


def _trajectories(store: RunStore) -> dict[str, Sequence[Trajectory]]:
    """Every file's episodes; raises `BadRequest` at a line that cannot be read."""
    found: dict[str, Sequence[Trajectory]] = {}
    for file in sorted((store.path / "trajectories").glob("*.jsonl")):
        found[file.stem], broken = store.trajectories(file.stem)
        if broken:
            raise BadRequest(
                f"{file}, line {broken[0].line} cannot be read ({broken[0].reason}); take it out"
            )
    return found


def _instruction(config: TrainConfig, trajectories: dict[str, Sequence[Trajectory]]) -> str:
    """What the run's policy was told, without the action format's own instructions."""
    if config.instruction is not None:
        return config.instruction
    try:
        return env_class(config.env).instruction
    except AgentGymError:
        played = next((t for episodes in trajectories.values() for t in episodes), None)
        if played is None:
            raise
        told = format_of(config.agent, config.action_format).instructions
        return played.instruction.removesuffix(told).rstrip("\n") if told else played.instruction
