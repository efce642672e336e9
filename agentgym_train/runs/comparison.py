"""What a run has learned, for the terminal: an episode before and after, and other policies.

The other policies are those of `eval.compare`, on the episodes of the evaluation after training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Final

from rich.console import Console

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.worlds import World, env_file_name
from agentgym_train.evaluation.episode_lines import episode_lines, solved_again
from agentgym_train.evaluation.plan import label_file_name
from agentgym_train.evaluation.play import evaluate, summarize
from agentgym_train.evaluation.report import Reports, compare, figures_of
from agentgym_train.evaluation.tables import comparison_grid
from agentgym_train.models.available import check_available
from agentgym_train.rollout.policy_spec import PolicySpec, parse_labelled
from agentgym_train.rollout.runner import RolloutRunner

BEFORE: Final = "before training"
AFTER: Final = "after training"

Episodes = Mapping[str, Sequence[Trajectory]]
"""Label of a policy -> its episodes."""


def compared_policies(config: RunConfig) -> dict[str, PolicySpec]:
    """Label -> policy of `eval.compare`, with the settings of the run; a model uses the engine hf.

    Raises `ConfigError` for an invalid policy.
    """
    found: dict[str, PolicySpec] = {}
    if not config.eval.compare:
        return found
    shared = {f.name: getattr(config, f.name) for f in fields(PolicyConfig)}
    settings = PolicyConfig(**shared | {"engine": "hf", "temperature": config.eval.temperature})
    for text in config.eval.compare:
        label, name = parse_labelled(text)
        if label in (*found, BEFORE, AFTER):
            raise ConfigError(f"eval.compare: {label!r} is another policy; choose another label")
        found[label] = PolicySpec(replace(settings, model=str(name)))
        if name.kind == "hf":
            check_available(name.model)
    return found


def show_learning(
    config: RunConfig,
    world: World,
    runner: RolloutRunner,
    store: RunStore,
    console: Console,
    before: Reports,
    after: Reports,
) -> None:
    """Show an episode that training has changed to a success, and the policies of `eval.compare`.

    Success and differences of these are written to comparison.json.
    """
    suffix = f"-{env_file_name(world.env)}" if len(config.worlds) > 1 else ""
    first, last = (store.trajectories(f"eval_{name}{suffix}")[0] for name in ("before", "after"))
    if (pair := solved_again(first, last)) is not None:
        show_episode("It failed before training", pair[0], console)
        show_episode("and succeeds after training", pair[1], console)
    played = _evaluated(config, world, runner, store, console, suffix)
    if not played:
        return
    own = after[runner.env_id]
    reports = {
        label: summarize(episodes, split=own.split, samples=own.samples, seed=own.seed)
        for label, episodes in played.items()
    }
    others: dict[str, Sequence[Trajectory]] = dict(played)
    if runner.env_id in before and first:
        reports = {BEFORE: before[runner.env_id], **reports}
        others = {BEFORE: first, **others}
    figures = [figures_of(episode) for episode in last]
    against = {
        label: compare(figures, [figures_of(episode) for episode in episodes], own.seed)
        for label, episodes in others.items()
    }
    console.print(comparison_grid({**reports, AFTER: own}, against, AFTER).as_table())
    values = {
        label: {"success": report.success, "success_interval": report.success_interval}
        | ({"difference": asdict(against[label])} if label in against else {})
        for label, report in {**reports, AFTER: own}.items()
    }
    store.write_json(f"comparison{suffix}.json", values)


def show_episode(title: str, episode: Trajectory, console: Console) -> None:
    """Show an episode, a line per turn."""
    count = len(episode.turns)
    turns = "1 turn" if count == 1 else f"{count} turns"
    lines = [f"{title} ({episode.task}, {turns}):", *episode_lines(episode)]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _evaluated(
    config: RunConfig,
    world: World,
    runner: RolloutRunner,
    store: RunStore,
    console: Console,
    suffix: str,
) -> dict[str, list[Trajectory]]:
    """Label -> the episodes of each policy of `eval.compare`; what is stored is not repeated."""
    card, found = runner.card, {}
    for label, spec in compared_policies(config).items():
        file = f"eval_compare-{label_file_name(label)}{suffix}"
        found[label], _ = store.trajectories(file)
        if found[label]:
            continue
        settings = spec.config
        if world.instruction is not None:
            settings = replace(settings, instruction=world.instruction)
        spec = replace(spec, config=settings)
        with spec.actors(card.instruction, runner.run, card.tools) as actors:
            _, found[label] = evaluate(
                runner,
                actors,
                split=world.eval.split,
                horizon=world.eval.horizon,
                samples=world.eval.samples,
                per_category=world.eval.per_category or None,
                instruction=settings.system_prompt(card.instruction),
                console=console,
                label=label,
            )
        store.replace_trajectories(file, found[label])
    return found
