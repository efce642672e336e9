"""What an agent may do in a browser, whichever grammar it was written in."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

Argument: TypeAlias = str | int | float | bool | tuple[str, ...]

ENDINGS: Final = frozenset({"send_msg_to_user", "report_infeasible"})
"""The kinds of action that end an episode."""
MAX_ACTION_CHARS: Final = 20_000
"""Of a longer text, only the end is read."""


class Action(msgspec.Struct, frozen=True):
    """One action, by BrowserGym's name and with its arguments in BrowserGym's order.

    `click` has (bid, button, modifiers), `fill` (bid, value, whether Enter follows),
    `select_option` (bid, options), `scroll` (pixels right, pixels down).
    """

    kind: str
    args: tuple[Argument, ...] = ()

    def text(self, at: int) -> str:
        """The argument `at`, which is a text."""
        return str(self.args[at])

    def texts(self, at: int) -> tuple[str, ...]:
        """The argument `at`, which is a row of texts."""
        found = self.args[at]
        return found if isinstance(found, tuple) else (str(found),)


class ActionProblem(msgspec.Struct, frozen=True):
    """Why a text is no action, and what to write instead."""

    message: str
