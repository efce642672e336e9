"""`agentgym collect`: plays episodes of a policy and stores them as training data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from agentgym_env.cli.options import TokenFile, check_folder_name, server_token, with_option_groups
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.options import (
    OLD_FILTERS,
    OldOptions,
    SettingsOf,
    SettingsOptions,
    settings_of,
)
from agentgym_train.config.policy import CollectConfig
from agentgym_train.rollout.policy_spec import POLICIES

_OPTIONS: Final = SettingsOptions(
    CollectConfig, without=("keep", "method", "dtype"), required={"model": f"{POLICIES}."}
)


@with_option_groups
def collect(
    given: Annotated[dict[str, Any], _OPTIONS],
    kept: Annotated[dict[str, Any], SettingsOptions(EpisodeFilter)],
    run: SettingsOf = None,
    token_file: TokenFile = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Maximum concurrent episodes.")] = 256,
    api_key_env: Annotated[
        str,
        typer.Option(help="Environment variable with the API key of an openai: or vllm: policy."),
    ] = "OPENAI_API_KEY",
    *,
    old: Annotated[None, OldOptions("--dtype", "--gateway", *OLD_FILTERS)],
) -> None:
    """Collect episodes of a policy as training data.

    An interrupted collection resumes where it stopped.
    """
    from agentgym_train.data.collect import collect as play

    check_folder_name("--out", Path(given["output_dir"]))
    values = settings_of(run, given, given["env"])
    config = CollectConfig(**values, keep=EpisodeFilter(**kept))
    key = os.environ.get(api_key_env)
    token = server_token(token_file, has_server=bool(config.servers))
    raise typer.Exit(play(config, Console(), concurrency=concurrency, api_key=key, token=token))
