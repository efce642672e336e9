"""The engine against the trainer: weighs what was sampled by how the trainer would have done it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["auto", "off", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class Correction:
    """Truncated importance sampling between engine and trainer.

    An engine computes in other kernels or another precision than the trainer, so what it drew is
    off-policy even with the same weights. With pi_T the trainer's probability before the update and
    pi_E the engine's, the advantage of token t is multiplied by

    - `token`: min(pi_T(t) / pi_E(t), most) (truncated importance sampling, arXiv:2303.17651's
      estimator as TRL and verl have it), or
    - `sequence`: the product over the episode's sampled tokens, and 0 for an episode where it is
      above `most` or below 1 / `most` (masked importance sampling).

    `auto` is `token` for an engine that is not the trainer's own model, and `off` for one that is.
    """

    kind: Kind = "auto"
    most: float = 3.0

    def is_needed(self, engine_is_exact: bool) -> bool:
        """Whether the trainer has to score what the engine sampled."""
        return self.kind in ("token", "sequence") or (self.kind == "auto" and not engine_is_exact)

    def ratios(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> Tensor:
        """(B, T) what advantages are multiplied by, of (B, T) log-probabilities; 1 off the mask."""
        difference = torch.where(mask, trainer - engine, 0.0)  # (B, T)
        if self.kind == "sequence":
            total = difference.sum(1, keepdim=True)  # (B, 1)
            bound = torch.log(torch.tensor(self.most))
            kept = (total.abs() <= bound).to(total.dtype)  # (B, 1)
            return torch.where(mask, total.clamp(-bound, bound).exp() * kept, 1.0)
        return difference.exp().clamp(max=self.most)


def drift(trainer: Tensor, engine: Tensor, mask: Tensor) -> dict[str, float]:
    """How far apart engine and trainer are on the sampled tokens: figures of a step."""
    difference = (trainer - engine)[mask]  # (N,)
    if not difference.numel():
        return {}
    return {
        "engine/logprob_difference_mean": float(difference.abs().mean()),
        "engine/logprob_difference_max": float(difference.abs().max()),
        # k3 (http://joschu.net/blog/kl-approx.html): KL(engine, trainer), sampled by the engine
        "engine/kl": float((difference.exp() - 1 - difference).mean()),
    }
