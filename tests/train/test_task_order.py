"""A step's tasks depend on seed and step alone, and are those of TRL's own order."""

from __future__ import annotations

from collections import Counter

from trl.trainer.utils import RepeatSampler

from agentgym_train.training.task_order import tasks_of_step

TASKS = [f"t{number}" for number in range(7)]


def test_the_order_is_that_of_trls_sampler_over_several_epochs():
    sampler = RepeatSampler(TASKS, mini_repeat_count=4, batch_size=2, shuffle=True, seed=5)
    theirs = [index for _ in range(3) for index in list(sampler)[::4]]
    ours = [task for number in range(9) for task in tasks_of_step(TASKS, 5, number, 2)]
    assert ours == [TASKS[index] for index in theirs]


def test_an_epoch_names_no_task_twice_and_the_next_has_another_order():
    epochs = [
        [task for number in range(3) for task in tasks_of_step(TASKS, 0, 3 * epoch + number, 2)]
        for epoch in range(4)
    ]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 4


def test_few_tasks_come_several_times_in_a_step():
    found = Counter(tasks_of_step(TASKS[:3], 1, 2, 8))
    assert set(found) == set(TASKS[:3]) and max(found.values()) - min(found.values()) <= 1
