"""TextCraft from whose expert a small model learns more.

The expert of the world gets exactly what all its crafts need, and repeats a craft as often as it
has computed. A small model neither computes products nor counts its own repetitions. The expert of
`ReactiveTextCraft` gets a stack of each base item, and tries a craft before the ones that it needs:
the answer says what is missing, and every command then follows from the answers before it. The
world itself is the same.

A policy that learns from the world itself can also memorise its recipes. In `RenamedTextCraft`
items have other names in every episode. They are exchanged word by word, so `oak planks` may become
`granite lantern`, and then `planks`, its kind, is `lantern`.

    agentgym collect --env renamed:ReactiveTextCraft --split paper_train --policy expert --out DIR
    agentgym collect --env renamed:RenamedTextCraft --split paper_train --policy expert --out DIR
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from agentgym_servers.worlds.textcraft.env import TextCraft, shuffled
from agentgym_servers.worlds.textcraft.recipes import (
    Recipe,
    choose_item,
    choose_recipe,
    recipe_book,
)

_WORD = re.compile(r"[a-z_]+")
_KEPT = frozenset({"a", "and", "item", "o", "of", "on", "the"})
"""Words of names that the world's sentences contain as well."""
STACK = 64
"""As many as Minecraft puts in one slot; more than the crafts of most goals need."""


class ReactiveTextCraft(TextCraft):
    """TextCraft whose expert neither computes nor counts."""

    def expert(self) -> Iterator[str]:
        """Get a craft's base items, try it, and make what is missing before trying it again.

        No command follows itself, unless another policy has acted in between.
        """
        path, tried = [self._goal], ""
        while True:
            recipe = choose_recipe(self._book, self._recipes, path[-1])
            lacking = self._lacking(recipe)
            base = next((item for item, _ in lacking if self._book.is_base(item)), None)
            if base is not None:
                yield f"get {max(STACK, dict(lacking)[base])} {base}"
                continue
            if lacking and tried == path[-1]:
                path.append(lacking[0][0])
                continue
            tried, before = path[-1], self._inventory.get(path[-1], 0)
            yield self._command(recipe)
            if self._inventory.get(tried, 0) > before:
                tried = ""
                if len(path) > 1:
                    path.pop()

    def _lacking(self, recipe: Recipe) -> list[tuple[str, int]]:
        """The items of a recipe that are not held in its amounts, with these amounts."""
        parts = [
            (choose_item(self._book, self._recipes, part, amount, self._inventory), amount)
            for part, amount in recipe.ingredients
        ]
        return [(item, amount) for item, amount in parts if self._inventory.get(item, 0) < amount]


class RenamedTextCraft(ReactiveTextCraft):
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
