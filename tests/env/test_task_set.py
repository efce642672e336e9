"""TaskSet: named splits that share no task."""

import pytest

from agentgym_env import TaskSet
from agentgym_env.errors import BadRequest, UnknownSplit, UnknownTask
from agentgym_env.text_env import choose_task

TASKS = TaskSet({"train": ["b", "a"], "test": ["c"]}, {"a": "easy"})


def test_order_is_kept():
    assert TASKS.split("train") == ("b", "a")
    assert TASKS.ids == ("b", "a", "c") and len(TASKS) == 3


def test_every_task_knows_its_split_and_category():
    assert TASKS.split_of("c") == "test" and "c" in TASKS and "d" not in TASKS
    assert TASKS.category("a") == "easy" and TASKS.category("b") is None


def test_an_unknown_task_names_the_nearest():
    tasks = TaskSet({"train": ["oak planks", "iron axe"]})
    with pytest.raises(UnknownTask, match="did you mean 'oak planks'"):
        tasks.split_of("oak plank")
    with pytest.raises(UnknownTask, match="among 2; such as 'oak planks', 'iron axe'"):
        tasks.split_of("zzz")
    numbered = TaskSet({"train": ["a", "b"]}, aliases={"world_0": "a", "world_1": "b"})
    with pytest.raises(UnknownTask, match=r"such as 'a', 'b', 'world_0'$"):
        numbered.split_of("zzz")


def test_an_unknown_split_names_the_splits():
    with pytest.raises(UnknownSplit, match="'train', 'test'"):
        TASKS.split("dev")


@pytest.mark.parametrize("splits", [{}, {"train": []}])
def test_an_empty_task_set_is_refused(splits):
    with pytest.raises(ValueError, match="at least one"):
        TaskSet(splits)


def test_a_task_in_two_splits_is_refused():
    with pytest.raises(ValueError, match="is listed twice"):
        TaskSet({"train": ["a"], "test": ["a"]})


def test_a_task_id_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="strings, got 1"):
        TaskSet({"train": [1]})


def test_a_selection_is_used_like_a_split_and_may_share_its_tasks():
    tasks = TaskSet({"train": ["a", "b"], "test": ["c"]}, selections={"known": ["c", "a", "d"]})
    assert tasks.split("known") == ("c", "a", "d") and dict(tasks.splits).keys() == {
        "train",
        "test",
    }
    assert [tasks.split_of(task) for task in "acd"] == ["train", "test", "known"]
    assert tasks.ids == ("a", "b", "c", "d") and "d" in tasks
    with pytest.raises(UnknownSplit, match="available: 'train', 'test', 'known'"):
        tasks.split("unknown")


@pytest.mark.parametrize(
    ("selections", "reason"),
    [
        ({"test": ["a"]}, "'test' is a split and a selection"),
        ({"known": ["a", "a"]}, "'known' is empty, or lists a task twice"),
        ({"known": []}, "'known' is empty, or lists a task twice"),
    ],
)
def test_a_selection_has_its_own_name_and_each_task_once(selections, reason):
    with pytest.raises(ValueError, match=reason):
        TaskSet({"train": ["a"], "test": ["c"]}, selections=selections)


def test_an_episode_takes_a_task_from_a_selection():
    tasks = TaskSet({"train": ["a", "b"]}, aliases={"x_1": "b"}, selections={"known": ["b", "d"]})
    drawn = {choose_task(tasks, "train", seed, {"split": "known"}) for seed in range(20)}
    assert drawn == {"b", "d"}
    for split in ("train", "known", None):
        assert choose_task(tasks, "train", 0, {"task": "x_1", "split": split}) == "b"
    with pytest.raises(BadRequest, match="'a' is in split 'train', not in 'known'"):
        choose_task(tasks, "train", 0, {"task": "a", "split": "known"})
