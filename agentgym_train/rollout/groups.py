"""Group: episodes of one task and seed, from the draw of the task to the step that trains on it."""

from __future__ import annotations

import msgspec

from agentgym_env.trajectory import Trajectory


class Group(msgspec.Struct, eq=False):
    """G episodes of one task and environment seed; without episodes, a group that is to be played.

    Baselines are computed within a group, so it is never split.
    """

    env: int
    """Number of the environment."""
    task: str
    number: int = 0
    """Number of the draw in the run, which gives the group its seed."""
    version: int = 0
    """Version of the weights when it began."""
    episodes: list[Trajectory] = []
    returns: list[float] = []
    """The returns of the episodes whose outcome is trained on."""
    tokens: int = 0
    """Tokens of the longest context, its prompt included."""
    rejected: str | None = None
    """Why the gate did not admit it; None if a step trains on it."""

    @property
    def is_informative(self) -> bool:
        """Whether the returns differ; otherwise most algorithms give no advantage."""
        return len(set(self.returns)) > 1

    @property
    def oldest(self) -> int:
        """Version of the weights that sampled its oldest token."""
        versions = [v for t in self.episodes for row in t.rows for v in row.versions if v >= 0]
        return min(versions, default=self.version)
