"""Losses: sums over tokens, each with a weight that does not depend on how a step is split.

A loss takes the scores of a micro-batch and returns its share of the step's loss, and sums for the
metrics. Gradients and metrics of the micro-batches of all processes add up to the step's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from agentgym_train.algorithms.base import LossSettings
from agentgym_train.training.rows import TokenRows


class RowScores(NamedTuple):
    """What a model gives the trained tokens of R rows; (R, W) each, 0 elsewhere."""

    logprobs: Tensor
    entropy: Tensor
    """In nats."""
    is_top: Tensor
    """1 where the token is a most likely one."""


class Parts(NamedTuple):
    """A micro-batch's share of a step."""

    loss: Tensor
    items: Tensor
    """The number of tokens or pairs that the metrics are means over."""
    sums: dict[str, Tensor]
    """Sums over those, by metric."""


class Loss(Protocol):
    """The loss of a micro-batch."""

    def __call__(self, scores: RowScores, rows: TokenRows) -> Parts:
        """The share of R rows in the step."""
        ...


def token_weights(
    settings: LossSettings, sizes: Tensor, *, episodes: int, tokens: int, most: int
) -> Tensor:
    """(R,) the weight of each trained token of a row in the loss of an update.

    `sizes` (R,) are the trained tokens of the row's episode. `episodes` and `tokens` are those that
    the update trains on, over all processes, and `most` is the maximum tokens of an episode.
    """
    size = sizes.clamp(min=1).float()  # (R,)
    if settings.mean == "token":
        return torch.full_like(size, 1 / max(1, tokens))
    if settings.mean == "sequence":
        return 1 / (size * max(1, episodes))
    each = most if settings.mean == "constant" else 1
    return torch.full_like(size, 1 / (each * max(1, episodes)))


@dataclass(frozen=True, slots=True)
class RLLoss:
    """The loss of RL.

    Plus `beta` times the KL divergence from the reference and minus `entropy_bonus` times the mean
    entropy. The divergence is the k3 estimator (http://joschu.net/blog/kl-approx.html), times the
    importance ratio, without which its gradient is biased.
    """

    settings: LossSettings
    beta: float = 0.0
    entropy_bonus: float = 0.0

    def __call__(self, scores: RowScores, rows: TokenRows) -> Parts:
        """The share of R rows; `rows` has weights and advantages."""
        assert rows.weights is not None and rows.advantages is not None
        mask = rows.trained  # (R, W)
        old = scores.logprobs.detach() if rows.old is None else rows.old  # (R, W)
        log_ratio = torch.where(mask, scores.logprobs - old, 0.0)  # (R, W)
        shared = log_ratio
        if self.settings.ratio == "sequence":
            sizes = mask.sum(1, keepdim=True).clamp(min=1)  # (R, 1)
            shared = (log_ratio.sum(1, keepdim=True) / sizes).expand(mask.shape)  # (R, W)
        each, sums = self._each(shared.exp(), scores.logprobs, rows.advantages)  # (R, W)
        loss = (each * rows.weights).sum()
        sums = {name: (value & mask).sum() for name, value in sums.items()}
        sums["entropy"] = scores.entropy.detach().sum()
        if self.beta:
            assert rows.reference is not None
            gap = torch.where(mask, rows.reference - scores.logprobs, 0.0)  # (R, W)
            kl = gap.exp() - 1 - gap  # (R, W)
            loss = loss + self.beta * (kl * log_ratio.exp() * rows.weights).sum()
            sums["kl"] = kl.detach().sum()
        if self.entropy_bonus:
            assert rows.tokens is not None
            loss = loss - self.entropy_bonus * scores.entropy.sum() / max(1, rows.tokens)
        return Parts(loss, mask.sum(), sums)

    def _each(
        self, ratio: Tensor, logprobs: Tensor, advantages: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(R, W) losses of the tokens, and bools of what is clipped."""
        settings = self.settings
        high = settings.epsilon if settings.epsilon_high is None else settings.epsilon_high
        if settings.kind == "sapo":
            heat = torch.where(advantages > 0, *_SAPO_TEMPERATURES)  # (R, W)
            return -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantages, {}
        if settings.kind == "cispo":
            clipped = (ratio > high) & (advantages > 0)
            each = -ratio.clamp(max=high).detach() * advantages * logprobs
            return each, {"clip_ratio/high_mean": clipped}
        low_clipped = (ratio < 1 - settings.epsilon) & (advantages < 0)
        high_clipped = (ratio > 1 + high) & (advantages > 0)
        inside = ratio.clamp(1 - settings.epsilon, 1 + high)
        ratio = ratio if settings.delta is None else ratio.clamp(max=settings.delta)
        return -torch.min(ratio * advantages, inside * advantages), {
            "clip_ratio/low_mean": low_clipped,
            "clip_ratio/high_mean": high_clipped,
            "clip_ratio/region_mean": low_clipped | high_clipped,
        }


_SAPO_TEMPERATURES = (1.0, 1.05)
"""Of positive and of other advantages, as in the paper (arXiv:2511.20347)."""


def likelihood_loss(scores: RowScores, rows: TokenRows) -> Parts:
    """SFT's: the mean negative log-probability of the trained tokens; `rows` has weights."""
    assert rows.weights is not None
    sums = {"entropy": scores.entropy.detach().sum(), "mean_token_accuracy": scores.is_top.sum()}
    return Parts(-(scores.logprobs * rows.weights).sum(), rows.trained.sum(), sums)


@dataclass(frozen=True, slots=True)
class PairLoss:
    """DPO's (arXiv:2305.18290): -log sigmoid of the margin, a mean over pairs.

    The margin is beta times the difference of the log-ratios to the reference of the chosen and the
    rejected episode, each a sum over the policy's tokens. Rows alternate: chosen, then rejected.
    """

    beta: float
    pairs: int
    """Pairs per step, over all processes."""

    def __call__(self, scores: RowScores, rows: TokenRows) -> Parts:
        """The share of P pairs; `rows` has the reference's log-probabilities."""
        assert rows.reference is not None
        said = scores.logprobs.sum(1)  # (2 P,)
        rewards = self.beta * (said - rows.reference.sum(1))  # (2 P,)
        chosen, rejected = rewards[::2], rewards[1::2]  # (P,)
        margins = chosen - rejected  # (P,)
        logps = said.detach()
        shown = {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": margins,
            "rewards/accuracies": (margins > 0).float(),
            "logps/chosen": logps[::2],
            "logps/rejected": logps[1::2],
        }
        count = torch.tensor(len(margins), device=margins.device)
        sums = {name: value.detach().sum() for name, value in shown.items()}
        return Parts(-logsigmoid(margins).sum() / self.pairs, count, sums)
