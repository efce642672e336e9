"""Plays TextCraft's native episodes by AgentLab, or by BrowserGym's loop; prints the summaries.

Run where BrowserGym is installed: `study_in_agentlab.py ADDRESS HOW < episodes.json`, where HOW is
`agentlab` or `experiments`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from browsergym.experiments import AbstractAgentArgs, Agent, ExpArgs, get_exp_result

from agentgym_adapters.agentlab_args import AgentGymEnvArgs

ENV = "agentgym/TextCraft-v0"
KEPT = ("cum_reward", "terminated", "n_steps")


class Reader(Agent):
    """Reads its actions off a list."""

    def __init__(self, actions: tuple[str, ...]) -> None:
        self.left = list(actions)

    def obs_preprocessor(self, obs: dict) -> dict:
        # What is text is counted in tokens, for which a vocabulary would be downloaded.
        return {}

    def get_action(self, obs: dict) -> tuple[str, dict]:
        return f"send_msg_to_user({self.left.pop(0)!r})", {}


@dataclass
class ReaderArgs(AbstractAgentArgs):
    """What makes it."""

    actions: tuple[str, ...] = ()
    agent_name: str = "reader"

    def make_agent(self) -> Agent:
        return Reader(self.actions)


def experiments(address: str, episodes: list[dict], kind: type) -> list:
    """One experiment an episode, of AgentLab's kind or of BrowserGym's."""
    return [
        kind(
            ReaderArgs(actions=tuple(one["actions"])),
            AgentGymEnvArgs(
                task_name=f"agentgym.textcraft.lab.{number}", task_seed=one["seed"], max_steps=50,
                env_id=ENV, env_task=one["task"], label=f"lab.{number}", server=[address],
            ),
        )
        for number, one in enumerate(episodes)
    ]  # fmt: skip


def run_by_agentlab(address: str, episodes: list[dict], folder: Path) -> list[Path]:
    from agentlab.experiments.launch_exp import run_experiments
    from agentlab.experiments.loop import EnvArgs, ExpArgs

    runs = experiments(address, episodes, ExpArgs)
    # What a Study asks of them; it would strip them of whatever EnvArgs has not.
    assert all(isinstance(run.env_args, EnvArgs) for run in runs)
    run_experiments(1, runs, folder, parallel_backend="sequential")
    return [run.exp_dir for run in runs]


def run_by_browsergym(address: str, episodes: list[dict], folder: Path) -> list[Path]:
    runs = experiments(address, episodes, ExpArgs)
    for run in runs:
        run.prepare(folder)
        run.run()
    return [run.exp_dir for run in runs]


def told(folder: Path) -> dict:
    summary = get_exp_result(folder).summary_info
    if summary["err_msg"]:
        raise SystemExit(f"{summary['err_msg']}\n{summary['stack_trace']}")
    return {name: summary[name] for name in KEPT}


def main() -> None:
    address, how = sys.argv[1:]
    run = {"agentlab": run_by_agentlab, "experiments": run_by_browsergym}[how]
    with tempfile.TemporaryDirectory() as folder:
        played = [told(one) for one in run(address, json.load(sys.stdin), Path(folder))]
    sys.stdout.write(json.dumps(played) + "\n")


if __name__ == "__main__":
    main()
