"""Transcripts: what an episode was, word for word, so that two of them can be compared.

`python -m agentgym_env.transcript` plays the episodes that stdin names and prints their
transcripts: the way another process is asked whether it sees the same world.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentgym_env.registration import env_class
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import JSON, decode, encode


class Script(Struct, frozen=True):
    """An episode to play: how it starts, and what is done."""

    task: str
    seed: int
    actions: list[str]


class Scripts(Struct, frozen=True):
    """What another process is asked to play."""

    entry_point: str
    env_kwargs: dict[str, Any]
    scripts: list[Script]


Transcript = list[Any]
"""What `reset` gave, then what each `step` gave, as plain JSON values."""


def write_script(env: TextEnv, task: str, seed: int, turns: int) -> Script:
    """An episode of at most `turns` turns: the expert's actions mixed with available ones."""
    draw = random.Random(f"script/{task}/{seed}")
    env.reset(seed=seed, options={"task": task})
    actions: list[str] = []
    while len(actions) < turns:
        choices = list(env.available_actions() or ["look", "help", "1"])
        expert = env.expert_action() if env.has_expert() and draw.random() < 0.5 else None
        action = expert or choices[int(draw.random() * len(choices))]
        actions.append(action)
        if any(env.step(action)[2:4]):
            break
    return Script(task, seed, actions)


def play(env: TextEnv, script: Script) -> Transcript:
    """The transcript of one script."""
    first = env.reset(seed=script.seed, options={"task": script.task})
    told: Transcript = [first]
    for action in script.actions:
        told.append(env.step(action))
    as_json: Transcript = plain(told)
    return as_json


def plain(told: Any) -> Any:
    """Values as they come out of JSON: tuples become lists, numpy numbers plain ones."""
    return decode(encode(told), Any, JSON)


def difference(first: Sequence[Transcript], second: Sequence[Transcript]) -> str | None:
    """Where two lists of transcripts part, or None."""
    for episode, (one, other) in enumerate(zip(first, second, strict=True)):
        for turn, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return f"episode {episode}, turn {turn}: {shorten(a)} and {shorten(b)}"
    return None


def shorten(value: Any, most: int = 160) -> str:
    """A value as text that fits a line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else text[: most - 3] + "..."


def main() -> None:
    """Play what stdin names; transcripts to stdout."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Scripts)
    out, sys.stdout = sys.stdout, sys.stderr  # a world may print
    make = env_class(asked.entry_point)
    told = [play(make(**asked.env_kwargs), script) for script in asked.scripts]
    out.buffer.write(encode(told))


if __name__ == "__main__":
    main()
