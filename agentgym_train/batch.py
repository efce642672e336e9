"""Trajectories as tensors: what the algorithms see, and what TRL's rollout hook returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agentgym_env.failures import teaches
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.algorithms.base import TokenBatch


def tokens_of(trajectory: Trajectory, filler_id: int) -> Tokens:
    """The episode's tokens; for one without any, a single token that nothing is learned from."""
    tokens = trajectory.tokens
    if tokens is None or not tokens.completion_ids or not teaches(trajectory.outcome):
        return Tokens([filler_id], [filler_id], [0], [0.0], [-1], [])
    return tokens


def rollout_output(trajectories: Sequence[Trajectory], filler_id: int) -> dict[str, list[Any]]:
    """B episodes as TRL's `rollout_func` gives them; `env_mask` is the loss mask.

    A lost episode's reward is None, which TRL leaves out of what it logs.
    """
    rows = [tokens_of(trajectory, filler_id) for trajectory in trajectories]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "env_mask": [row.loss_mask for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "trajectory_reward": [t.reward if teaches(t.outcome) else None for t in trajectories],
    }


def token_batch(
    trajectories: Sequence[Trajectory], group_size: int, width: int, filler_id: int
) -> TokenBatch:
    """B episodes padded to `width` completion tokens, as the algorithms see them."""
    rows = [tokens_of(trajectory, filler_id) for trajectory in trajectories]
    turns = max(1, *(len(row.turn_ends) for row in rows))
    mask = torch.zeros(len(rows), width)  # (B, T)
    rewards = torch.zeros(len(rows), turns)  # (B, K)
    ends = torch.zeros(len(rows), turns, dtype=torch.long)  # (B, K)
    for i, (row, trajectory) in enumerate(zip(rows, trajectories, strict=True)):
        mask[i, : len(row.loss_mask)] = torch.tensor(row.loss_mask, dtype=torch.float)
        played = len(row.turn_ends)
        ends[i, :played] = torch.tensor(row.turn_ends, dtype=torch.long)
        rewards[i, :played] = torch.tensor([turn.reward for turn in trajectory.turns[:played]])
    return TokenBatch(
        loss_mask=mask,
        rewards=rewards,
        turn_ends=ends,
        teaches=torch.tensor([teaches(t.outcome) for t in trajectories]),
        group_size=group_size,
    )
