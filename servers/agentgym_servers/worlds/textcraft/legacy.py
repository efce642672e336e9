"""What AgentGym's TextCraft answers to a command, rejections included.

Commands are in lower case and begin at the first character, a kind of item can be named in neither
`get` nor `craft`, and an amount has no limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from agentgym_servers.worlds.textcraft.recipes import Recipe, RecipeBook

INSTRUCTION: Final = (
    "You craft items in Minecraft. You are given some crafting commands, of the form "
    '"craft TARGET using INGREDIENTS", and a goal. Each round you get an observation and answer '
    "with one action:\n"
    "get AMOUNT ITEM - take an ingredient\n"
    "inventory - see what you hold\n"
    "craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM - use one of the given commands\n"
    "1. Always give the amount, such as: get 1 lapis lazuli, craft 1 blue dye using 1 lapis "
    "lazuli, or craft 1 golden carrot using 8 gold nugget, 1 carrot.\n"
    "2. Do not say where an item that you get comes from.\n"
    "3. Use only the crafting commands that are given. Where one names a kind of item, such as "
    "planks, name an item of that kind instead, such as dark oak planks."
)
"""The rules of AgentGym's prompt, in our words; its text is its client's."""

_CRAFT = re.compile(r"craft (.*) using (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_Part = tuple[int, str]


class LegacyInventory:
    """The items of one episode, and AgentGym's commands on them."""

    def __init__(self, book: RecipeBook) -> None:
        self._book = book
        self._tags = book.tags | set(book.tag_of.values())
        self.held: dict[str, int] = {}
        self.crafted: str | None = None
        """The item that the last command crafted."""

    def carry_out(self, action: str) -> tuple[str, bool]:
        """AgentGym's observation, and whether the command was possible."""
        self.crafted = None
        craft = _CRAFT.match(action)
        if craft is not None:
            return self._craft(craft[1], craft[2])
        counted = _COUNTED.match(action.removeprefix("get ")) if action[:4] == "get " else None
        if counted is not None:
            return self._get(int(counted[1]), counted[2])
        if action.startswith("inventory"):
            return self._list(), True
        return f"Could not execute {action}", False

    def is_gettable(self, item: str) -> bool:
        """Whether `get` finds the item."""
        return item not in self._tags and self._book.is_base(item)

    def _get(self, amount: int, item: str) -> tuple[str, bool]:
        name = _name(item)
        if not self.is_gettable(name):
            return f"Could not find {item}", False
        self.held[name] = self.held.get(name, 0) + amount
        return f"Got {amount} {item}", True

    def _list(self) -> str:
        listed = "".join(f"[{item}] ({amount}) " for item, amount in self.held.items())
        return f"Inventory: {listed or 'You are not carrying anything.'}"

    def _craft(self, wanted: str, using: str) -> tuple[str, bool]:
        counted = _COUNTED.match(wanted)
        amount, output = (int(counted[1]), _name(counted[2])) if counted else (1, _name(wanted))
        parts: list[_Part] = []
        for text in using.split(","):
            part = _COUNTED.match(text.strip())
            if part is None:
                return f"Wrong item format: {text.strip()}", False
            parts.append((int(part[1]), _name(part[2])))
        is_tag = output in self._tags
        if not all(self._holds(each, item) for each, item in parts):
            item_id = None if is_tag else _id(output)
            return f"Could not find enough items to craft {item_id}", False
        made = next((r for r in self._recipes(output) if self._fits(r, parts)), None)
        if made is None:
            tag, item_id = (_id(output), None) if is_tag else (None, _id(output))
            named = f"ItemTag(tag={tag!r}, item_id={item_id!r})"
            counted_item = f"ItemTagWithCount(item_tag={named}, count={amount})"
            return f"Could not find a valid recipe for {counted_item}", False
        for each, item in parts:
            self.held[item] -= each
            if not self.held[item]:
                del self.held[item]
        self.held[output] = self.held.get(output, 0) + made.makes
        self.crafted = output
        return f"Crafted {made.makes} {_id(output)}", True

    def _recipes(self, output: str) -> Sequence[Recipe]:
        return () if output in self._tags else self._book.recipes.get(output, ())

    def _holds(self, amount: int, item: str) -> bool:
        return item not in self._tags and item in self.held and self.held[item] >= amount

    def _fits(self, recipe: Recipe, parts: Sequence[_Part]) -> bool:
        """Whether each ingredient is given once, in its whole amount, and nothing else is."""
        left = list(parts)
        for name, amount in recipe.ingredients:
            given = next((part for part in left if self._book.stands_for(part[1], name)), None)
            if given is None or given[0] != amount:
                return False
            left.remove(given)
        return not left and len({item for _, item in parts}) == len(parts)


def _name(item: str) -> str:
    return item.replace("_", " ")


def _id(name: str) -> str:
    return f"minecraft:{name.replace(' ', '_')}"
