"""`agentgym replay`: repeats recorded episodes and shows the first difference of each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import gymnasium
import typer
from rich.console import Console
from rich.text import Text

from agentgym_env.cli.options import Server, TokenFile, json_object, server_token
from agentgym_env.errors import BadRequest
from agentgym_env.printable import one_line, printable
from agentgym_env.registry import full_id
from agentgym_env.remote import INPROCESS, make_env
from agentgym_env.replay import Difference, Replayed, is_replayable, replay_episode
from agentgym_env.run_store import BrokenLine, RunStore, each_line, readable_files
from agentgym_env.trajectory import Trajectory
from agentgym_env.trust import Trust, names_in, require_trust
from agentgym_env.wrappers import WrapperSpec, wrap

_T = TypeVar("_T", list[Any], dict[str, Any])

_MOST_SHOWN: Final = 10
"""Maximum differing episodes that are shown; the others are counted."""

_MOST_LINES: Final = 40

_AROUND: Final = 60

_WIDTH: Final = 300


@dataclass(frozen=True, slots=True)
class Address:
    """Where the recorded episodes are."""

    files: list[Path]
    line: int | None = None
    """Of the only file, from 1; None for all lines."""

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.files[0].parent.parent


def replay(
    trajectory: Annotated[
        str,
        typer.Argument(
            help="A run folder, a file RUN/trajectories/FILE.jsonl, or one episode FILE.jsonl:LINE."
        ),
    ],
    task: Annotated[str | None, typer.Option(help="Replay only episodes of this task.")] = None,
    index: Annotated[
        int | None, typer.Option(min=1, help="Replay only the N-th of these episodes.")
    ] = None,
    env: Annotated[
        str | None, typer.Option(help="Environment to use instead of the recorded one.")
    ] = None,
    env_kwargs: Annotated[
        str | None,
        typer.Option(
            help="Keyword arguments of the environment, as a JSON object. Default: the run's."
        ),
    ] = None,
    server: Server = INPROCESS,
    token_file: TokenFile = None,
    trust: Trust = False,
) -> None:
    """Repeat recorded episodes and compare the results.

    Takes the recorded actions again. The exit status is 1 if an observation, a reward or the end
    of an episode differs.
    """
    console = Console(highlight=False)
    address = parse_address(trajectory)
    token = server_token(token_file, has_server=server != INPROCESS)
    wrappers = _stored(address.run, "wrappers", list)
    names = names_in({"wrappers": wrappers})
    if env_kwargs is not None:
        kwargs = json_object("--env-kwargs", env_kwargs)
    else:
        kwargs = _stored(address.run, "env_kwargs", dict) if server == INPROCESS else {}
    stored_kwargs = kwargs if env_kwargs is None else {}
    if env is not None:
        names |= names_in({"env": env, "env_kwargs": stored_kwargs}, keys=["env_kwargs"])
    elif not trust:
        names |= _names_of_episodes(_chosen(address, task, index), stored_kwargs)
    require_trust(trajectory, names, trusted=trust)
    seen = _Seen(console)

    def checked(name: str) -> str:
        # Again, and of what is used: the file may have changed since.
        names = names_in({"env": name, "env_kwargs": stored_kwargs})
        require_trust(trajectory, names, trusted=trust)
        return name

    with _Worlds(env, kwargs, server, token, wrappers, checked) as worlds:
        for place, found in _chosen(address, task, index):
            if isinstance(found, BrokenLine):
                seen.broken(place, found)
            elif not is_replayable(found):
                seen.lost += 1
            else:
                seen.add(place, found, replay_episode(worlds.env_of(found), found))
    if not seen.episodes + seen.lost + seen.unreadable:
        raise BadRequest(f"no episode in {trajectory} matches; check --task and --index")
    seen.sum_up()
    if seen.differing or seen.unreadable:
        sys.exit(1)


def parse_address(text: str) -> Address:
    """Parse the address of episodes; raises `BadRequest` if there are none."""
    name, colon, line = text.rpartition(":")
    if colon and line.isdecimal() and int(line) and not Path(text).exists():
        if not Path(name).is_file():
            raise BadRequest(f"no file {name}; an episode is RUN/trajectories/FILE.jsonl:LINE")
        return Address([Path(name)], int(line))
    path = Path(text)
    if path.is_file():
        return Address([path])
    files, _ = readable_files(RunStore.open(path).path, "trajectories")
    if not files:
        raise BadRequest(f"{path} has no episodes: there is no trajectories/*.jsonl")
    return Address(files)


def describe(difference: Difference) -> Iterator[str]:
    """A difference in lines for a terminal."""
    where = f"turn {difference.turn}" if difference.turn else "the first observation"
    action = f", after {one_line(difference.action, _WIDTH)!r}" if difference.action else ""
    yield f"  {where}{action}: the {difference.what}"
    if difference.what == "observation":
        yield from _diff(difference.stored, difference.replayed)
    else:
        yield f"  - stored:   {one_line(difference.stored, _WIDTH)}"
        yield f"  + replayed: {one_line(difference.replayed, _WIDTH)}"


class _Worlds:
    """The environments of the episodes, one per id."""

    def __init__(
        self,
        env: str | None,
        kwargs: Mapping[str, Any],
        server: str,
        token: str | None,
        wrappers: Sequence[WrapperSpec],
        checked: Callable[[str], str],
    ) -> None:
        """`checked` raises for an environment that an episode may not name."""
        self._checked = checked
        self._env, self._kwargs, self._server = env, kwargs, server
        self._token, self._wrappers = token, wrappers
        self._made: dict[str, gymnasium.Env[str, str]] = {}

    def env_of(self, trajectory: Trajectory) -> gymnasium.Env[str, str]:
        """The environment that an episode is of."""
        name = self._env or self._checked(trajectory.env)
        if name not in self._made:
            env = make_env(full_id(name), self._server, token=self._token, **self._kwargs)
            self._made[name] = wrap(env, self._wrappers)
        return self._made[name]

    def __enter__(self) -> _Worlds:
        return self

    def __exit__(self, *error: object) -> None:
        for env in self._made.values():
            env.close()


class _Seen:
    """Counts and reports the replayed episodes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.episodes = self.turns = self.differing = self.lost = self.unreadable = 0

    def add(self, place: str, trajectory: Trajectory, replayed: Replayed) -> None:
        """Count an episode; the first that differ are shown."""
        self.episodes += 1
        self.turns += replayed.turns
        if replayed.difference is None:
            return
        self.differing += 1
        if self.differing <= _MOST_SHOWN:
            self._print(
                Text.assemble(
                    (f"{one_line(place)} differs", "bold red"),
                    f", task {one_line(trajectory.task, 100)}, seed {trajectory.seed}",
                )
            )
            for line in describe(replayed.difference):
                self._print(Text(line))

    def broken(self, place: str, line: BrokenLine) -> None:
        """Count and show a line that is not an episode."""
        self.unreadable += 1
        self._print(Text(f"{one_line(place)} cannot be read: {one_line(line.reason)}", "yellow"))

    def sum_up(self) -> None:
        """Print the summary."""
        same = self.episodes - self.differing
        parts = [f"{same} of {self.episodes} episodes agree ({self.turns} turns repeated)"]
        if self.differing > _MOST_SHOWN:
            parts.append(f"{self.differing - _MOST_SHOWN} more differ than are shown")
        if self.lost:
            parts.append(
                f"{self.lost} were lost when they were recorded and have nothing to compare"
            )
        if self.unreadable:
            parts.append(f"{self.unreadable} lines cannot be read")
        self._print(Text("; ".join(parts), "bold red" if self.differing else "bold green"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _diff(stored: str, replayed: str) -> Iterator[str]:
    before, after = stored.split("\n"), replayed.split("\n")
    start = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    yield f"  @@ line {start + 1} @@"
    before, after = before[start : start + _MOST_LINES], after[start : start + _MOST_LINES]
    if len(before) == len(after) == 1:
        at = next(
            (i for i, (a, b) in enumerate(zip(before[0], after[0], strict=False)) if a != b),
            min(len(before[0]), len(after[0])),
        )
        yield f"  from character {at + 1} on:"
        for mark, line in (("-", before[0]), ("+", after[0])):
            yield f"  {mark} {one_line(line[max(0, at - _AROUND) : at + _AROUND])}"
        return
    lines = difflib.ndiff(
        [one_line(line, _WIDTH) for line in before], [one_line(line, _WIDTH) for line in after]
    )
    for line in list(lines)[:_MOST_LINES]:
        yield f"  {printable(line).rstrip()}"


def _chosen(
    address: Address, task: str | None, index: int | None
) -> Iterator[tuple[str, Trajectory | BrokenLine]]:
    """(its address, the episode) of each that is meant."""
    fitting = 0
    for file in address.files:
        for number, found in each_line(file, Trajectory):
            if address.line not in (None, number):
                continue
            place = f"{file}:{number}"
            if isinstance(found, BrokenLine):
                if task is None and index is None:
                    yield place, found
            elif task in (None, found.task):
                fitting += 1
                if index in (None, fitting):
                    yield place, found


def _names_of_episodes(
    chosen: Iterator[tuple[str, Trajectory | BrokenLine]], kwargs: Mapping[str, Any]
) -> dict[str, str]:
    """What needs trust to make the episodes' environments, each by the first place that names it.

    `kwargs` are the run's settings of all of them.
    """
    names: dict[str, str] = {}
    seen: set[str] = set()
    for place, found in chosen:
        if isinstance(found, Trajectory) and found.env not in seen:
            seen.add(found.env)
            names |= names_in({"env": found.env}, f"{place} ")
            names |= names_in({"env": found.env, "env_kwargs": kwargs}, keys=["env_kwargs"])
    return names


def _stored(run: Path, key: str, kind: type[_T]) -> _T:
    """A setting of the environment in the run's run.json, or an empty one."""
    if not (run / "run.json").is_file():
        return kind()
    content: dict[str, Any] = RunStore(run).read_json("run.json") or {}
    parts: list[Any] = [content, *content.values()]
    for part in parts:
        found = part.get(key) if isinstance(part, dict) else None
        if isinstance(found, kind):
            return found
    return kind()
