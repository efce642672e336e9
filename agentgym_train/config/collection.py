"""CollectConfig: the settings of a collection of episodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentgym_train.config.checks import Positive, Share
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.policy import PlayConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig(PlayConfig):
    """Settings of a collection; `model` is the name of any policy, such as `expert`."""

    output_dir: str
    """Run folder. A collection with the same settings in it is resumed."""
    split: str = "train"
    """Split of tasks."""
    n: Positive | None = None
    """Number of starts, each a task with a seed: the split's tasks in a random order, then again
    with other seeds, and so on. Without it each task once."""
    samples: Positive = 1
    """Episodes per start."""
    keep: EpisodeFilter = field(default_factory=EpisodeFilter)
    """Which episodes are kept as training data."""
    mix_policy: str = ""
    """Another policy, which takes some turns: random, or the model that learns. Its turns are
    context and not trained on."""
    mix_rate: Share = 0.3
    """Probability that a turn is that of the other policy."""
    method: Literal["collect"] = "collect"
    """What this run folder contains."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for run.json."""
        return asdict(self)
