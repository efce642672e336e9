"""The paper's tasks: which they are, and AgentGym's files that name them."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.host.app import make_app
from agentgym_servers.worlds.babyai.levels import babyai_tasks
from agentgym_servers.worlds.paper import paper_selections
from agentgym_servers.worlds.sciworld.tasks import original_task, sciworld_tasks
from agentgym_servers.worlds.search.tasks import read_questions
from agentgym_servers.worlds.textcraft.env import TextCraft, textcraft_tasks
from hosting import HttpServer
from recordings import FOLDER

NUMBERS = Path(__file__).parents[2] / "servers/agentgym_servers/worlds/paper_tasks.json"
ITEM_IDS = FOLDER / "paper_tasks" / "agentgym_rl_item_ids.json"
SIZES = {"textcraft": (100, 374), "babyai": (90, 810), "sciworld": (200, 2120)}
TASKS = {"textcraft": textcraft_tasks, "babyai": babyai_tasks, "sciworld": sciworld_tasks}


def number_of(item):
    """The number in an item id, such as `triviaqa_12545`, or the id itself."""
    return int(str(item).rpartition("_")[2])


def test_the_numbers_are_those_of_the_published_lists():
    if not ITEM_IDS.exists():
        pytest.skip(f"there are no published lists: {ITEM_IDS.name} is not beside the checkout")
    published = json.loads(ITEM_IDS.read_text())
    ours = json.loads(NUMBERS.read_text())
    for world, lists in published.items():
        mine = ours["search" if world == "searchqa" else world]
        assert mine["paper"] == [number_of(item) for item in lists["test"]]
        assert mine.get("paper_train", []) == [number_of(item) for item in lists["train"]]


@pytest.mark.parametrize("world", TASKS)
def test_a_world_has_the_papers_tasks_in_order(world):
    tasks, numbers = TASKS[world](), json.loads(NUMBERS.read_text())[world]
    for name, size in zip(("paper", "paper_train"), SIZES[world], strict=True):
        assert len(tasks.split(name)) == size
        aliases = [f"{world}_{number}" for number in numbers[name]]
        assert list(tasks.split(name)) == [tasks.canonical(alias) for alias in aliases]
    shared = set(tasks.split("paper")) & set(tasks.split("paper_train"))
    assert len(shared) == (61 if world == "sciworld" else 0)


def test_the_ids_name_the_depths_levels_and_variations_of_the_paper():
    assert Counter(map(textcraft_tasks().category, textcraft_tasks().split("paper"))) == {
        "depth 1": 31, "depth 2": 41, "depth 3": 25, "depth 4": 3,
    }  # fmt: skip
    levels = Counter(map(babyai_tasks().category, babyai_tasks().split("paper")))
    assert len(levels) == 18 and set(levels.values()) == {5}
    assert babyai_tasks().canonical("babyai_12875") == "SynthLoc/321"
    assert sciworld_tasks().split("paper")[0] == original_task(3491) == "find-non-living-thing/255"


def test_how_many_of_the_papers_tasks_are_in_our_splits():
    textcraft, babyai = textcraft_tasks(), babyai_tasks()
    assert Counter(map(textcraft.split_of, textcraft.split("paper")))["train"] == 84
    assert Counter(map(babyai.split_of, babyai.split("paper"))) == {
        "train": 83, "test": 2, "paper": 5,
    }  # fmt: skip


def test_the_clean_tasks_of_sciworld_are_those_that_are_not_trained_on():
    tasks = sciworld_tasks()
    trained = set(tasks.split("paper_train"))
    clean = [task for task in tasks.split("paper") if task not in trained]
    assert list(tasks.split("paper_clean")) == clean and len(clean) == 139
    assert "paper" not in sciworld_tasks("noElectricalAction").selections


def test_a_list_with_a_missing_task_is_left_out():
    numbers = json.loads(NUMBERS.read_text())["webarena"]
    tasks = {number: f"webarena/{number}" for number in range(812)}
    found = paper_selections("webarena", tasks)
    assert {name: len(ids) for name, ids in found.items()} == {"paper": 50, "paper_train": 372}
    del tasks[numbers["paper"][7]]
    assert list(paper_selections("webarena", tasks)) == ["paper_train"]


@pytest.mark.slow
def test_the_questions_of_search_r1_have_the_papers_tasks(tmp_path):
    sizes = {
        "nq": 3610, "triviaqa": 11313, "popqa": 14267, "hotpotqa": 7405, "2wikimultihopqa": 12576,
        "musique": 2417, "bamboogle": 125,
    }  # fmt: skip
    rows = (
        {"question": f"{source} {n}?", "golden_answers": [str(n)], "data_source": source}
        for source, size in sizes.items()
        for n in range(size)
    )
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = read_questions(f"searchr1:{tmp_path}").tasks
    assert Counter(map(tasks.category, tasks.split("paper"))) == {
        "musique": 100, **dict.fromkeys(set(sizes) - {"musique"}, 50),
    }  # fmt: skip
    assert tasks.split("paper")[0] == tasks.canonical("triviaqa_12545") == "test/triviaqa/8935"
    assert tasks.canonical("searchqa_12545") == "test/triviaqa/8935"


def test_clients_know_the_selections_and_the_aliases(make_host):
    from agentgym_env.client.sync import EnvClient

    server = HttpServer(
        host := make_host(TextCraft, env_id="agentgym/TextCraft-v0"), make_app(host)
    )
    try:
        with EnvClient(server.address) as client:
            assert client.card().selections == {"paper": 100, "paper_train": 374}
            known = client.task_set()
            assert known.selections == textcraft_tasks().selections
            assert known.aliases == textcraft_tasks().aliases
            session = client.open()
            reply = session.reset(seed=0, task="textcraft_533", split="paper")
            assert reply.info["task"] == textcraft_tasks().split("paper")[97]
            with pytest.raises(BadRequest, match="not in 'paper'"):
                session.reset(seed=0, task="textcraft_100", split="paper")
    finally:
        server.stop()


LEGACY = [
    ("get 2 oak log", "Got 2 oak log"),
    ("get 1 stick", "Could not find stick"),
    ("get 1 planks", "Could not find planks"),
    ("get 1 unobtainium", "Could not find unobtainium"),
    ("get lots oak log", "Could not execute get lots oak log"),
    ("Inventory", "Could not execute Inventory"),
    ("inventory please", "Inventory: [oak log] (2) "),
    ("craft oak planks", "Could not execute craft oak planks"),
    (
        "craft 4 oak planks using 9 oak log",
        "Could not find enough items to craft minecraft:oak_planks",
    ),
    ("craft 1 planks using 9 oak log", "Could not find enough items to craft None"),
    ("craft 4 oak planks using oak log", "Wrong item format: oak log"),
    (
        "craft 4 oak planks using 1 oak log",
        "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, "
        "item_id='minecraft:oak_planks'), count=4)",
    ),
    (
        "craft planks using 1 oak log",
        "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag("
        "tag='minecraft:planks', item_id=None), count=1)",
    ),
    ("get 007 oak_logs", "Got 7 oak_logs"),
    ("craft 64 oak_planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
    ("get 0 stone", "Got 0 stone"),
    ("inventory", "Inventory: [oak log] (2) [oak logs] (6) [oak planks] (4) [stone] (0) "),
]  # fmt: skip


def test_legacy_textcraft_answers_as_agentgym_does():
    env = TextCraft(legacy=True)
    env.reset(seed=0, options={"task": "textcraft_420"})
    for action, observation in LEGACY:
        shown, reward, terminated, _, info = env.step(action)
        assert (shown, reward, terminated) == (observation, 0.0, False), action
        assert info["invalid_action"] is not bool(re.match("Got|Crafted|Inventory:", shown)), action


def test_legacy_textcraft_shows_the_same_recipes_for_every_seed():
    env = TextCraft(legacy=True)
    first, _ = env.reset(seed=0, options={"task": "anvil"})
    assert first == env.reset(seed=1, options={"task": "anvil"})[0]
    assert "AMOUNT" in env.instruction and env.instruction != TextCraft.instruction


def test_the_expert_solves_the_papers_goals_with_legacy_texts():
    env = TextCraft(legacy=True)
    for goal in env.tasks.split("paper"):
        env.reset(seed=0, options={"task": goal})
        terminated = False
        while not terminated and (action := env.expert_action()) is not None:
            _, reward, terminated, _, _ = env.step(action)
        assert terminated and reward == 1.0, goal
