"""What a scripted expert does: steps that name what they touch as a reader of the page would."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec


class Goto(msgspec.Struct, frozen=True):
    """Open an address."""

    url: str
    """May begin with a placeholder such as `__SHOPPING__`."""


class Click(msgspec.Struct, frozen=True):
    """Click the first element of a role with this name."""

    role: Literal["link", "button", "checkbox", "radio"]
    name: str


class Fill(msgspec.Struct, frozen=True):
    """Replace the text of a field."""

    label: str
    text: str


class Select(msgspec.Struct, frozen=True):
    """Choose from a list."""

    label: str
    option: str
    """What it says, not its value."""


class Stop(msgspec.Struct, frozen=True):
    """End the episode with an answer, which is empty where none is asked."""

    answer: str = ""


Step: TypeAlias = Goto | Click | Fill | Select | Stop


class ScriptedTask(msgspec.Struct, frozen=True):
    """A task in WebArena's JSON form, and a script that solves it."""

    config: dict[str, Any]
    """The fields of `test.raw.json`; `task_id` is -1 until somebody numbers the tasks."""
    split: Literal["train", "test"]
    """All tasks of a template are in one split."""
    expert: tuple[Step, ...]
    """Ends with a Stop; begins at the task's `start_url`."""
