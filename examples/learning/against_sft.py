"""Does RL beat as much more supervised training? RL and SFT of one policy at equal processor time.

    python examples/learning/against_sft.py --world courier --out runs/against-sft-courier
    python examples/learning/against_sft.py --world textcraft --out runs/against-sft

Every arm starts from the warm policy. SFT has more of the demonstrations that made the policy what
it is, or the expert's, for as much processor time as RL took in the run of the same seed.
Making demonstrations costs SFT nothing, playing counts for RL. All policies are evaluated on the
same held-out tasks at one horizon, with the worlds and draws of their seed. What is done is not
done again: the same command goes on after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import warm_start
from experiment import RESULT, Arm, final_evaluation, play
from figures import Row, row_of
from rich.console import Console

from agentgym_env.errors import AgentGymError
from agentgym_env.run_store import RunStore, run_metadata
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.read import read_config
from agentgym_train.config.rl import RLConfig
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.models.loading import load_policy, load_tokenizer, quiet_libraries
from agentgym_train.rollout.worlds import Worlds, open_worlds
from agentgym_train.training.sft import imitate
from examples import textcraft_warm_start

HERE = Path(__file__).resolve().parent
BEFORE, SAME, EXPERT = "the policy before", "more of the same imitation", "imitation of the expert"
RL, PLAIN = "GRPO", "GRPO without the options"
ARMS = (BEFORE, RL, PLAIN, SAME, EXPERT)
PILOT_STEPS = (10, 50)
"""Of SFT; the difference between the two tells what a step costs once all is warm."""

Rows = list[dict[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """A world: the run of RL, the plain one it is compared with, and the demonstrations."""

    config: Path
    words: tuple[str, ...]
    """Laid over the config."""
    plain: tuple[str, ...]
    """Further words of the run without the options; none leaves that arm out."""
    rows: Callable[[Any, bool, int, int], Rows]
    """(tokenizer, of the expert?, rows, seed) -> rows of SFT."""
    rates: dict[str, float]
    """Learning rate of each SFT arm: that of the stage of the warm-up which it repeats."""


def courier_rows(tokenizer: Any, of_expert: bool, count: int, seed: int) -> Rows:
    """Rows of the warm-up's last stage, or of the expert alone."""
    stage = warm_start.Stage("more", -(-count // 16), 0.0, 0.0 if of_expert else 0.5, 12)
    shown = warm_start.Shown("courier:Courier", (stage,))
    tokens = EpisodeTokenizer(tokenizer, PolicyConfig(instruction=""))
    episodes = warm_start.demonstrations(shown, stage, seed)
    rows = [training_row(row) for episode in episodes for row in tokens.rows(episode)]
    return rows[:count]


def textcraft_rows(tokenizer: Any, of_expert: bool, count: int, seed: int) -> Rows:
    """Rows of the warm-up's last stage, or of the stage before it, which imitates no mistakes."""
    name = "solve" if of_expert else "wander"
    stage = next(stage for stage in textcraft_warm_start.STAGES if stage.name == name)
    # Some rows are too long.
    stage = replace(stage, steps=-(-count * 5 // 4 // textcraft_warm_start.ROWS_PER_STEP))
    rows = textcraft_warm_start.rows_of(tokenizer, stage, seed)
    return list(islice(rows, count))


SETTINGS = {
    "courier": Setting(
        HERE / "courier.yaml", (f"model={HERE / 'warm_policy'}", "minibatches_per_rollout=4"), (),
        courier_rows, {SAME: 2e-3, EXPERT: 5e-3},
    ),
    "textcraft": Setting(
        HERE.parent / "train" / "textcraft" / "rl.yaml", (),
        ("minibatches_per_rollout=1", "admission=all", "sampler=uniform", "steps=108",
         "horizon.every=36", "save_every=20",
         "learning_rate=5e-4", "trainer_args={lr_scheduler_type: linear}"),
        textcraft_rows, {SAME: 5e-4, EXPERT: 1.5e-3},
    ),
}  # fmt: skip


def main() -> int:
    """Run what is missing, then show and write the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=SETTINGS, default="textcraft")
    parser.add_argument("--arms", help=f"of {', '.join(ARMS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--first-seed", type=int, help="default: 0 in TextCraft, 11 in courier")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and figures")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="laid over the config")
    args = parser.parse_intermixed_args()
    setting, console = SETTINGS[args.world], Console()
    names = [name.strip() for name in args.arms.split(",")] if args.arms else list(ARMS)
    if unknown := set(names) - set(ARMS):
        parser.error(f"--arms: {', '.join(sorted(unknown))} is none of {', '.join(ARMS)}")
    first = args.first_seed
    if first is None:
        first = 0 if args.world == "textcraft" else 11
    quiet_libraries()
    config = read_config(
        setting.config, [f"--{word}" for word in (*setting.words, *args.overrides)]
    )
    config = replace(config, eval=replace(config.eval, before=False, after=False))
    results: list[dict[str, Any]] = []
    try:
        with open_worlds(config) as worlds:
            for seed in range(first, first + args.seeds):
                runs = Runs(setting, replace(config, seed=seed), args.out, worlds)
                for name in ARMS:
                    if name in names and (name != PLAIN or setting.plain):
                        results.append(runs.result(name))
                        console.print(line(results[-1]), highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes.")
        return 130
    except AgentGymError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    text = "\n".join(table(results))
    (args.out / "against_sft.md").write_text(text + "\n", encoding="utf-8")
    (args.out / "against_sft.json").write_text(json.dumps(results, indent=1) + "\n")
    console.print(text, soft_wrap=True, markup=False, highlight=False)
    return 0


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one seed."""

    setting: Setting
    config: RLConfig
    out: Path
    worlds: Worlds

    def result(self, name: str) -> dict[str, Any]:
        """The figures of an arm, which is run if it was not."""
        arm = self._arm(name)
        kept = arm.result()
        if kept is not None:
            return kept
        if name in (RL, PLAIN):
            return self._rl(arm)
        return self._before(arm) if name == BEFORE else self._sft(arm, name == EXPERT)

    def _arm(self, name: str) -> Arm:
        config = replace(
            self.config, output_dir=str(self.out / f"{name.replace(' ', '-')}-{self.config.seed}")
        )
        if name == PLAIN:
            plain = [f"--{word}" for word in (*self.setting.words, *self.setting.plain)]
            values = read_config(self.setting.config, plain)
            config = replace(
                values, seed=config.seed, output_dir=config.output_dir,
                eval=replace(config.eval, before=False, after=False),
            )  # fmt: skip
        return Arm(name, config)

    def _rl(self, arm: Arm) -> dict[str, Any]:
        began = time.process_time()
        if play(arm, self.worlds) is None:
            raise KeyboardInterrupt
        spent = time.process_time() - began
        rows, _ = RunStore(arm.path).metrics()
        informative = [row["informative_groups"] for row in rows]
        return self._keep(
            arm,
            processor_seconds=round(spent, 1),
            informative_groups=round(sum(informative) / len(informative), 4),
        )

    def _before(self, arm: Arm) -> dict[str, Any]:
        RunStore.create(arm.path, run_metadata(arm.config.as_dict()))
        return self._evaluated(arm, arm.config.model, steps=0, processor_seconds=0.0)

    def _sft(self, arm: Arm, of_expert: bool) -> dict[str, Any]:
        budget = self.result(RL)["processor_seconds"]
        tokenizer = load_tokenizer(arm.config.model)
        short, long = (self._imitate(arm, tokenizer, of_expert, n)[1] for n in PILOT_STEPS)
        a_step = (long - short) / (PILOT_STEPS[1] - PILOT_STEPS[0])
        steps = max(1, round((budget - short) / a_step) + PILOT_STEPS[0])
        model, spent = self._imitate(arm, tokenizer, of_expert, steps)
        store = RunStore.create(arm.path, run_metadata(arm.config.as_dict()))
        model.save_pretrained(store.path / "model")
        tokenizer.save_pretrained(store.path / "model")
        return self._evaluated(arm, None, steps=steps, processor_seconds=round(spent, 1))

    def _imitate(self, arm: Arm, tokenizer: Any, of_expert: bool, steps: int) -> tuple[Any, float]:
        """The policy after so many steps of SFT, and the processor seconds they took."""
        rows_per_step = warm_start.ROWS_PER_STEP
        seed = 1000 + arm.config.seed
        rows = self.setting.rows(tokenizer, of_expert, steps * rows_per_step, seed)
        settings = SFTConfig(
            model=arm.config.model, data=[arm.name], output_dir=str(self.out / "sft"),
            learning_rate=self.setting.rates[arm.name],
            trainer_args={"warmup_steps": min(20, steps // 5), "adam_beta2": 0.98,
             "weight_decay": 0.01},
            rows_per_step=rows_per_step, steps=steps, seed=seed,
        )  # fmt: skip
        model, _ = load_policy(arm.config.model)
        began = time.process_time()
        imitate(model, tokenizer, rows, settings)
        return model, time.process_time() - began

    def _evaluated(self, arm: Arm, model: str | None, **figures: Any) -> dict[str, Any]:
        report = final_evaluation(arm, self.worlds, model)
        RunStore.open(arm.path).write_json(
            RESULT,
            {
                "arm": arm.name, "seed": arm.config.seed, "success": report["success"],
                "episodes": report["episodes"], "lost": report["lost"], "env_steps": 0,
                "train_seconds": 0.0, "evaluation": report, "wanted": arm.wanted,
            },
        )  # fmt: skip
        return self._keep(arm, **figures)

    def _keep(self, arm: Arm, **figures: Any) -> dict[str, Any]:
        store = RunStore.open(arm.path)
        store.write_json(RESULT, {**(store.read_json(RESULT) or {}), **figures})
        kept = arm.result()
        assert kept is not None
        return kept


def line(result: dict[str, Any]) -> str:
    """One arm, for the screen."""
    return (
        f"{result['arm']}, seed {result['seed']}: success {result['success']:.3f}, "
        f"{result['steps']} steps, {result['env_steps']:,} environment steps, "
        f"{result['processor_seconds']:.0f} s of processor time"
    )


def table(results: list[dict[str, Any]]) -> list[str]:
    """The comparison as Markdown; differences are taken seed by seed."""
    arms = list(dict.fromkeys(result["arm"] for result in results))
    runs = {arm: [result for result in results if result["arm"] == arm] for arm in arms}
    seeds = [run["seed"] for run in runs[arms[0]]]
    first = f"success, seeds {seeds[0]} to {seeds[-1]}"
    lines = [
        f"| | {first} | mean | GRPO above it | depths | environment steps | processor s |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for arm in arms:
        row: Row = row_of(arm, runs[arm], runs[arm])
        above = ""
        if RL in runs and arm != RL and len(runs[RL]) == len(runs[arm]):
            paired = row_of(RL, runs[RL], runs[arm])
            above = f"{paired.difference:+.3f} ± {paired.difference_error:.3f}"
        cells = [
            arm,
            " ".join(f"{value:.3f}" for value in row.success),
            f"{row.mean:.3f} ± {row.error:.3f}",
            above,
            categories(runs[arm]),
            f"{row.env_steps:,.0f}",
            f"{sum(run['processor_seconds'] for run in runs[arm]) / len(runs[arm]):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def categories(runs: list[dict[str, Any]]) -> str:
    """Mean success of each kind of task."""
    kinds = runs[0]["evaluation"]["categories"]
    means = {
        kind: sum(run["evaluation"]["categories"][kind]["success"] for run in runs) / len(runs)
        for kind in kinds
    }
    return " ".join(f"{mean:.2f}" for mean in means.values())


if __name__ == "__main__":
    sys.exit(main())
