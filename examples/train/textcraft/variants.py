"""TextCraft for a small model to learn from.

The expert of the world plans: it gets exactly what all its crafts need, and repeats a craft as
often as it has computed. A small model cannot multiply, and does not count its repetitions. The
expert of `ReactiveTextCraft` does not plan: it tries the goal's craft, and answers every error with
the command that removes it. Each of its commands follows from the answer before it and the recipes
on the page. It takes more turns, 12 instead of 7 on average. The world itself is the same.

A policy that learns from the world itself can also memorise its recipes. In `RenamedTextCraft`
items have other names in every episode. They are exchanged word by word, so `oak planks` may become
`granite lantern`, and then `planks`, its kind, is `lantern`.

    agentgym collect --env variants:ReactiveTextCraft --split paper_train --policy expert --out DIR
    agentgym collect --env variants:RenamedTextCraft --split paper_train --policy expert --out DIR
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
    """TextCraft whose expert neither plans nor counts."""

    def expert(self) -> Iterator[str]:
        """Make the goal. No command follows itself, unless another policy acted in between."""
        while True:
            yield from self._make(self._goal)

    def _make(self, item: str) -> Iterator[str]:
        """Try the item's craft; get or make what it lacks; try it again, until it succeeds."""
        recipe = choose_recipe(self._book, self._recipes, item)
        while True:
            held = self._inventory.get(item, 0)
            yield self._command(recipe)
            if self._inventory.get(item, 0) > held:
                return
            lacking = self._lacking(recipe)
            if lacking is None:
                continue
            part, amount = lacking
            if self._book.is_base(part):
                yield f"get {max(STACK, amount)} {part}"
            else:
                yield from self._make(part)

    def expert_thought(self) -> str:
        """None: the world's own is about its plan."""
        return ""

    def available_actions(self) -> list[str]:
        """Also crafts that lack something: random turns among them are errors to recover from."""
        crafts = map(self._command, self._recipes)
        return list(dict.fromkeys([*super().available_actions(), *crafts]))

    def _lacking(self, recipe: Recipe) -> tuple[str, int] | None:
        """The first item of a recipe that is not held in its amount, with this amount."""
        for name, amount in recipe.ingredients:
            item = choose_item(self._book, self._recipes, name, amount, self._inventory)
            if self._inventory.get(item, 0) < amount:
                return item, amount
        return None


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


@cache
def name_words() -> tuple[str, ...]:
    """All words of the names of items and of their kinds."""
    book = recipe_book()
    names = {*book.items, *book.recipes, *book.tags}
    return tuple(sorted({word for name in names for word in _WORD.findall(name)} - _KEPT))


def _replaced(text: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda match: names.get(match[0], match[0]), text)
