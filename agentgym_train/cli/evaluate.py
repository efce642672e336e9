"""`agentgym eval`: plays policies on the same tasks and reports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import (
    TokenFile,
    check_ending,
    check_folder_name,
    choice_option,
    server_token,
    with_option_groups,
)
from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.printable import one_line
from agentgym_train.config.options import OldOptions, SettingsOf, SettingsOptions
from agentgym_train.config.policy import PlayConfig, PolicyConfig
from agentgym_train.evaluation.paper import SUITES
from agentgym_train.evaluation.plan import (
    DEFAULT_SPLIT,
    EvalPlan,
    check_baseline,
    check_served,
    chosen_tasks,
    eval_store,
)
from agentgym_train.evaluation.policies import ModelOptions, PolicyWords
from agentgym_train.rollout.policy_name import POLICIES
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.runner import RolloutRunner

_ENV: Final = SettingsOptions(
    PlayConfig,
    only=("env", "env_kwargs", "servers", "wrappers", "horizon", "seed"),
    optional=("env",),
)
_POLICY: Final = SettingsOptions(PolicyConfig, without=("model", "dtype"))


@with_option_groups
def evaluate(
    of_env: Annotated[dict[str, Any], _ENV],
    policy: Annotated[
        list[str],
        typer.Option(help=f"{POLICIES}; LABEL=POLICY sets its name in the report; repeatable."),
    ],
    token_file: TokenFile = None,
    split: Annotated[
        str | None, typer.Option(help=f"Split of tasks. Default: {DEFAULT_SPLIT}.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Tasks instead of a split: an id, a file with one id per line, or a file of "
            "AgentGym's with item ids; repeatable."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        choice_option(
            SUITES,
            "Evaluate in several environments at once, with their tasks and turn limits, and with "
            "--env-kwargs by environment",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task, for pass@k.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the evaluation; an interrupted one in it is resumed. Default: in "
            "runs/eval."
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start over; an earlier evaluation in the folder is moved aside."
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Label of the policy that the others are compared with. Default: the first."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N tasks.")] = None,
    per_category: Annotated[
        int | None, typer.Option(min=1, help="Only the first N tasks of each category.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum concurrent episodes. Default: 256, and 16 requests to an endpoint."
        ),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the report to this JSON file.")
    ] = None,
    run: SettingsOf = None,
    *,
    of_policy: Annotated[dict[str, Any], _POLICY],
    model_options: ModelOptions,
    old: Annotated[None, OldOptions("--dtype", "--gateway", "--cuda-graphs")],
) -> None:
    """Evaluate policies on the same tasks.

    An interrupted evaluation resumes where it stopped.
    """
    if out is not None:
        check_folder_name("--out", out)
    if json_path is not None:
        check_ending("--json", json_path, ".json")
    words = PolicyWords(policy, of_policy, run, model_options, concurrency or 16)
    if suite is not None:
        from agentgym_train.evaluation.suite import SuitePlan, run_suite, world_ids

        _check_suite_options(of_env, token_file, split, tasks, baseline, json_path)
        suite_plan = SuitePlan(
            policies=words.by_world(world_ids()),
            env_kwargs=of_env.get("env_kwargs", {}), horizon=of_env.get("horizon"),
            samples=samples, seed=of_env.get("seed", 0), limit=limit, per_category=per_category,
            concurrency=concurrency or 256,
        )  # fmt: skip
        path = out or suite_plan.folder()
        with _resumable(path):
            run_suite(suite_plan, path, Console(), fresh=fresh)
        return
    settings = PlayConfig(**{"env": "", **of_env})
    found = words.policies(settings.env)
    check_baseline(found.labels, baseline)
    if not settings.env:
        raise ConfigError("name an environment with --env, or use --suite paper")
    instruction = found.settings.instruction
    with (
        RolloutRunner(
            settings.env,
            settings.servers,
            token=server_token(token_file, has_server=bool(settings.servers)),
            env_kwargs=settings.env_kwargs,
            wrappers=settings.wrappers,
            concurrency=concurrency or 256,
        ) as runner,
    ):
        check_served(settings.env, runner.card.env)
        ids, split = chosen_tasks(runner.tasks, tasks, split or DEFAULT_SPLIT, limit, per_category)
        instruction = runner.card.instruction if instruction is None else instruction
        plan = EvalPlan(
            env=runner.card.env, env_kwargs=settings.env_kwargs, env_version=runner.card.version,
            split=split, tasks=ids, samples=samples, horizon=settings.horizon,
            seed=settings.seed, policy=replace(found.settings, instruction=instruction),
            policies=found.plans, wrappers=settings.wrappers,
        )  # fmt: skip
        _carry_out(plan, found.specs, runner, out, fresh, baseline, json_path)


def _carry_out(
    plan: EvalPlan,
    specs: Mapping[str, PolicySpec],
    rollout_runner: RolloutRunner,
    out: Path | None,
    fresh: bool,
    baseline: str | None,
    json_path: Path | None,
) -> None:
    """Play the missing episodes and write the report."""
    from agentgym_train.evaluation.conclusion import (
        comparisons_of,
        conclude,
        reports_of,
        without_lost,
    )
    from agentgym_train.evaluation.play import play_policies

    console = Console()
    path = out or plan.folder()
    with eval_store(path, plan, fresh=fresh) as store:
        with _resumable(path):
            played = play_policies(store, plan, rollout_runner, specs, console)
        kept, lost = without_lost(played)
        if baseline in lost:
            raise ConfigError(f"the baseline {baseline} has no result: {lost[baseline]}")
        reports = reports_of(plan, kept)
        conclude(store, plan, reports, comparisons_of(plan, kept, baseline), console, json_path)
        for label, reason in lost.items():
            console.print(Text(f"{label}: {one_line(reason)}", "yellow"), soft_wrap=True)
        if lost:
            raise typer.Exit(1)


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Report Ctrl-C, and exit with its status."""
    try:
        yield
    except KeyboardInterrupt:
        Console().print(
            f"Interrupted. Finished episodes are in {path}. Resume with the same command.",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        raise typer.Exit(INTERRUPTED) from None


def _check_suite_options(
    of_env: Mapping[str, Any],
    token_file: Path | None,
    split: str | None,
    tasks: list[str] | None,
    baseline: str | None,
    json_path: Path | None,
) -> None:
    given = {
        "--env": of_env.get("env"), "--server": of_env.get("servers"), "--token-file": token_file,
        "--wrapper": of_env.get("wrappers"), "--split": split, "--tasks": tasks,
        "--baseline": baseline, "--json": json_path,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            raise ConfigError(f"a suite has its own environments and tasks; leave out {option}")
