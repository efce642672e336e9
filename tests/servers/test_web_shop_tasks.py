"""The shop's tasks: their experts solve them, and doing nothing solves none."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from agentgym_servers.web.sites.shop.tasks import TEMPLATES, shop_tasks
from agentgym_servers.web.tasks.scripts import Stop
from shop_judge import solved
from shop_reader import Reader, shop_session, text_of

TASKS = shop_tasks()
OF_TEMPLATE = {
    template.id: [task for task in TASKS if task.config["intent_template_id"] == template.id]
    for template in TEMPLATES
}
FIELDS = {
    "sites", "task_id", "require_login", "storage_state", "start_url", "geolocation",
    "intent_template", "instantiation_dict", "intent", "require_reset", "eval",
    "intent_template_id",
}  # fmt: skip


def by_template(test):
    """The first two tasks of each template, and in the full suite all of them."""
    slow = pytest.mark.slow
    cases = [pytest.param(tasks[:2], id=f"{name}-2") for name, tasks in OF_TEMPLATE.items()]
    cases += [pytest.param(tasks, id=f"{name}", marks=slow) for name, tasks in OF_TEMPLATE.items()]
    return pytest.mark.parametrize("tasks", cases)(test)


def start(task):
    return Reader(shop_session()).goto(task.config["start_url"])


def test_there_are_thirty_templates_and_more_than_five_hundred_tasks():
    assert len(TEMPLATES) == len({template.id for template in TEMPLATES}) == 30
    assert len(TASKS) == len({task.config["intent"] for task in TASKS}) == 511
    assert min(map(len, OF_TEMPLATE.values())) >= 6


def test_a_quarter_of_the_templates_is_for_testing_and_over_both_sites():
    splits = Counter((template.site, template.split) for template in TEMPLATES)
    assert splits == {
        ("shopping", "train"): 11,
        ("shopping", "test"): 6,
        ("shopping_admin", "train"): 11,
        ("shopping_admin", "test"): 2,
    }
    for tasks in OF_TEMPLATE.values():
        assert len({task.split for task in tasks}) == 1


def test_tasks_ask_for_answers_for_pages_and_for_changes():
    kinds = Counter(tuple(task.config["eval"]["eval_types"]) for task in TASKS)
    assert set(kinds) == {
        ("string_match",),
        ("url_match",),
        ("program_html",),
        ("url_match", "program_html"),
    }
    assert kinds["program_html",] > 150


def test_a_task_has_the_fields_of_webarena_and_no_slot_is_left_open():
    for task in TASKS:
        assert set(task.config) == FIELDS
        assert task.config["task_id"] == -1
        assert "{{" not in task.config["intent"]
        assert isinstance(task.expert[-1], Stop)


def test_the_tasks_are_the_same_each_time():
    assert shop_tasks() == TASKS


def test_another_seed_makes_other_tasks_of_the_same_templates():
    others = shop_tasks(1)
    assert {task.config["intent_template_id"] for task in others} == set(OF_TEMPLATE)
    assert others != TASKS


@by_template
def test_the_expert_solves_a_task_and_reads_its_answer_off_the_page_where_it_stops(tasks):
    for task in tasks:
        reader = start(task).follow(task.expert)
        assert solved(task.config, reader), task.config["intent"]
        reference = task.config["eval"]["reference_answers"]
        if reference is None or task.config["intent_template_id"] == 7104:
            continue
        seen = text_of(reader.page)
        for wanted in reference.get("must_include", [reference.get("exact_match")]):
            assert wanted in seen, task.config["intent"]


@by_template
def test_doing_nothing_solves_no_task(tasks):
    for task in tasks:
        for answer in ("", "done", "N/A"):
            assert not solved(task.config, start(task).follow([Stop(answer)])), task.config


@by_template
def test_the_way_of_another_task_does_not_solve_a_task(tasks):
    for task, other in pairwise(tasks):
        if task.config["eval"] != other.config["eval"]:
            reader = start(task).follow(other.expert)
            assert not solved(task.config, reader), (task.config["intent"], other.expert)


def test_the_sums_of_a_month_are_those_of_the_orders_on_their_pages():
    months = {}
    reader = Reader(shop_session()).goto("__SHOPPING__/sales/order/history/")
    for number in (1, 2, 3, 4):
        reader.goto(f"__SHOPPING__/sales/order/history/?p={number}")
        for row in reader.page.xpath("//table[contains(@class, 'orders')]/tbody/tr"):
            _, day, total, status = map(text_of, row)
            if status == "Complete":
                months[day[:7]] = months.get(day[:7], 0) + round(100 * float(total[1:]))
    for task in OF_TEMPLATE[7104]:
        (told,) = task.config["eval"]["reference_answers"]["must_include"]
        assert round(100 * float(told)) in months.values()
    assert len(OF_TEMPLATE[7104]) <= len(months)


def test_what_an_expert_changes_is_changed_in_its_own_session_only():
    task = OF_TEMPLATE[7306][0]
    changed, other = start(task), start(task)
    changed.follow(task.expert)
    other.follow(task.expert[-1:])
    assert solved(task.config, changed)
    assert not solved(task.config, other)
