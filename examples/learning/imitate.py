"""Does it learn? SFT, DPO after SFT and AgentEvol, each next to its control.

    python examples/learning/imitate.py --world courier --out runs/imitation-courier
    python examples/learning/imitate.py --world textcraft --out runs/imitation

The runs are those of `examples/train/textcraft/{sft,dpo,evolve}.yaml`, for the courier with a few
other values. All policies are evaluated on the same held-out tasks at one horizon, with the worlds
and draws of their seed. What is done is not done again: the same command goes on after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figures import Row, row_of
from rich.console import Console

from agentgym_env.errors import AgentGymError
from agentgym_env.run_store import RunStore
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.read import read_method_config
from agentgym_train.config.run import RunConfig
from agentgym_train.data.collect import CollectConfig, collect
from agentgym_train.evaluation.play import evaluate
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.runs import methods
from agentgym_train.runs.preflight import prepared
from agentgym_train.runs.stored import is_complete

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "train" / "textcraft"


@dataclass(frozen=True, slots=True)
class Setting:
    """One world with its warm policy, and how much is played in it."""

    env: str
    warm: Path
    horizon: int
    turn_max_tokens: int
    max_tokens: int
    samples: int
    """Episodes of each held-out task, for each policy and seed."""
    played: int
    """Tasks that the SFT policy plays four times, to make pairs of."""
    few: int
    """Demonstrations that AgentEvol begins with."""
    words: dict[str, list[str]]
    """Values of each kind of run that are not those of TextCraft's config."""


_COURIER = ["turn_max_tokens=4", "max_tokens=512", f"model={HERE / 'warm_policy'}"]
SETTINGS = {
    "textcraft": Setting(
        "agentgym/TextCraft-v0", CONFIGS / "warm_policy", 8, 32, 1024, 2, 120, 100,
        {"sft": [], "dpo": [], "evolve": []},
    ),
    "courier": Setting(
        "courier:Courier", HERE / "warm_policy", 12, 4, 512, 10, 60, 8,
        {
            "sft": [*_COURIER, "env=courier:Courier", "eval.horizon=12", "epochs=1"],
            "dpo": [*_COURIER, "env=courier:Courier", "eval.horizon=12"],
            "evolve": [*_COURIER, "envs=[{env: 'courier:Courier', horizon: 12, tasks: 60}]"],
        },
    ),
}  # fmt: skip
CONTROLS = {
    "SFT on the expert": "warm policy (control)",
    "DPO after SFT": "SFT on the expert",
    "AgentEvol, demonstrations alone": "warm policy (control)",
    "AgentEvol, iteration 1": "AgentEvol, demonstrations alone",
    "AgentEvol, iteration 2": "AgentEvol, demonstrations alone",
    "demonstrations alone, as many steps": "AgentEvol, demonstrations alone",
    "AgentEvol without demonstrations, iteration 1": "warm policy (control)",
    "AgentEvol without demonstrations, iteration 2": "warm policy (control)",
}
"""What each arm is compared with."""


class Stopped(Exception):
    """Ctrl-C ended a run, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The runs of one seed, in the order in which they need one another."""

    seed: int
    setting: Setting
    out: Path
    console: Console

    def policies(self) -> Iterator[tuple[str, Path, int]]:
        """(arm, its policy, optimizer steps from the policy it started from)."""
        yield "warm policy (control)", self.setting.warm, 0
        expert = self._collected("expert", "expert")
        sft = self._trained("sft", data=[expert])
        yield "SFT on the expert", sft / "model", self._steps(sft)
        played = self._collected("played", str(sft / "model"), n=self.setting.played, samples=4)
        dpo = self._trained("dpo", data=[played], model=sft / "model")
        yield "DPO after SFT", dpo / "model", self._steps(dpo)
        few = self._collected("few", "expert", n=self.setting.few)
        evolved = self._trained("evolve", data=[few])
        names = ("demonstrations alone", "iteration 1", "iteration 2")
        for number, name in enumerate(names):
            folder = evolved / f"iteration-{number}"
            yield f"AgentEvol, {name}", folder / "model", self._steps(folder)
        steps = self._steps(evolved / "iteration-2")
        longer = self._trained("sft", name="longer", data=[few], steps=steps)
        yield "demonstrations alone, as many steps", longer / "model", steps
        alone = self._trained("evolve", name="alone", data=[])
        for number in (1, 2):
            folder = alone / f"iteration-{number}"
            name = f"AgentEvol without demonstrations, iteration {number}"
            yield name, folder / "model", self._steps(folder)

    def _folder(self, name: str) -> Path:
        return self.out / f"{name}-{self.seed}"

    def _collected(self, name: str, policy: str, **changes: Any) -> Path:
        folder = self._folder(name)
        setting = self.setting
        config = CollectConfig(
            env=setting.env, model=policy, output_dir=str(folder), seed=self.seed, instruction="",
            horizon=50 if policy == "expert" else setting.horizon,
            turn_max_tokens=setting.turn_max_tokens, max_tokens=setting.max_tokens, **changes,
        )  # fmt: skip
        if collect(config, self.console, concurrency=64) != 0:
            raise Stopped
        return folder

    def _trained(self, kind: str, *, name: str = "", **values: Any) -> Path:
        """The folder of a run, which is begun, gone on with or complete."""
        folder = self._folder(name or kind)
        words = [f"{key}={_word(value)}" for key, value in values.items()]
        words = [*self.setting.words[kind], *words]
        base = read_method_config(CONFIGS / f"{kind}.yaml", words)
        config: RunConfig = replace(
            base, seed=self.seed, output_dir=str(folder),
            eval=replace(base.eval, before=False, after=False),
        )  # fmt: skip
        begun = (folder / "run.json").is_file()
        if begun and is_complete(config):
            return folder
        with prepared(config) as worlds:
            if methods.run(config, self.console, worlds, resumes=begun) != 0:
                raise Stopped
        return folder

    def _steps(self, folder: Path) -> int:
        return len(RunStore(folder).metrics()[0])


def main() -> int:
    """Run what is missing, then show and write the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=SETTINGS, default="textcraft")
    parser.add_argument("--until", choices=CONTROLS, help="leave out the arms after this one")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument(
        "--first-seed", type=int, default=11, help="the seeds before it were used for tuning"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and figures")
    args = parser.parse_args()
    console, setting = Console(), SETTINGS[args.world]
    quiet_libraries()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with RolloutRunner(setting.env, concurrency=64) as rollout_runner:
            results = [
                evaluated(Arm(arm, seed, policy, steps), setting, args.out, rollout_runner, console)
                for seed in range(args.first_seed, args.first_seed + args.seeds)
                for arm, policy, steps in until(
                    args.until, Seed(seed, setting, args.out, console).policies()
                )
            ]
    except (Stopped, KeyboardInterrupt):
        console.print("Interrupted. The same command resumes.")
        return 130
    except AgentGymError as error:
        console.print(f"[red]{error}[/]", markup=True)
        return 2
    text = "\n".join(table(results))
    (args.out / "imitation.md").write_text(text + "\n")
    console.print(text, soft_wrap=True, markup=False, highlight=False)
    return 0


def until(
    last: str | None, policies: Iterator[tuple[str, Path, int]]
) -> Iterator[tuple[str, Path, int]]:
    """The policies up to the arm `last`; what comes after it is not begun."""
    for policy in policies:
        yield policy
        if policy[0] == last:
            return


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy of the comparison, under one seed."""

    name: str
    seed: int
    policy: Path
    steps: int
    """Optimizer steps from the policy that it started from."""


def evaluated(
    arm: Arm, setting: Setting, out: Path, rollout_runner: RolloutRunner, console: Console
) -> dict[str, Any]:
    """The figures of one policy; kept, and not played twice."""
    kept = out / "results" / f"{arm.name}, seed {arm.seed}.json"
    if kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    made = make_policy(
        PolicyConfig(
            model=str(arm.policy), instruction="", turn_max_tokens=setting.turn_max_tokens,
            max_tokens=setting.max_tokens,
        )
    )  # fmt: skip
    report, _ = evaluate(
        rollout_runner, made.actors(1.0), split="test", horizon=setting.horizon,
        samples=setting.samples, seed=arm.seed, console=console, label=arm.name[:12],
    )  # fmt: skip
    result = {
        "arm": arm.name, "seed": arm.seed, "success": report.success,
        "episodes": report.episodes, "lost": report.lost, "steps": arm.steps, "env_steps": 0,
        "train_seconds": 0.0, "evaluation": report.as_dict(),
    }  # fmt: skip
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(result, indent=1))
    console.print(f"{arm.name}, seed {arm.seed}: success {report.success:.3f}", highlight=False)
    return result


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """The comparison as Markdown."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        runs.setdefault(result["arm"], []).append(result)
    seeds = [run["seed"] for run in next(iter(runs.values()))]
    head = (f"success, seeds {seeds[0]} to {seeds[-1]}", "mean", "compared with", "difference")
    yield f"| | {' | '.join(head)} | steps |"
    yield "|---|---|---:|---|---:|---:|"
    for arm, own in runs.items():
        control = CONTROLS.get(arm)
        row: Row = row_of(arm, own, runs[control] if control else own)
        cells = [
            arm,
            " ".join(f"{value:.3f}" for value in row.success),
            f"{row.mean:.3f} ± {row.error:.3f}",
            control or "",
            f"{row.difference:+.3f} ± {row.difference_error:.3f}" if control else "",
            f"{row.steps:.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _word(value: Any) -> str:
    return json.dumps([str(v) for v in value]) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
