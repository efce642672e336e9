"""Whether engine and trainer compute the same log-probabilities of sampled tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences of log-probabilities that are explained by rounding."""

    token: float
    """Tolerance of one token; a small fraction of tokens may differ by more."""
    share: float
    """Fraction of tokens that may exceed `token`: rounding is coarse for unlikely tokens."""
    most: float
    """Maximum difference of any token, as a multiple of `token`."""


FULL: Final = Tolerance(1e-4, 0.001, 10)

HALF: Final = Tolerance(2e-2, 0.05, 50)
"""Tolerance if anything is computed in 16 bits."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Differences of the log-probabilities of sampled tokens, at least one."""

    sizes: Sequence[float]
    """Infinite where a log-probability is not finite."""
    tolerance: Tolerance

    @classmethod
    def from_gaps(cls, gaps: Sequence[float], tolerance: Tolerance) -> Agreement:
        """From the differences with their signs."""
        return cls([abs(gap) if math.isfinite(gap) else math.inf for gap in gaps], tolerance)

    @property
    def most(self) -> float:
        """The largest difference."""
        return max(self.sizes)

    @property
    def mean(self) -> float:
        """The mean difference."""
        return sum(self.sizes) / len(self.sizes)

    @property
    def share_above(self) -> float:
        """The fraction of tokens whose difference is above the tolerance of one."""
        return sum(size > self.tolerance.token for size in self.sizes) / len(self.sizes)

    @property
    def holds(self) -> bool:
        """Whether rounding explains the differences."""
        allowed = self.tolerance
        return self.share_above <= allowed.share and self.most <= allowed.most * allowed.token


def warn_of_difference(agreement: Agreement, model: str) -> None:
    """Log a warning if rounding does not explain the differences."""
    if not agreement.holds:
        logger.warning(
            "engine and trainer compute different log-probabilities: of %d sampled tokens the "
            "largest difference is %.2g, and %.1f %% are above %g. Training learns from another "
            "policy than the one that acts; `agentgym audit %s` shows where they differ",
            len(agreement.sizes), agreement.most, 100 * agreement.share_above,
            agreement.tolerance.token, model,
        )  # fmt: skip
