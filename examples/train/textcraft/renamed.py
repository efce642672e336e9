"""TextCraft with other names of items in every episode: whoever learns from it has to read.

A policy that learns from the world itself can memorise its recipes. Names are exchanged word by
word, so `oak planks` may become `granite lantern`, and then `planks`, its kind, is `lantern`.

    agentgym collect --env renamed:RenamedTextCraft --split paper_train --policy expert --out DIR
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from agentgym_servers.worlds.textcraft.env import TextCraft, shuffled
from agentgym_servers.worlds.textcraft.recipes import recipe_book

_WORD = re.compile(r"[a-z_]+")
_KEPT = frozenset({"a", "and", "item", "o", "of", "on", "the"})
"""Words of names that the world's sentences contain as well."""


class RenamedTextCraft(TextCraft):
    """TextCraft whose items have other names in every episode, drawn by its seed."""

    def __init__(self, render_mode: str | None = None) -> None:
        # Without the option `legacy`: AgentGym's texts have names that are not exchanged.
        super().__init__(render_mode)

    def _reset(self, task: str) -> str:
        observation = super()._reset(task)
        words = name_words()
        self._shown = dict(zip(words, shuffled(list(words), self.rng), strict=True))
        self._meant = {shown: meant for meant, shown in self._shown.items()}
        return _replaced(observation, self._shown)

    def _step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, ended = super()._step(_replaced(action.lower(), self._meant))
        return _replaced(observation, self._shown), reward, ended

    def available_actions(self) -> list[str]:
        """The actions, with the episode's names."""
        return [_replaced(action, self._shown) for action in super().available_actions()]

    def expert(self) -> Iterator[str]:
        """The expert's actions, with the episode's names."""
        for action in super().expert():
            yield _replaced(action, self._shown)

    def expert_thought(self) -> str:
        """The expert's thought, with the episode's names."""
        return _replaced(super().expert_thought(), self._shown)


@cache
def name_words() -> tuple[str, ...]:
    """All words of the names of items and of their kinds."""
    book = recipe_book()
    names = {*book.items, *book.recipes, *book.tags}
    return tuple(sorted({word for name in names for word in _WORD.findall(name)} - _KEPT))


def _replaced(text: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda match: names.get(match[0], match[0]), text)
