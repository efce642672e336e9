"""The `agentgym` command line.

Other packages add commands through the entry-point group `agentgym.commands`. Only the module of
the command that is called is imported.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from agentgym_env.entry_points import COMMANDS, load_named, plugins
from agentgym_env.errors import INTERRUPTED, AgentGymError, MissingExtra

_OWN: Final = {
    "envs": "agentgym_env.cli.envs:envs",
    "new": "agentgym_env.cli.new:new",
    "check": "agentgym_env.cli.check:check",
    "play": "agentgym_env.cli.play:play",
    "replay": "agentgym_env.cli.replay:replay",
}
"""The commands of this package: `module:function`."""
_PROGRAM: Final = "agentgym"
_COMPLETES: Final = "_AGENTGYM_COMPLETE"
"""The variable that the script of `--show-completion` sets."""
_DISK: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk."""
_PLACE: Final = {
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "choose another place, or change its permissions",
}
"""Errors of a place that the user chose -> what to do."""
SUMMARIES: Final = {
    "envs": "List the registered environments.",
    "new": "Create a package with a new environment.",
    "check": "Run the conformance checks of an environment, or attack its rewards.",
    "play": "Play an environment in the terminal.",
    "replay": "Repeat recorded episodes and compare the results.",
    "serve": "Serve an environment over HTTP.",
    "up": "Start a fleet of servers on a Ray cluster, or change a running one.",
    "status": "Show the servers of the fleets on a Ray cluster.",
    "down": "Stop a fleet of servers, or free one of its machines.",
    "bench": "Measure steps per second and latency of an environment.",
    "index": "Build a search index of a corpus.",
    "serve-retriever": "Serve a search index over HTTP.",
    "sites": "Explore the embedded web sites in the browser.",
    "train": "Train a policy by RL, SFT, DPO or AgentEvol.",
    "eval": "Evaluate policies on the same tasks.",
    "audit": "Check that a model is trained on exactly the tokens that it samples.",
    "collect": "Collect episodes of a policy as training data.",
    "gateway": "Serve a model to a black-box agent for one episode, and show what was recorded.",
    "export": "Export episodes to files for training with other libraries.",
    "import": "Import episodes from files, including those of AgentGym.",
    "models": "List locally available models, or save one to a folder.",
    "view": "View runs and trajectories in the browser.",
}
"""One line for each command, so that listing the commands imports none of them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an `AgentGymError` is printed as one line, with its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _COMPLETES in os.environ:
        words = _words_so_far()
    with _ending_on_errors(words):
        make_app(words)(words, prog_name=_PROGRAM if _COMPLETES in os.environ else None)


def _words_so_far() -> list[str]:
    """The words of a line that the shell wants to complete."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


def make_app(words: Sequence[str]) -> typer.Typer:
    """The command line for `words`, with only the command that is called imported."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(_options)
    called = _called(words)
    for name, load in _commands().items():
        if name == called:
            function = load()
            settings = getattr(function, "context_settings", None)
            kind = getattr(function, "command_class", None)
            app.command(name, cls=kind, context_settings=settings)(function)
        else:
            app.command(name, help=SUMMARIES.get(name, ""))(_not_called)
    return app


def _commands() -> dict[str, Callable[[], Any]]:
    """What loads each command: this package's, then those of others by name."""
    own = {name: partial(load_named, where, search_here=False) for name, where in _OWN.items()}
    return own | {point.name: point.load for point in plugins(COMMANDS)}


@contextmanager
def _ending_on_errors(words: Sequence[str]) -> Iterator[None]:
    try:
        with _naming_the_extra(_called(words)):
            yield
    except KeyboardInterrupt:
        if "--debug" in words:
            raise
        sys.exit(INTERRUPTED)
    except (AgentGymError, RecursionError, OSError, ExceptionGroup) as error:
        full = _full_disk(error)
        place = _misplaced(error)
        known = full or place or isinstance(error, AgentGymError | RecursionError)
        if "--debug" in words or not known:
            raise
        message = place or str(error)
        if full is not None:
            message = f"{full}. Free some space; what is stored can be resumed"
        if isinstance(error, RecursionError):
            message = f"an input is nested too deeply ({message}); --debug shows where it is read"
        if isinstance(error, MissingExtra):
            from agentgym_env.cli.extras import with_all_extras

            message = with_all_extras(message, _called(words), words)
        if config := next((word for word in words if word.endswith((".yaml", ".yml"))), ""):
            # Errors do not know which file the user named.
            message = message.replace("agentgym train CONFIG", f"agentgym train {config}")
        _print_error(message)
        sys.exit(getattr(error, "exit_status", 2))


def _misplaced(error: BaseException) -> str | None:
    """What is wrong with the place of an error's file, if that is what is wrong."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno == errno.ENAMETOOLONG:
        return f"the path {str(error.filename)[:200]}... is too long"
    if error.errno not in _PLACE:
        return None
    return f"{error.filename}: {error.strerror}; {_PLACE[error.errno]}"


def _print_error(message: str) -> None:
    # Only an error needs rich, which each server's process would import.
    from rich.console import Console
    from rich.text import Text

    from agentgym_env.printable import printable

    text = Text.assemble(("error:", "bold red"), " ", printable(message))
    Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def _full_disk(error: BaseException) -> OSError | None:
    """The error of a full disk that an error is or contains."""
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_full_disk, error.exceptions)), None)
    return error if isinstance(error, OSError) and error.errno in _DISK else None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentgym-sdk {version('agentgym-sdk')}")
        raise typer.Exit


def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Text environments for LLM agents: serve, play, evaluate and train."""


def _not_called() -> None:
    """Represents a command that is listed and not called."""


def _called(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


@contextmanager
def _naming_the_extra(command: str) -> Iterator[None]:
    """Name the extra that provides a module that a command could not import."""
    try:
        yield
    except ModuleNotFoundError as error:
        from agentgym_env.cli.extras import EXTRAS

        if command not in EXTRAS or (error.name or "").startswith("agentgym"):
            raise
        raise MissingExtra(
            f"agentgym {command} needs {error.name}: pip install 'agentgym-sdk[{EXTRAS[command]}]'"
        ) from error
