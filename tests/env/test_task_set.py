"""TaskSet: named splits that share no task."""

import pytest

from agentgym_env import TaskSet
from agentgym_env.errors import UnknownSplit, UnknownTask

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
