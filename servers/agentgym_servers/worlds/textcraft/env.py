"""TextCraft: craft a Minecraft item from a list of recipes (ADaPT, arXiv:2311.05772)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TypeVar

from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.tools import Verb
from agentgym_servers.worlds.paper import paper_selections
from agentgym_servers.worlds.textcraft.legacy import INSTRUCTION, LegacyInventory
from agentgym_servers.worlds.textcraft.recipes import Recipe, RecipeBook, next_step, recipe_book

_T = TypeVar("_T")

MAX_AMOUNT = 9999
MAX_DISTRACTORS = 10
_TEST_SIZE = 100
_MAX_COMMAND = 2000
_AMOUNT = re.compile(r"([+-]?[0-9]+) +(.+)")
_HOW_TO_CRAFT = "Write: craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM"


class TextCraft(TextEnv):
    """Get base items and craft with the listed recipes until the goal item is made.

    ## Description
    A text version of Minecraft's crafting (ADaPT, arXiv:2311.05772). You are shown recipes and a
    goal item; you take base items and combine them.

    ## Observation
    After a reset, the crafting commands and the goal; after a step, what came of the command. The
    list has every recipe that may serve the goal and up to 10 others that share an ingredient,
    drawn and ordered by the episode's seed.

    ## Actions
    | action | effect |
    |---|---|
    | `get AMOUNT ITEM` | take a base item, which no recipe makes |
    | `craft AMOUNT ITEM using AMOUNT ITEM, ...` | use one recipe once, with exactly its amounts |
    | `inventory` | list what you hold |

    Amounts are 1 to 9999. Where a recipe asks for planks or wool, any one kind of them counts;
    every other ingredient has the recipe's own name, such as jungle logs. A command that is not
    possible changes nothing; the observation says why, and what the recipe needs.

    ## Rewards
    1 for crafting the goal item, else 0.

    ## Termination
    The episode terminates when the goal item is crafted. It is truncated after 50 turns.

    ## Tasks
    The 544 craftable items; a task id is the name of its item. The category is the depth, the least
    number of crafts stacked above base items. Splits are fixed and stratified by depth.

    | split | tasks | `depth 1` | `depth 2` | `depth 3` | `depth 4` |
    |---|---|---|---|---|---|
    | `train` | 444 | 102 | 238 | 95 | 9 |
    | `test` | 100 | 23 | 53 | 22 | 2 |
    | `paper` | 100 | 31 | 41 | 25 | 3 |
    | `paper_train` | 374 | 94 | 232 | 47 | 1 |

    `paper` and `paper_train` are the tasks of arXiv:2509.08755 (docs/paper_tasks.md); they overlap
    `train` and `test`.

    ## Arguments
    - `legacy` (default `False`): answers as AgentGym does, word for word. A rejection then has no
      reason, items have Minecraft's names (`Crafted 4 minecraft:oak_planks`), and a goal's list of
      recipes is the same for every seed. The instruction has AgentGym's rules in our words

    ## Data
    Recipes of Minecraft 1.16 from the distribution `textcraft` 0.0.3 (MIT), read at run time; its
    code is not used. Unlike there, files are read in order of name, so that goals and texts are the
    same everywhere, and every error says what is wrong.

    ## Registered id
    `agentgym/TextCraft-v0`
    """

    instruction = (
        "You craft items in a Minecraft-like world. You are shown crafting commands and a goal "
        "item. Each turn, answer with one command:\n"
        "get AMOUNT ITEM - take a base item, one that no recipe makes\n"
        "craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM - use one recipe once, with exactly its "
        "amounts, from items you hold\n"
        "inventory - see what you hold\n"
        "Where a recipe asks for planks or wool, name one kind of them, such as oak planks. Name "
        "every other ingredient exactly as the recipe does, such as oak logs, not oak log. Not "
        "every command shown is needed. The episode ends when the goal item is crafted."
    )

    verbs = (
        Verb("get {amount:int} {item}", "Take a base item, one that no recipe makes."),
        Verb(
            "craft {amount:int} {item} using {ingredients:list}",
            "Use one recipe once, from items you hold.",
            about={
                "amount": "How many the recipe makes.",
                "ingredients": "The recipe's ingredients, each as an amount and an item.",
            },
        ),
        Verb("inventory", "See what you hold."),
    )

    def __init__(self, render_mode: str | None = None, legacy: bool = False) -> None:
        self.tasks = textcraft_tasks()  # type: ignore[misc]
        if legacy:
            self.instruction = INSTRUCTION  # type: ignore[misc]
        self._book = recipe_book()
        super().__init__(render_mode)
        self._legacy = legacy

    def _reset(self, task: str) -> str:
        self._goal = task
        self._original = LegacyInventory(self._book) if self._legacy else None
        self._inventory: dict[str, int] = {} if self._original is None else self._original.held
        # AgentGym draws the list with a fixed seed.
        draw = random.Random(f"legacy/{task}") if self._legacy else self.rng
        self._recipes = shown_recipes(self._book, task, draw)
        self._crafted_goal = self._invalid = False
        lines = "\n".join(recipe.text for recipe in self._recipes)
        return f"Crafting commands:\n{lines}\n\nGoal: craft {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self._invalid = True  # until something comes of it
        if len(action) > _MAX_COMMAND:
            return f"That command is too long; the most is {_MAX_COMMAND} characters.", 0.0, False
        if self._original is not None:
            observation, possible = self._original.carry_out(action)
            self._invalid, self._crafted_goal = not possible, self._original.crafted == self._goal
            return observation, float(self._crafted_goal), self._crafted_goal
        command = " ".join(action.lower().split()).removesuffix(".")
        verb, _, rest = command.partition(" ")
        if verb == "get":
            observation = self._get(rest)
        elif verb == "craft":
            observation = self._craft(rest)
        elif command == "inventory":
            observation = self._describe_inventory()
        else:
            observation = f"Unknown command: {_quote(command)}. Use get, craft or inventory."
        return observation, float(self._crafted_goal), self._crafted_goal

    def success(self) -> bool:
        """Whether the goal item was crafted."""
        return self._crafted_goal

    def invalid_action(self) -> bool:
        """Whether the last command was not understood, or nothing came of it."""
        return self._invalid

    def available_actions(self) -> list[str]:
        """What is accepted now: `inventory`, to get what a shown recipe needs, and to craft.

        A recipe is listed once all that it needs is held.
        """
        actions = {"inventory": None}
        for recipe in self._recipes:
            for name, amount in recipe.ingredients:
                if self._can_get(name, amount):
                    actions[f"get {amount} {name}"] = None
        for recipe in self._recipes:
            if self._is_held(recipe):
                actions[self._command(recipe)] = None
        return list(actions)

    def expert(self) -> Iterator[str]:
        """Get each base item in one go, just before the crafts that need it."""
        while True:
            step, _ = self._next_step()
            yield f"get {step[0]} {step[1]}" if isinstance(step, tuple) else self._command(step)

    def expert_thought(self) -> str:
        """What is held, and what each craft from the goal to the next action needs of it."""
        return f"Held: {_listed(self._inventory) or 'nothing'}. {self._next_step()[1]}"

    def _next_step(self) -> tuple[tuple[int, str] | Recipe, str]:
        return next_step(self._book, self._recipes, self._goal, self._inventory)

    def _get(self, rest: str) -> str:
        match = _AMOUNT.fullmatch(rest)
        if match is None:
            return f"Say how many to get: get AMOUNT ITEM, not {_quote('get ' + rest)}."
        amount, item = _amount(match[1]), match[2]
        if amount is None:
            return _bad_amount(match[1])
        if not self._book.is_base(item):
            return self._not_a_base_item(item)
        held = self._inventory.get(item, 0) + amount
        if held > MAX_AMOUNT:
            return f"You cannot hold more than {MAX_AMOUNT} {item}."
        self._inventory[item] = held
        self._invalid = False
        return f"Got {amount} {item}"

    def _craft(self, rest: str) -> str:
        wanted, using, parts = rest.partition(" using ")
        if not using:
            return f"{_HOW_TO_CRAFT}."
        match = _AMOUNT.fullmatch(wanted)
        if match is not None and _amount(match[1]) is None:
            return _bad_amount(match[1])
        output = match[2] if match else wanted
        given: dict[str, int] = {}
        for part in parts.split(","):
            ingredient = _AMOUNT.fullmatch(part.strip())
            if ingredient is None:
                return f"{_quote(part.strip())} is not AMOUNT ITEM. {_HOW_TO_CRAFT}."
            amount = _amount(ingredient[1])
            if amount is None:
                return _bad_amount(ingredient[1])
            given[ingredient[2]] = given.get(ingredient[2], 0) + amount
        return self._carry_out(output, given)

    def _carry_out(self, output: str, given: dict[str, int]) -> str:
        book = self._book
        if output not in book.recipes:
            return self._not_craftable(output)
        for item in given:
            if item in book.tags:
                return self._name_a_member(item)
            if item not in book.items:
                return f"{self._unknown_item(item)} {_needs(book.recipes[output])}"
        recipe = next((r for r in book.recipes[output] if _fits(book, r, given)), None)
        if recipe is None:
            refusal = f"No recipe makes {output} from exactly {_cut(_listed(given))}."
            return f"{refusal} {_needs(book.recipes[output])}"
        for item, amount in given.items():
            held = self._inventory.get(item, 0)
            if held < amount:
                return f"Not enough {item}: {amount} needed, {held} held."
        for item, amount in given.items():
            self._inventory[item] -= amount
            if not self._inventory[item]:
                del self._inventory[item]
        self._inventory[output] = self._inventory.get(output, 0) + recipe.makes
        self._crafted_goal, self._invalid = output == self._goal, False
        return f"Crafted {recipe.makes} {output}"

    def _describe_inventory(self) -> str:
        self._invalid = False
        return f"Inventory: {_listed(self._inventory) or 'empty'}"

    def _not_a_base_item(self, item: str) -> str:
        if item in self._book.recipes:
            return f"{item} cannot be gotten, only crafted."
        if item in self._book.tags:
            return self._name_a_member(item)
        return self._unknown_item(item)

    def _not_craftable(self, item: str) -> str:
        if item in self._book.tags:
            return self._name_a_member(item)
        if item in self._book.items:
            return f"{item} has no recipe; get it."
        return self._unknown_item(item)

    def _unknown_item(self, item: str) -> str:
        near = _nearest(_cut(item))
        meant = f" Do you mean {' or '.join(near)}?" if near else ""
        return f"There is no item called {_quote(item)}.{meant}"

    def _name_a_member(self, tag: str) -> str:
        return f"{tag} is a kind of item; name one, such as {self._book.members(tag)[0]}."

    def _can_get(self, item: str, amount: int) -> bool:
        if self._original is not None:
            return self._original.is_gettable(item)
        return self._book.is_base(item) and self._inventory.get(item, 0) + amount <= MAX_AMOUNT

    def _is_held(self, recipe: Recipe) -> bool:
        return all(self._inventory.get(i, 0) >= n for i, n in self._named(recipe))

    def _command(self, recipe: Recipe) -> str:
        """A recipe's command, with each kind of item replaced by a member held or listed."""
        parts = ", ".join(f"{amount} {item}" for item, amount in self._named(recipe))
        return f"craft {recipe.makes} {recipe.output} using {parts}"

    def _named(self, recipe: Recipe) -> Iterator[tuple[str, int]]:
        for name, amount in recipe.ingredients:
            members = [r.output for r in self._recipes if self._book.stands_for(r.output, name)]
            held = [item for item in members if self._inventory.get(item, 0) >= amount]
            chosen = (held or members or [name])[0] if name in self._book.tags else name
            yield chosen, amount


@cache
def textcraft_tasks() -> TaskSet:
    """The 544 goals: train 444 and test 100, each depth in proportion."""
    book = recipe_book()
    draw = random.Random("textcraft/test split")
    by_depth: dict[int, list[str]] = {}
    for goal in book.goals:
        by_depth.setdefault(book.depth[goal], []).append(goal)
    shares = {d: len(goals) * _TEST_SIZE / len(book.goals) for d, goals in by_depth.items()}
    sizes = {depth: int(share) for depth, share in shares.items()}
    for depth in sorted(shares, key=lambda d: sizes[d] - shares[d])[
        : _TEST_SIZE - sum(sizes.values())
    ]:
        sizes[depth] += 1
    test: set[str] = set()
    for depth, goals in by_depth.items():
        test.update(shuffled(goals, draw)[: sizes[depth]])
    return TaskSet(
        {
            "train": [goal for goal in book.goals if goal not in test],
            "test": [goal for goal in book.goals if goal in test],
        },
        categories={goal: f"depth {book.depth[goal]}" for goal in book.goals},
        aliases={f"textcraft_{number}": goal for number, goal in enumerate(book.goals)},
        selections=paper_selections("textcraft", dict(enumerate(book.goals))),
    )


def original_task(data_idx: int) -> str:
    """The goal that AgentGym numbers `data_idx`; like there, any number is taken modulo 544."""
    goals = recipe_book().goals
    return goals[data_idx % len(goals)]


def shown_recipes(book: RecipeBook, goal: str, rng: random.Random) -> list[Recipe]:
    """The goal's recipes and up to 10 others that share an ingredient, in random order."""
    tree, others = book.related(goal)
    distractors = shuffled(others, rng)[:MAX_DISTRACTORS]
    return shuffled(tree + distractors, rng)


def shuffled(items: list[_T], rng: random.Random) -> list[_T]:
    """A random order by `rng.random()`, the one draw that Python promises never to change."""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def _fits(book: RecipeBook, recipe: Recipe, given: dict[str, int]) -> bool:
    left = dict(given)
    # Named ingredients first, so that a kind does not take the item another ingredient names.
    for name, amount in sorted(recipe.ingredients, key=lambda part: part[0] in book.tags):
        item = next((i for i, n in left.items() if n == amount and book.stands_for(i, name)), None)
        if item is None:
            return False
        del left[item]
    return not left


@lru_cache(maxsize=4096)
def _nearest(name: str) -> list[str]:
    """The items whose names are most like it."""
    # It takes milliseconds, and a policy writes the same names again and again.
    return get_close_matches(name, sorted(recipe_book().items), n=2, cutoff=0.8)


def _needs(recipes: Sequence[Recipe]) -> str:
    """What each recipe of an item is made of."""
    return "; ".join(f"craft {r.makes} {r.output} needs {r.needs}" for r in recipes) + "."


def _amount(digits: str) -> int | None:
    # Every allowed amount has at most seven characters; int() of thousands of digits would raise.
    value = int(digits) if len(digits) <= 7 else 0
    return value if 1 <= value <= MAX_AMOUNT else None


def _bad_amount(digits: str) -> str:
    return f"An amount is a whole number from 1 to {MAX_AMOUNT}, not {_cut(digits)}."


def _listed(amounts: dict[str, int]) -> str:
    return ", ".join(f"{amount} {item}" for item, amount in amounts.items())


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _quote(text: str) -> str:
    return f'"{_cut(text)}"'
