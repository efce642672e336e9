"""`agentgym play`: plays an environment in the terminal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated, Final, Protocol

import gymnasium
import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.causes import in_one_line
from agentgym_env.cli.options import EnvId, Server, TokenFile, server_token
from agentgym_env.errors import EpisodeFailure
from agentgym_env.printable import as_text, one_line
from agentgym_env.registry import find, full_id
from agentgym_env.remote import INPROCESS, make_env

try:
    import readline
except ModuleNotFoundError:  # Windows has none: there is no completion then
    readline = None  # type: ignore[assignment]

_HELP: Final = "Tab completes an action, ? lists them, ! shows the expert's, Ctrl-D exits."
_UNLISTED: Final = "This environment does not list its actions."
_MOST_SHOWN: Final = 100_000
"""Characters of an observation."""


class Playable(Protocol):
    """An environment in this process or on a server."""

    def available_actions(self) -> list[str] | None:
        """The available actions."""
        ...

    def expert_action(self) -> str | None:
        """The oracle's next action."""
        ...


def play(
    env_id: EnvId,
    task: Annotated[str | None, typer.Option(help="Task id. Default: a random task.")] = None,
    split: Annotated[str | None, typer.Option(help="Split to draw the task from.")] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the first episode; each further episode adds 1.")
    ] = 0,
    server: Server = INPROCESS,
    token_file: TokenFile = None,
) -> None:
    """Play an environment in the terminal."""
    console = Console(highlight=False)
    token = server_token(token_file, has_server=server != INPROCESS)
    with in_one_line(find(full_id(env_id)).entry_point, env_id):
        _play(console, make_env(full_id(env_id), server, token=token), task, split, seed)


def _play(
    console: Console, env: gymnasium.Env[str, str], task: str | None, split: str | None, seed: int
) -> None:
    completer = ActionCompleter()
    completer.install()
    console.print(as_text(getattr(env, "instruction", ""), "bold"))
    console.print(f"[dim]{_HELP}[/]")
    named = {key: value for key, value in (("task", task), ("split", split)) if value is not None}
    try:
        for episode_seed in itertools.count(seed):
            _play_episode(console, env, completer, episode_seed, named)
            if not sys.stdin.isatty():
                break
            input("Press Enter for another episode, Ctrl-D to exit. ")
    except (EOFError, KeyboardInterrupt):
        console.print()
    finally:
        env.close()


class ActionCompleter:
    """Completes a whole line to one of the available actions."""

    def __init__(self) -> None:
        self.actions: Sequence[str] = ()

    def install(self) -> None:
        """Use this completer for the Tab key, on whole lines."""
        if readline is None:
            return
        readline.set_completer(self.complete)
        readline.set_completer_delims("")
        # libedit, which stands in for readline on macOS, has its own syntax for this.
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

    def complete(self, text: str, number: int) -> str | None:
        """The `number`-th action that begins with `text`, readline's way."""
        fitting = [action for action in self.actions if action.startswith(text)]
        return fitting[number] if number < len(fitting) else None


def _play_episode(
    console: Console,
    env: gymnasium.Env[str, str],
    completer: ActionCompleter,
    seed: int,
    named: dict[str, str],
) -> None:
    playable: Playable = env  # type: ignore[assignment]
    observation, info = env.reset(seed=seed, options=named)
    # The id may contain the answer, so it is shown at the end.
    where = f"task {one_line(str(info['task']))}, seed {seed}"
    console.print(Text(f"\nseed {seed}", "dim"))
    total = 0.0
    while True:
        console.print(as_text(observation, most=_MOST_SHOWN), soft_wrap=True)
        completer.actions = playable.available_actions() or ()
        action = _ask(console, playable, completer)
        try:
            observation, reward, terminated, truncated, info = env.step(action)
        except EpisodeFailure as failure:
            console.print(Text(failure.kind, "bold red"), as_text(str(failure)))
            return
        total += float(reward)
        if terminated or truncated:
            console.print(as_text(observation, most=_MOST_SHOWN), soft_wrap=True)
            result = "[bold green]solved[/]" if info["success"] else "[bold red]not solved[/]"
            console.print(f"{result} after {info['turn']} turns, return {total:g}")
            console.print(Text(where, "dim"))
            return


def _ask(console: Console, playable: Playable, completer: ActionCompleter) -> str:
    """Read the next action; answer `?` and `!` before it."""
    while True:
        line = input("> ")
        if line == "?":
            listed = "\n".join(map(one_line, completer.actions))
            console.print(Text(listed or _UNLISTED), soft_wrap=True)
        elif line == "!":
            try:
                advice = playable.expert_action()
            except (NotImplementedError, ValueError):
                advice = "This environment has no expert."
            console.print(as_text(advice or "The expert has no further action."), soft_wrap=True)
        else:
            return line
