"""One policy in three worlds against three specialists, at equal total environment steps.

    python examples/several_worlds/study.py --out runs/several_worlds
    python examples/several_worlds/study.py --report --out runs/several_worlds

Finished runs are kept, and an interrupted one continues from its last checkpoint: the same command
resumes the study. It ends with `summary.json` and `tables.md` of the runs that are there. A folder
with a copy of a `summary.json` does not repeat its runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from agentgym_env.errors import AgentGymError, BadRequest, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train import AgentTrainer
from agentgym_train.evaluation.play import evaluate
from agentgym_train.models.loading import quiet_libraries
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.callbacks import StopAtEnvSteps

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.several_worlds.setting import (
    ENV_STEPS,
    ENVS,
    EVAL_TASKS,
    HERE,
    JOINT,
    LARGE,
    SEEDS,
    START,
    WORLDS,
    Run,
    run_config,
    runs,
    world_config,
)
from examples.several_worlds.tables import markdown

RESULT = "result.json"
SUMMARY = "summary.json"


def main() -> int:
    """Run what is missing, then write the summary and the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/several_worlds"))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument(
        "--arms", default="", help=f"only these: {START}, {JOINT}, a world, a world{LARGE}"
    )
    parser.add_argument(
        "--env-steps", type=int, default=ENV_STEPS, help="of a joint run; a specialist has a third"
    )
    parser.add_argument("--report", action="store_true", help="only the tables of what is there")
    args = parser.parse_args()
    console = Console()
    quiet_libraries()
    # Sums depend on the number of threads in their last bits, and so do sampled tokens.
    torch.set_num_threads(1)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        run
        for run in runs([int(seed) for seed in args.seeds.split(",")], args.env_steps)
        if not args.arms or run.arm in args.arms.split(",")
    ]
    try:
        check_budget(out, args.env_steps)
        for run in wanted if not args.report else []:
            if run.name not in finished(out):
                play(run, out, console)
                write(out, args.env_steps)
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes.")
        return 130
    except AgentGymError as error:
        console.print(f"[red]{error}[/]")
        return 2
    console.print(write(out, args.env_steps), highlight=False, soft_wrap=True)
    return 0


def check_budget(out: Path, env_steps: int) -> None:
    """Raise `ConfigError` if the runs of a folder had another number of environment steps."""
    before = summary_of(out)["env_steps"]
    if before and before[JOINT] != env_steps:
        raise ConfigError(
            f"the joint runs in {out} have {before[JOINT]} environment steps, not {env_steps}; "
            "choose another --out, or pass that number as --env-steps"
        )


def summary_of(out: Path) -> dict[str, Any]:
    """The summary of a folder; raises `BadRequest` for a file that is none."""
    summary = RunStore(out).read_json(SUMMARY)
    if summary is None:
        return {"env_steps": {}, "runs": []}
    if not {"env_steps", "runs"} <= summary.keys():
        raise BadRequest(f"{out / SUMMARY} is no summary of this study; restore or remove it")
    return summary


def finished(out: Path) -> dict[str, dict[str, Any]]:
    """Name -> result of the finished runs, also of those that only the summary has."""
    found = {row["name"]: row for row in summary_of(out)["runs"]}
    for folder in out.glob("*"):
        result = RunStore(folder).read_json(RESULT)
        if result is not None:
            found[folder.name] = result
    order = [run.name for run in runs(sorted({row["seed"] for row in found.values()}))]
    return {name: found[name] for name in order if name in found}


def play(run: Run, out: Path, console: Console) -> None:
    """Train and evaluate a policy, and store its result."""
    began = time.monotonic()
    training = train(run, out) if run.arm != START else {}
    model = str(out / run.name / "model") if training else str(HERE / "policy")
    evaluations = {world: evaluated(world, model, run.seed) for world in run.worlds}
    result = {
        "name": run.name,
        "arm": run.arm,
        "seed": run.seed,
        **training,
        "evaluations": evaluations,
        "seconds_of_last_start": round(time.monotonic() - began),
    }
    folder = out / run.name
    folder.mkdir(exist_ok=True)
    RunStore(folder).write_json(RESULT, result)
    shown = ", ".join(f"{world} {found['success']:.3f}" for world, found in evaluations.items())
    console.print(f"[bold]{run.name}[/]: {shown} ({result['seconds_of_last_start']} s)")


def train(run: Run, out: Path) -> dict[str, Any]:
    """Train to the budget, from the last checkpoint if there is one; the figures of training."""
    config = run_config(run, out)
    begun = (out / run.name / "run.json").is_file()
    with AgentTrainer(args=config, console=Console(quiet=True)) as trainer:
        trainer.add_callback(StopAtEnvSteps(run.env_steps))
        trainer.train(resume_from_checkpoint=begun)
    rows, _ = RunStore.open(out / run.name).metrics()
    # The metrics of a run in one world have no world in their names.
    name = {world: f"/{ENVS[world]}" if run.arm == JOINT else "" for world in run.worlds}
    return {
        "steps": len(rows),
        "env_steps": int(sum(row["env_steps"] for row in rows)),
        "sampled_tokens": int(sum(row["sampled_tokens"] for row in rows)),
        "train_seconds": round(sum(row["seconds"] for row in rows), 1),
        "lost": int(sum(row["lost"] for row in rows)),
        "worlds": {
            world: {
                "env_steps": int(sum(row.get(f"env_steps{name[world]}", 0) for row in rows)),
                "success": [_rounded(row.get(f"success{name[world]}")) for row in rows],
                "informative_groups": _mean(
                    [row.get(f"informative_groups{name[world]}") for row in rows]
                ),
            }
            for world in run.worlds
        },
        "entropy": [_rounded(row.get("entropy")) for row in rows],
    }


def evaluated(world: str, model: str, seed: int) -> dict[str, Any]:
    """The figures of a policy on held-out tasks; all policies of a seed play the same episodes."""
    config = world_config(world, model, seed)
    began = time.monotonic()
    with RolloutRunner(config.env, env_kwargs=config.env_kwargs) as runner:
        policy = make_policy(config)
        report, episodes = evaluate(
            runner,
            policy.actors(config.eval.temperature),
            split=config.eval.split,
            horizon=config.worlds[0].eval.horizon,
            samples=config.eval.samples,
            seed=seed,
            limit=EVAL_TASKS,
            instruction=policy.instruction,
        )
        runner.run(policy.close())
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, []).append(episode.success)
    return {
        "success": _rounded(report.success),
        "turns": _rounded(report.turns),
        "tokens": _rounded(report.tokens),
        "invalid_actions": _rounded(report.invalid_actions),
        "outcomes": report.outcomes,
        "episodes": report.episodes,
        "lost": report.lost,
        "by_task": [fmean(found) for found in by_task.values()],
        "seconds": round(time.monotonic() - began, 1),
    }


def write(out: Path, env_steps: int = ENV_STEPS) -> str:
    """Write the summary and the tables; returns the tables."""
    found = list(finished(out).values())
    head = {
        "command": "python examples/several_worlds/study.py --out FOLDER",
        "env_steps": {JOINT: env_steps, "specialist": env_steps // len(WORLDS)},
    }
    rows = ",\n".join(json.dumps(row) for row in found)
    text = json.dumps(head, indent=1)
    (out / SUMMARY).write_text(f'{text[:-2]},\n "runs": [\n{rows}\n]\n}}\n', encoding="utf-8")
    tables = "\n".join(markdown(found))
    (out / "tables.md").write_text(tables + "\n", encoding="utf-8")
    return tables


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(fmean(known)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    sys.exit(main())
