"""Importance sampling between engine and trainer: weights and metrics of log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["auto", "off", "token", "geometric", "clipped"]


@dataclass(frozen=True, slots=True)
class ImportanceSampling:
    """Truncated importance sampling between engine and trainer.

    An engine may use other kernels or another precision than the trainer, so its samples are
    off-policy even with the same weights. pi_T is the trainer's probability before the update and
    pi_E the engine's. The advantage of token t is multiplied by

    - `token`: min(pi_T(t) / pi_E(t), most) (truncated importance sampling, arXiv:2303.17651, as in
      TRL and verl), or
    - `geometric`: the same, and 0 in an episode where the geometric mean of the tokens' weights is
      above `band` or below 1 / `band`. A mean does not depend on the episode's length, unlike the
      product: docs/training.md compares them; or
    - `clipped`: the weights of `token`, and 0 where the policy has already moved by more than
      `epsilon` towards what the advantage asks for, which is where PPO's clipped objective
      (arXiv:1707.06347) has no gradient. Without it, old samples push the policy on and on.

    `auto` is `off` if the engine samples with the trainer's own model, and `token` otherwise.
    """

    kind: Kind = "auto"
    most: float = 3.0
    band: float = 1.05
    epsilon: float = 0.2

    def is_needed(self, engine_is_exact: bool) -> bool:
        """Whether the trainer has to score the engine's samples."""
        return self.kind in ("token", "geometric", "clipped") or (
            self.kind == "auto" and not engine_is_exact
        )

    def ratios(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
        """(B, T) importance weights from (B, T) log-probabilities; 1 off the mask."""
        difference = torch.where(mask, trainer - engine, 0.0)  # (B, T)
        weights = difference.exp().clamp(max=self.most)  # (B, T)
        if self.kind == "geometric":
            mean = difference.sum(1) / mask.sum(1).clamp(min=1)  # (B,)
            kept = (mean.abs() <= math.log(self.band)).to(weights.dtype)  # (B,)
            weights = torch.where(mask, weights * kept[:, None], 1.0)
        return weights

    def clipped(self, ratios: Tensor, advantages: Tensor) -> Tensor:
        """(B, T) bool, whether the policy has moved far enough from the one that sampled."""
        if self.kind != "clipped":
            return torch.zeros_like(ratios, dtype=torch.bool)
        rises = (advantages > 0) & (ratios > 1 + self.epsilon)
        return rises | ((advantages < 0) & (ratios < 1 - self.epsilon))

    def metrics(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
        """The shares of tokens that are excluded and truncated, and the effective sample size.

        The last is the sum of the weights squared over the sum of their squares, as a share of the
        number of tokens: 1 if all weights are equal.
        """
        weights = self.ratios(trainer, engine, mask)[mask].double()  # (N,)
        if not weights.numel():
            return {}
        truncated = (trainer - engine)[mask] > math.log(self.most)
        squares = float(weights.square().sum()) * weights.numel()
        return {
            "importance/excluded": float((weights == 0).double().mean()),
            "importance/truncated": float(truncated.double().mean()),
            "importance/effective": float(weights.sum().square()) / squares if squares else 0.0,
        }


def ratio_metrics(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
    """Metrics of the difference between engine and trainer on a step's sampled tokens."""
    difference = (trainer - engine)[mask]  # (N,)
    if not difference.numel():
        return {}
    return {
        "engine/logprob_difference_mean": float(difference.abs().mean()),
        "engine/logprob_difference_max": float(difference.abs().max()),
        # The k3 estimator (http://joschu.net/blog/kl-approx.html) of KL(engine, trainer)
        "engine/kl": float((difference.exp() - 1 - difference).mean()),
    }
