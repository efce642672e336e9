"""What arXiv:2509.08755 publishes: its worlds, as it evaluates them, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SUITES: Final = ("paper",)


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One model's success in one world."""

    name: str
    success: float
    categories: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteWorld:
    """One world of the suite, as the paper evaluates it."""

    name: str
    env_id: str
    horizon: int
    """Maximum turns per episode in the paper's evaluation scripts."""
    always: tuple[str, ...] = ()
    """Differences from the paper that no setting removes."""
    legacy: str | None = None
    """The difference without the setting `legacy`."""
    stand_in: str = ""
    """The tasks that are used where the paper's are not available."""
    quotas: Mapping[str | None, int] = field(default_factory=dict)
    """Category -> how many tasks stand in for the paper's; None: any category."""

    @property
    def key(self) -> str:
        """The world's name in `--env-kwargs`, and its folder."""
        return self.name.lower()


_SCALED: Final = "AgentGym-RL 7B, ScalingInter (paper)"

_FIGURES: Final[dict[str, tuple[PaperFigure, ...]]] = {
    "agentgym/TextCraft-v0": (PaperFigure(_SCALED, 0.910),),
    "agentgym/BabyAI-v0": (PaperFigure(_SCALED, 0.967),),
    "agentgym/SciWorld-v0": (PaperFigure(_SCALED, 0.570),),
    "agentgym/Search-v0": (PaperFigure(_SCALED, 0.382),),
    "agentgym/WebArena-v0": (
        PaperFigure(
            _SCALED,
            0.260,
            # The paper has one figure for GitLab and Reddit together.
            {
                "shopping": 0.333, "shopping_admin": 0.267, "map": 0.200,
                "gitlab": 0.200, "reddit": 0.200,
            },
        ),
        PaperFigure("AgentGym-RL 7B, fixed horizon (paper)", 0.220),
        PaperFigure("Qwen2.5-7B-Instruct (paper)", 0.0976),
    ),
}  # fmt: skip


def paper_figures(env_id: str) -> tuple[PaperFigure, ...]:
    """The paper's results in a world, if it has any."""
    return _FIGURES.get(env_id, ())


_OWN_WORDING: Final = "our wording"
_WORDING: Final = f"{_OWN_WORDING}; `legacy` has AgentGym's"

WORLDS: Final = (
    SuiteWorld(
        "TextCraft", "agentgym/TextCraft-v0", 30,
        always=("goals are numbered by file name; in AgentGym by the order of the file system",),
        legacy=_WORDING,
    ),
    SuiteWorld(
        "BabyAI", "agentgym/BabyAI-v0", 20,
        always=(
            "a success ends the episode; in AgentGym not with a reward of 0.5 or less",
            "a door that is opened to go through it ends the episode with success where that was "
            "the goal; in AgentGym the success is lost",
            "the 5 tasks of GoToObjS6 are laid out otherwise than by the paper's minigrid",
        ),
        legacy=_WORDING,
    ),
    SuiteWorld(
        "SciWorld", "agentgym/SciWorld-v0", 30,
        always=("61 of the 200 tasks are also in the paper's training list", _OWN_WORDING),
    ),
    SuiteWorld(
        "WebArena", "agentgym/WebArena-v0", 15,
        stand_in="our own sites and tasks, as many for each site as in the paper",
        quotas={"shopping": 15, "shopping_admin": 15, "map": 10, "gitlab": 5, "reddit": 5},
    ),
    SuiteWorld(
        "Search", "agentgym/Search-v0", 30,
        legacy="the first answer is final; in the paper a wrong one may be followed by others",
        stand_in="our own corpus and questions",
        quotas={None: 400},
    ),
)  # fmt: skip

PAPER_ROWS: Final[Mapping[str, Mapping[str, float]]] = {
    "Qwen2.5-7B-Instruct": {
        "TextCraft": 0.42, "BabyAI": 0.667, "SciWorld": 0.015, "WebArena": 0.098, "Search": 0.188,
    },
    "GPT-4o": {
        "TextCraft": 0.83, "BabyAI": 0.866, "SciWorld": 0.21, "WebArena": 0.16, "Search": 0.267,
    },
    "o3": {
        "TextCraft": 0.93, "BabyAI": 0.944, "SciWorld": 0.415, "WebArena": 0.34, "Search": 0.495,
    },
    "AgentGym-RL 7B, fixed horizon": {
        "TextCraft": 0.89, "BabyAI": 0.922, "SciWorld": 0.505, "WebArena": 0.22, "Search": 0.34,
    },
    "AgentGym-RL 7B, ScalingInter": {
        world.name: paper_figures(world.env_id)[0].success for world in WORLDS
    },
}  # fmt: skip
"""Published success. Those of the first three rows are read from a chart, to about 0.002."""

PAPER_NOTE: Final = (
    "The paper's rows are of its own servers. Other tables of it have 0.83 for the fixed horizon "
    "in TextCraft, and 0.16 in WebArena."
)
