"""What the notes say about the splits of TextCraft."""

from __future__ import annotations

import re
from pathlib import Path

from agentgym_servers.worlds.textcraft.env import textcraft_tasks
from agentgym_servers.worlds.textcraft.recipes import recipe_book

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "world_tests.md"


def test_the_page_lists_the_test_goals_that_training_goals_are_made_of():
    book, tasks = recipe_book(), textcraft_tasks()
    made = {
        recipe.output
        for goal in tasks.split("train")
        for recipe in book.tree(goal)
        if recipe.output != goal
    }
    shared = {goal for goal in tasks.split("test") if goal in made}
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    listed = re.search(
        r"but (\d+) of them are intermediate products of training goals: (.*?)\. ", text
    )
    assert listed is not None and int(listed[1]) == len(shared) == 17
    named = re.sub(r" \(depth \d\)", "", listed[2])
    named = named.replace(
        "black, blue, pink and red stained glass",
        ", ".join(f"{color} stained glass" for color in ("black", "blue", "pink", "red")),
    )
    assert set(re.split(r"[;,] ", named)) == shared
