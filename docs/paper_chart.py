"""Draw images/paper.png, the success rates of the table in paper_tasks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agentgym_train.evaluation.charts import bar_chart
from agentgym_train.evaluation.statistics import Bar, rate_interval
from agentgym_train.evaluation.suite import read_suite

WORLDS: Final = {
    "TextCraft": "100 tasks, 30 turns",
    "BabyAI": "90 tasks, 20 turns",
    "SciWorld": "200 tasks, 30 turns",
    "WebArena": "50 tasks of ours, 15 turns",
    "Search": "400 tasks of ours, 30 turns",
}


def rate(solved: int, tasks: int) -> Bar:
    """Of one episode per task, with the interval of `agentgym eval`."""
    values = [[float(task < solved)] for task in range(tasks)]
    return solved / tasks, rate_interval(values, seed=0)


PART_OF_SFT: Final[list[Bar | None]] = [rate(0, 34), None, rate(0, 39)]
"""After two fifths and a quarter of SFT, on the first tasks of each category."""

OURS: Final[dict[str, list[Bar | None]]] = {
    "expert": [rate(99, 100), rate(86, 90), rate(161, 200), rate(50, 50), rate(400, 400)],
    "random": [rate(49, 100), rate(59, 90), rate(0, 200), rate(0, 50), rate(0, 400)],
    "SmolLM2-135M, SFT": [(0.73, (0.66, 0.80)), (0.69, (0.61, 0.76)), *PART_OF_SFT],
    "SmolLM2-135M, SFT and RL": [(0.76, (0.69, 0.83)), (0.83, (0.76, 0.89)), None, None, None],
}

if __name__ == "__main__":
    entries = read_suite("starter:suites/paper.yaml").evaluations
    published: dict[str, list[Bar | None]] = {
        name: [(entry.published[name], None) for entry in entries] for name in entries[0].published
    }
    groups = [f"{world} ({facts})" for world, facts in WORLDS.items()]
    path = Path(__file__).parent / "images" / "paper.png"
    bar_chart({**OURS, **published}, groups, "success in the five worlds", path, published)
