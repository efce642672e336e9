"""Audits a model or a run: loads it and applies all rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec
from transformers.trainer_utils import get_last_checkpoint

from agentgym_env.errors import AgentGymError, ConfigError
from agentgym_env.registry import env_class
from agentgym_env.run_store import RunStore, each_line, readable_files
from agentgym_env.token_store import StoredTokens, unpack_tokens
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import require_trust
from agentgym_train.audit import model_rules, stored_rules, template_rules
from agentgym_train.audit.rules import RuleResult, check_rule
from agentgym_train.audit.subject import AuditedModel, StoredRun
from agentgym_train.config.files import local_path
from agentgym_train.config.policy import AuditSettings, PolicyConfig
from agentgym_train.config.read import config_from, stored_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trust import names_in_envs, names_in_run
from agentgym_train.models.folders import is_model
from agentgym_train.models.loading import load_policy
from agentgym_train.rollout.agent import format_of

RULES: Final[Mapping[str, Callable[[AuditedModel], RuleResult]]] = {
    **template_rules.RULES,
    **model_rules.RULES,
    "stored episodes": stored_rules.stored_episodes,
}
"""Name -> rule, in their order."""

_NEWEST: Final = 256
"""Training episodes whose tokens are checked: the last ones."""

_SCORING: Final = frozenset({"tf32"})
"""TRL's settings that affect log-probabilities."""

_IMPORTED: Final = ("env", "agent", "horizon")
"""The settings of a run that refer to code which an audit imports."""


def audit(subject: AuditedModel) -> Iterator[RuleResult]:
    """Apply all rules; yields each finding when it is available."""
    for name, rule in RULES.items():
        yield check_rule(name, rule, subject)


def subject_of(
    run_or_model: str, dtype: str, changes: dict[str, Any], *, trusted: bool = False
) -> AuditedModel:
    """Load the subject of an audit from a run's folder, a model's folder or a hub id.

    `changes` are fields of `AuditSettings` set by the user; the others come from the run. The code
    that a run refers to is imported only if it is trusted. Raises `ConfigError`.
    """
    path = local_path(run_or_model)
    if (path / "run.json").is_file():
        return _subject_of_run(path, dtype, changes, trusted)
    if path.is_dir() and not is_model(path):
        raise ConfigError(
            f"{run_or_model} contains neither a run (run.json) nor a model (config.json)"
        )
    model, tokenizer = load_policy(run_or_model, dtype)
    return AuditedModel(run_or_model, model, tokenizer, replace(AuditSettings(), **changes))


def _subject_of_run(path: Path, dtype: str, changes: dict[str, Any], trusted: bool) -> AuditedModel:
    store = RunStore.open(path)
    facts = store.read_json("run.json") or {}
    values = facts.get("config")
    if not isinstance(values, dict) or "model" not in values:
        raise ConfigError(f"{path} is not a training run: its run.json has no config with a model")
    if values.get("method", "rl") != "rl":
        raise ConfigError(
            f"{path} is a run of method {values['method']}, which does not train on the tokens "
            f"that were sampled; audit its model: agentgym audit {path}/model"
        )
    # Check this first: creating the config imports the agent.
    names = names_in_run(values, _IMPORTED) | names_in_envs(values.get("envs"), ["env"])
    agent = values.get("agent")
    if (agent.get("type") if isinstance(agent, Mapping) else agent) == "external":
        # An audit opens no gateway to it.
        names = {name: v for name, v in names.items() if name.partition(".")[0] != "agent"}
    require_trust(f"{path}/run.json", names, trusted=trusted)
    config = stored_config(path, values, config_from)
    source = _weights(store, config)
    trajectories = _trajectories(store)
    values = {
        **{f.name: getattr(config, f.name) for f in fields(PolicyConfig)},
        "instruction": _instruction(config, trajectories),
        "action_format": config.form.name,
        "agent": "plain",
        "seed": config.seed,
        "trainer_args": {k: v for k, v in config.trainer_args.items() if k in _SCORING},
    }
    model, tokenizer = load_policy(source, dtype)
    settings = replace(AuditSettings(), **{**values, **changes})
    return AuditedModel(source, model, tokenizer, settings, stored=StoredRun(config, trajectories))


def _weights(store: RunStore, config: RLConfig) -> str:
    """The location of the run's newest weights."""
    if is_model(store.path / "model"):
        return str(store.path / "model")
    last = get_last_checkpoint(str(store.checkpoints)) if store.checkpoints.is_dir() else None
    return last or config.model


def _trajectories(store: RunStore) -> dict[str, Sequence[Trajectory]]:
    """The episodes of every file; raises `ConfigError` for an invalid line."""
    found: dict[str, Sequence[Trajectory]] = {}
    files, ignored = readable_files(store.path, "trajectories")
    if ignored:
        raise ConfigError(f"{store.path}: {ignored[0]}")
    for file in files:
        found[file.stem], broken = store.trajectories(file.stem)
        if broken:
            raise ConfigError(
                f"{file}, line {broken[0].line} is invalid ({broken[0].reason}); remove it"
            )
    for file in readable_files(store.path, "tokens")[0]:
        if file.stem in found:
            found[file.stem] = _with_tokens(store, file, found[file.stem])
    return found


def _with_tokens(store: RunStore, file: Path, episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Training episodes with their tokens, which a file of their own keeps of some of them."""
    rows = (row for _, row in each_line(file, StoredTokens) if isinstance(row, StoredTokens))
    newest = deque((row for row in rows if row.packed), maxlen=_NEWEST)
    kept = {row.episode: unpack_tokens(row.packed)[0] for row in newest}
    with (store.path / "trajectories" / file.name).open("rb") as read:
        lines = read.readlines()
    starts = accumulate((len(line) for line in lines), initial=0)
    of_episodes = [
        kept.get(at, []) for at, line in zip(starts, lines, strict=False) if line.strip()
    ]
    return [
        msgspec.structs.replace(episode, tokens=rows[0], further_rows=rows[1:]) if rows else episode
        for episode, rows in zip(episodes, of_episodes, strict=True)
    ]


def _instruction(config: RLConfig, trajectories: dict[str, Sequence[Trajectory]]) -> str:
    """The instruction of the run's policy, without the instructions of the action format."""
    if config.instruction is not None:
        return config.instruction
    try:
        world = config.worlds[0]
        return env_class(world.env).instruction if world.instruction is None else world.instruction
    except AgentGymError:
        played = next((t for episodes in trajectories.values() for t in episodes), None)
        if played is None:
            raise
        added = format_of(config.agent, config.action_format).instructions
        return played.instruction.removesuffix(added).rstrip("\n") if added else played.instruction
