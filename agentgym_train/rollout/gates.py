"""Admission gates: which groups a step trains on; it plays other ones in place of the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentgym_train.config.checks import Count, NonNegative
from agentgym_train.rollout.groups import Group


@dataclass(frozen=True, kw_only=True)
class AdmissionGate:
    """Admits every group that is not too long.

    In a config, `admission: package.module:Class` names another one: a dataclass with this base
    whose `admit` calls that of the base. It is called for each group, in the process that played
    it, before the step's advantages are computed.
    """

    max_tokens: Count = 0
    """Replace groups with an episode of more tokens, its prompt included; 0 sets no limit."""
    budget: NonNegative = 1.0
    """Most groups that a step plays in place of others, as a share of prompts_per_step; after that
    the first ones that were rejected fill the step."""

    def max_replaced(self, groups: int) -> int:
        """Groups that a step of so many may play in place of others."""
        admits_all = type(self) is AdmissionGate and not self.max_tokens
        return 0 if admits_all else math.ceil(self.budget * groups)

    def admit(self, group: Group) -> str | None:
        """None to train on a group; or why not, in one or two words that a metric is named by."""
        return "too_long" if 0 < self.max_tokens < group.tokens else None


@dataclass(frozen=True, kw_only=True)
class InformativeGate(AdmissionGate):
    """Admits groups whose episodes differ in return (dynamic sampling, arXiv:2503.14476)."""

    def admit(self, group: Group) -> str | None:
        """None if the returns differ."""
        return super().admit(group) or (None if group.is_informative else "uninformative")


GATES: Final[Mapping[str, type[AdmissionGate]]] = {
    "all": AdmissionGate,
    "informative": InformativeGate,
}
"""Type of `admission` -> its class."""
