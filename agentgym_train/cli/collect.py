"""`agentgym collect`: plays episodes of a policy and stores them as training data."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentgym_env.cli.options import check_folder_name, with_option_groups
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.options import (
    EnvOptions,
    FilterOptions,
    MixOptions,
    PolicyOptions,
    given_options,
)
from agentgym_train.rollout.policy_name import POLICIES


@with_option_groups
def collect(
    context: typer.Context,
    env_options: EnvOptions,
    policy: Annotated[str, typer.Option(help=f"{POLICIES}.")],
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
    from agentgym_train.data.collect import collect as play
    from agentgym_train.data.collection import CollectConfig

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
