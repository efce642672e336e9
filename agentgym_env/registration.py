"""Registers environments by their ids, in this library and in Gymnasium."""

from __future__ import annotations

import logging

import gymnasium
from gymnasium.envs.registration import ENV_ID_RE

from agentgym_env.entry_points import ENVIRONMENTS, plugins, split_name
from agentgym_env.errors import BadRequest
from agentgym_env.registry import EnvEntry, entries, entry_of

logger = logging.getLogger(__name__)


def register(
    env_id: str, entry_point: str, *, extra: str | None = None, max_episode_steps: int | None = None
) -> None:
    """Register an environment by its id, in this library and in Gymnasium.

    `entry_point` is `module:Class`. The module must be importable in another process too, since
    the local server runs in one.
    """
    _add(EnvEntry(env_id, entry_point, extra, max_episode_steps))


def register_all() -> None:
    """Register the environments of all installed distributions."""
    for point in plugins(ENVIRONMENTS):
        _register_entry(entry_of(point))


def _add(entry: EnvEntry) -> None:
    if not ENV_ID_RE.fullmatch(entry.env_id):
        raise BadRequest(
            f"an environment id must look like namespace/Name-v0, got {entry.env_id!r}"
        )
    split_name(entry.entry_point)
    entries[entry.env_id] = entry
    gymnasium.register(
        id=entry.env_id,
        entry_point="agentgym_env.remote:make_env",
        vector_entry_point="agentgym_env.vector:RemoteVectorEnv",
        max_episode_steps=entry.max_episode_steps,
        kwargs={"env_id": entry.env_id},
    )


def _register_entry(entry: EnvEntry) -> None:
    if entry.env_id in entries:
        if entries[entry.env_id].entry_point != entry.entry_point:
            logger.warning("two environments have the id %s; the first one is used", entry.env_id)
        return
    try:
        _add(entry)
    except BadRequest as error:
        # A broken entry point of another distribution must not break this import.
        logger.warning("environment %s is not registered: %s", entry.env_id, error)
