"""The oracle of TextCraft: the next step towards a goal from what is held now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from agentgym_servers._crafting import Recipe, RecipeBook


def next_step(
    book: RecipeBook, shown: Sequence[Recipe], goal: str, inventory: Mapping[str, int]
) -> tuple[int, str] | Recipe:
    """An (amount, base item) to get, or a recipe whose ingredients are all held.

    Works depth first through the ingredients in the order the recipe names them, so a base item
    is taken in one go for all the crafts that stand before it. Where several recipes or members of
    a kind would do, the shallowest is taken, and among equals the first one shown.
    """
    free = dict(inventory)

    def need(name: str, amount: int) -> tuple[int, str] | Recipe | None:
        """The first step still missing for `amount` of `name`; None once they are set aside."""
        item = _choose_item(book, shown, name, amount, free)
        held = free.get(item, 0)
        if held >= amount:
            free[item] = held - amount
            return None
        if book.is_base(item):
            return amount - held, item
        recipe = _choose_recipe(book, shown, item)
        free[item] = 0
        crafts = ceil((amount - held) / recipe.makes)
        for part, each in recipe.ingredients:
            step = need(part, each * crafts)
            if step is not None:
                return step
        return recipe

    # The goal is always crafted anew: holding one from the start would not end the episode.
    recipe = _choose_recipe(book, shown, goal)
    for part, each in recipe.ingredients:
        step = need(part, each)
        if step is not None:
            return step
    return recipe


def _choose_item(
    book: RecipeBook, shown: Sequence[Recipe], name: str, amount: int, free: Mapping[str, int]
) -> str:
    if name not in book.tags:
        return name
    members = [recipe.output for recipe in shown if book.stands_for(recipe.output, name)]
    return max(
        dict.fromkeys(members),
        key=lambda item: (free.get(item, 0) >= amount, free.get(item, 0), -book.depth[item]),
    )


def _choose_recipe(book: RecipeBook, shown: Sequence[Recipe], item: str) -> Recipe:
    candidates = [recipe for recipe in shown if recipe.output == item]
    return min(
        candidates, key=lambda recipe: max(book.depth[part] for part, _ in recipe.ingredients)
    )
