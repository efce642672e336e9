"""Turns trajectories into tensors, for algorithms and for TRL."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agentgym_env.errors import TEACHES, teaches
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.algorithms.base import TokenBatch
from agentgym_train.config.episodes import TRUNCATED
from agentgym_train.training.rows import TokenRows


@dataclass(frozen=True, slots=True)
class Rows:
    """R rows of B episodes: the first row of each, then further rows.

    A row is one context of an episode. An episode without context resets has one row.
    """

    tokens: list[Tokens]
    """(R,)"""
    owner: list[int]
    """(R,) index of the row's episode."""
    offset: list[int]
    """(R,) number of the episode's completion tokens in earlier rows."""
    episodes: int
    """B."""
    minibatch: list[int]
    """(R,) number of the row's mini-batch."""

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        pad_id: int,
        trained: frozenset[str] = TEACHES,
        minibatches: int = 1,
    ) -> Rows:
        """The rows of episodes. Each mini-batch has the same number of episodes, in their order."""
        each = [rows_of_episode(t, pad_id, trained) for t in trajectories]
        tokens, owner, offset = [rows[0] for rows in each], list(range(len(each))), [0] * len(each)
        for number, (first, *further) in enumerate(each):
            before = len(first.completion_ids)
            for row in further:
                tokens.append(row)
                owner.append(number)
                offset.append(before)
                before += len(row.completion_ids)
        numbers = [minibatch_of(number, len(each), minibatches) for number in owner]
        return cls(tokens, owner, offset, len(each), numbers)

    def to_train(self, device: torch.device) -> TokenRows:
        """The (R, W) tokens, without weights and advantages."""
        ids = [row.prompt_ids + row.completion_ids for row in self.tokens]
        masks = [[0] * len(row.prompt_ids) + row.loss_mask for row in self.tokens]
        return TokenRows.from_lists(ids, masks, device)

    @property
    def width(self) -> int:
        """V: completion tokens of the longest episode."""
        return max(end for _, _, end, _ in self._spans())

    def to_episodes(self, values: Tensor) -> Tensor:
        """Convert (R, W) values to (B, V), 0 past the end."""
        found = values.new_zeros(self.episodes, self.width)  # (B, V)
        for row, (owner, start, end, first) in enumerate(self._spans()):
            found[owner, start:end] = values[row, first : first + end - start]
        return found

    def to_rows(self, values: Tensor, like: Tensor) -> Tensor:
        """Convert (B, V) values to (R, W), the shape and device of `like`; 0 at other tokens."""
        found = values.new_zeros(like.shape)  # (R, W)
        for row, (owner, start, end, first) in enumerate(self._spans()):
            found[row, first : first + end - start] = values[owner, start:end]
        return found.to(like.device)

    def of_minibatch(self, number: int) -> list[int]:
        """The rows of a mini-batch."""
        return [row for row, own in enumerate(self.minibatch) if own == number]

    def episode_tokens(self) -> Tensor:
        """(R,) int64 number of trained tokens of the row's episode."""
        counts = torch.tensor([sum(row.loss_mask) for row in self.tokens])  # (R,)
        owners = torch.tensor(self.owner)  # (R,)
        return torch.zeros_like(counts).index_add(0, owners, counts)[owners]  # (R,)

    def _spans(self) -> list[tuple[int, int, int, int]]:
        """(R,) owner, start and end of a row's completion in its episode, and its first column."""
        return [
            (owner, start, start + len(row.completion_ids), len(row.prompt_ids))
            for owner, start, row in zip(self.owner, self.offset, self.tokens, strict=True)
        ]


def minibatch_of(episode: int, episodes: int, minibatches: int) -> int:
    """The mini-batch of an episode: as many consecutive episodes in each."""
    return episode * minibatches // episodes


def rows_of_episode(
    trajectory: Trajectory, pad_id: int, trained: frozenset[str] = TEACHES
) -> list[Tokens]:
    """The episode's rows; one untrained row if the episode is not trained on."""
    rows = [row for row in trajectory.rows if row.completion_ids]
    if not rows or trajectory.outcome not in trained:
        return [untrained_row(pad_id)]
    return rows


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """The soft penalty on long episodes of DAPO (arXiv:2503.14476), subtracted from the return.

    0 up to `limit` - `zone` tokens of the longest context, then linear to 1 at `limit`.
    """

    limit: int
    zone: int
    """0 for no penalty."""

    def __call__(self, trajectory: Trajectory) -> float:
        """The penalty of an episode, from 0 to 1."""
        if not self.zone:
            return 0.0
        longest = trajectory.longest_context
        return min(1.0, max(0.0, (longest - self.limit + self.zone) / self.zone))

    def shaped_return(self, trajectory: Trajectory) -> float:
        """The return that algorithms see."""
        return trajectory.reward - self(trajectory)


def joined_tokens(rows: Sequence[Tokens]) -> Tokens:
    """Concatenate the rows of an episode, keeping only the prompt of the first."""
    if len(rows) == 1:
        return rows[0]
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.completion_ids))

    def chained(name: str) -> list[int]:
        return list(chain.from_iterable(getattr(row, name) for row in rows))

    return Tokens(
        prompt_ids=rows[0].prompt_ids,
        completion_ids=chained("completion_ids"),
        loss_mask=chained("loss_mask"),
        logprobs=list(chain.from_iterable(row.logprobs for row in rows)),
        versions=chained("versions"),
        turn_ends=[s + end for s, row in zip(starts, rows, strict=False) for end in row.turn_ends],
    )


def untrained_row(pad_id: int) -> Tokens:
    """A row of one completion token, which is not trained."""
    return Tokens([pad_id], [pad_id], [0], [0.0], [-1], [])


def rollout_output(
    trajectories: Sequence[Trajectory],
    pad_id: int,
    trained: frozenset[str] = TEACHES,
) -> dict[str, list[Any]]:
    """B episodes as TRL's `rollout_func` returns them, one item per row; `env_mask` is `loss_mask`.

    The first row of an episode has its reward. Further rows and lost episodes have None, which TRL
    excludes from its logs. Episodes that are only excluded from training (see `trained_outcomes`)
    are logged.
    """
    rows = Rows.from_trajectories(trajectories, pad_id, trained)
    rewards = [t.reward if teaches(t.outcome) else None for t in trajectories]
    return {
        "prompt_ids": [row.prompt_ids for row in rows.tokens],
        "completion_ids": [row.completion_ids for row in rows.tokens],
        "env_mask": [row.loss_mask for row in rows.tokens],
        "logprobs": [row.logprobs for row in rows.tokens],
        "trajectory_reward": [*rewards, *[None] * (len(rows.tokens) - len(rewards))],
    }


def token_batch(
    trajectories: Sequence[Trajectory],
    group_size: int,
    width: int,
    pad_id: int,
    trained: frozenset[str] = TEACHES,
    overlong: OverlongPenalty | None = None,
    envs: Sequence[int] | None = None,
) -> TokenBatch:
    """B episodes, each with all its rows joined and padded to `width`, as input of an algorithm.

    Only episodes whose outcome is in `trained` are trained on; the others have no tokens and turns.
    `overlong` is subtracted from the reward of the last turn. `envs` are the numbers of the
    episodes' environments, if there are several.
    """
    rows = [joined_tokens(rows_of_episode(t, pad_id, trained)) for t in trajectories]
    trainable = [t.outcome in trained for t in trajectories]
    turns = [t.turns if known else [] for t, known in zip(trajectories, trainable, strict=True)]
    rewards = [[turn.reward for turn in played] for played in turns]
    for earned, trajectory in zip(rewards, trajectories, strict=True):
        if earned and overlong is not None:
            earned[-1] -= overlong(trajectory)
    return TokenBatch(
        loss_mask=_padded([row.loss_mask for row in rows], 0.0, width),
        rewards=_padded(rewards, 0.0),
        turn_ends=_padded([_ends(row, len(p)) for row, p in zip(rows, turns, strict=True)], 0),
        trainable=torch.tensor(trainable),
        group_size=group_size,
        states=_padded([_states(t, len(p)) for t, p in zip(trajectories, turns, strict=True)], -1),
        truncated=torch.tensor([t.outcome in TRUNCATED for t in trajectories]),
        logprobs=_padded([row.logprobs for row in rows], 0.0, width),
        envs=None if envs is None else torch.tensor(envs),
    )


def _padded(rows: Sequence[Sequence[float]], fill: float, width: int = 0) -> Tensor:
    """Pad to (B, width), or to the longest row (at least 1); float32 or int64, as is `fill`."""
    width = width or max(1, *(len(row) for row in rows))
    kind = torch.float32 if isinstance(fill, float) else torch.int64
    padded = torch.full((len(rows), width), fill, dtype=kind)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=kind)
    return padded


def _ends(row: Tokens, turns: int) -> list[int]:
    """(K,) end of each turn; a turn without tokens ends where the previous turn does."""
    ends = row.turn_ends[:turns]
    return ends + [ends[-1] if ends else 0] * (turns - len(ends))


def _states(trajectory: Trajectory, turns: int) -> list[int]:
    """(K,) 63-bit hashes of the observation before each turn, equal in all processes."""
    answered = [trajectory.observation, *(turn.observation for turn in trajectory.turns)]
    texts = (text.encode("utf-8", "surrogatepass") for text in answered[:turns])
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return [int.from_bytes(digest, "big") >> 1 for digest in digests]


_FILL = {"states": -1}
"""Padding values other than 0."""


def joined_batches(batches: Sequence[TokenBatch]) -> TokenBatch:
    """Concatenate the batches of all processes, by rank; each has its own B, T and K."""
    if len(batches) == 1:
        return batches[0]
    values: dict[str, Any] = {
        field.name: _stacked([getattr(batch, field.name) for batch in batches], field.name)
        for field in fields(TokenBatch)
        if field.name != "group_size"
    }
    return TokenBatch(group_size=batches[0].group_size, **values)


def local_rows(tensor: Tensor, batches: Sequence[TokenBatch], rank: int) -> Tensor:
    """(B, T) rows of one process, from a (sum of B, maximum T) tensor of all processes."""
    first = sum(len(batch.trainable) for batch in batches[:rank])
    own = batches[rank].loss_mask
    return tensor[first : first + own.shape[0], : own.shape[1]]


def _stacked(tensors: Sequence[Tensor | None], name: str) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    if given[0].dim() == 1:
        return torch.cat(given)
    width = max(tensor.shape[1] for tensor in given)
    fill = _FILL.get(name, 0)
    return torch.cat([pad(t, (0, width - t.shape[1]), value=fill) for t in given])
