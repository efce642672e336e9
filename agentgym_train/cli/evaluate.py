"""`agentgym eval`: plays policies on the same tasks and reports them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import (
    TokenFile,
    check_ending,
    check_folder_name,
    server_token,
    with_option_groups,
)
from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.printable import one_line
from agentgym_train.config.options import OldOptions, SettingsOf, SettingsOptions
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.evaluation.plan import (
    CandidateOptions,
    EvalPlan,
    Evaluation,
    check_baseline,
    eval_store,
)
from agentgym_train.rollout.policy_spec import POLICIES, PolicyName, PolicySpec
from agentgym_train.rollout.runner import RolloutRunner

_EPISODES: Final = SettingsOptions(Evaluation, without=("name", "published", "notes"))
_POLICY: Final = SettingsOptions(PolicyConfig, without=("model", "dtype"))

_KEYS: Final = {"openai": "OPENAI_API_KEY", "vllm": "VLLM_API_KEY"}


@dataclass(frozen=True, kw_only=True)
class _ModelOptions:
    """The options for models and their servers."""

    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer of a vllm: policy. Default: the model that the server loaded."
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the API key. Default: OPENAI_API_KEY or VLLM_API_KEY."
        ),
    ] = None
    requests_per_minute: Annotated[
        float, typer.Option(min=0.0, help="Rate limit of an openai: endpoint; 0 sets none.")
    ] = 0.0
    tokens_per_minute: Annotated[
        float,
        typer.Option(
            min=0.0, help="Rate limit of an openai: endpoint, including prompts; 0 sets none."
        ),
    ] = 0.0

    def spec(self, name: PolicyName, settings: PolicyConfig, concurrency: int) -> PolicySpec:
        """One policy; its model is not loaded yet."""
        variable = self.api_key_env or _KEYS.get(name.kind)
        key = os.environ.get(variable) if variable and name.kind in _KEYS else None
        return PolicySpec(
            replace(settings, model=str(name)), api_key=key, tokenizer=self.tokenizer,
            concurrency=concurrency, requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
        )  # fmt: skip


@with_option_groups
def evaluate(
    episodes: Annotated[dict[str, Any], _EPISODES],
    policy: Annotated[
        list[str],
        typer.Option(help=f"{POLICIES}; LABEL=POLICY sets its name in the report; repeatable."),
    ],
    token_file: TokenFile = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Evaluate in several environments: a YAML file with a list of evaluations, such "
            "as starter:suites/paper.yaml.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed for tasks, environments and sampling.")
    ] = 0,
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
    model_options: _ModelOptions,
    old: Annotated[None, OldOptions("--dtype", "--gateway", "--cuda-graphs")],
) -> None:
    """Evaluate policies on the same tasks.

    An interrupted evaluation resumes where it stopped.
    """
    if out is not None:
        check_folder_name("--out", out)
    if json_path is not None:
        check_ending("--json", json_path, ".json")
    words = CandidateOptions(
        policy, of_policy, run, partial(model_options.spec, concurrency=concurrency or 16)
    )
    concurrency = concurrency or 256
    if suite is not None:
        given = {
            "--env": episodes.get("env"), "--server": episodes.get("servers"),
            "--tasks": episodes.get("tasks"), "--token-file": token_file,
            "--wrapper": episodes.get("wrappers"), "--split": episodes.get("split"),
            "--baseline": baseline, "--json": json_path,
        }  # fmt: skip
        if others := [option for option, value in given.items() if value]:
            raise ConfigError(f"a suite has its own environments and tasks; leave out {others[0]}")
        _run_suite(suite, words, episodes, seed, out, fresh, concurrency)
        return
    check_baseline(words.labels, baseline)
    evaluation = Evaluation(**episodes)
    found = words.policies(evaluation.env)
    if not evaluation.env:
        raise ConfigError("name an environment with --env, or a file of several with --suite")
    token = server_token(token_file, has_server=bool(evaluation.servers))
    with evaluation.runner(concurrency, token) as runner:
        plan = evaluation.plan(runner, found.settings, found.found, seed)
        _carry_out(plan, runner, out, fresh, baseline, json_path)


def _run_suite(
    file: str,
    words: CandidateOptions,
    changes: Mapping[str, Any],
    seed: int,
    out: Path | None,
    fresh: bool,
    concurrency: int,
) -> None:
    """Read the suite, and run it with what the command line changes."""
    from agentgym_train.evaluation.suite import SuitePlan, read_suite, run_suite, with_options

    numbers = {name: changes.get(name) for name in ("horizon", "samples", "limit", "per_category")}
    suite = with_options(read_suite(file), changes.get("env_kwargs", {}), **numbers)
    plan = SuitePlan(
        file=file, suite=suite, labels=words.labels, seed=seed,
        policies={entry.key: words.policies(entry.env, entry.key) for entry in suite.evaluations},
        concurrency=concurrency,
    )  # fmt: skip
    path = out or plan.folder()
    with _resumable(path):
        run_suite(plan, path, Console(), fresh=fresh)


def _carry_out(
    plan: EvalPlan,
    rollout_runner: RolloutRunner,
    out: Path | None,
    fresh: bool,
    baseline: str | None,
    json_path: Path | None,
) -> None:
    """Play the missing episodes and write the report."""
    from agentgym_train.evaluation.play import play_policies
    from agentgym_train.evaluation.report import comparisons_of, reports_of, without_lost
    from agentgym_train.evaluation.tables import conclude

    console = Console()
    path = out or plan.folder()
    with eval_store(path, plan, fresh=fresh) as store:
        with _resumable(path):
            played = play_policies(store, plan, rollout_runner, console)
        kept, lost = without_lost(played)
        if baseline in lost:
            raise ConfigError(f"the baseline {baseline} has no result: {lost[baseline]}")
        reports = reports_of(plan, kept)
        conclude(
            store.path, plan, reports, comparisons_of(plan, kept, baseline), console, json_path
        )
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
