"""Trajectories as tensors: what the algorithms see, and what TRL's rollout hook returns."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentgym_env.failures import TEACHES, teaches
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.algorithms.base import TokenBatch
from agentgym_train.outcomes import TRUNCATED


def tokens_of(trajectory: Trajectory, filler_id: int, trained: frozenset[str] = TEACHES) -> Tokens:
    """The episode's tokens; a single token that nothing is learned from if none of them train."""
    tokens = trajectory.tokens
    if tokens is None or not tokens.completion_ids or trajectory.outcome not in trained:
        return Tokens([filler_id], [filler_id], [0], [0.0], [-1], [])
    return tokens


def rollout_output(
    trajectories: Sequence[Trajectory], filler_id: int, trained: frozenset[str] = TEACHES
) -> dict[str, list[Any]]:
    """B episodes as TRL's `rollout_func` gives them; `env_mask` is the loss mask.

    A lost episode's reward is None, which TRL leaves out of what it logs. One that merely does not
    train (see `trained_outcomes`) is logged like the others.
    """
    rows = [tokens_of(trajectory, filler_id, trained) for trajectory in trajectories]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "env_mask": [row.loss_mask for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "trajectory_reward": [t.reward if teaches(t.outcome) else None for t in trajectories],
    }


def token_batch(
    trajectories: Sequence[Trajectory],
    group_size: int,
    width: int,
    filler_id: int,
    trained: frozenset[str] = TEACHES,
) -> TokenBatch:
    """B episodes padded to `width` completion tokens, as the algorithms see them.

    Only those whose outcome is in `trained` teach; the others have no tokens and no turns.
    """
    rows = [tokens_of(trajectory, filler_id, trained) for trajectory in trajectories]
    teaching = [t.outcome in trained for t in trajectories]
    turns = [t.turns if known else [] for t, known in zip(trajectories, teaching, strict=True)]
    return TokenBatch(
        loss_mask=_padded([row.loss_mask for row in rows], 0.0, width),
        rewards=_padded([[turn.reward for turn in played] for played in turns], 0.0),
        turn_ends=_padded([_ends(row, len(p)) for row, p in zip(rows, turns, strict=True)], 0),
        teaches=torch.tensor(teaching),
        group_size=group_size,
        states=_padded([_states(t, len(p)) for t, p in zip(trajectories, turns, strict=True)], -1),
        truncated=torch.tensor([t.outcome in TRUNCATED for t in trajectories]),
        logprobs=_padded([row.logprobs for row in rows], 0.0, width),
    )


def _padded(rows: Sequence[Sequence[float]], fill: float, width: int = 0) -> Tensor:
    """(B, width) or (B, K) with K the longest row, at least 1; float32 or int64 as `fill` is."""
    width = width or max(1, *(len(row) for row in rows))
    kind = torch.float32 if isinstance(fill, float) else torch.int64
    padded = torch.full((len(rows), width), fill, dtype=kind)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=kind)
    return padded


def _ends(row: Tokens, turns: int) -> list[int]:
    """(K,) the turn's ends; a turn without tokens ends where the one before it does."""
    ends = row.turn_ends[:turns]
    return ends + [ends[-1] if ends else 0] * (turns - len(ends))


def _states(trajectory: Trajectory, turns: int) -> list[int]:
    """(K,) 63-bit ids of the observations the turns answer, the same in every process."""
    answered = [trajectory.observation, *(turn.observation for turn in trajectory.turns)]
    texts = (text.encode("utf-8", "surrogatepass") for text in answered[:turns])
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return [int.from_bytes(digest, "big") >> 1 for digest in digests]
