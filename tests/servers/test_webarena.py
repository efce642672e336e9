"""WebArena on embedded sites: every task proved, and failed by those who do nothing for it."""

import random

import pytest

from agentgym_env.conformance import check_environment
from agentgym_env.errors import BadRequest
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.worlds.webarena import WebArena


@pytest.fixture(scope="module")
def env():
    """One environment for tests that start episodes of their own."""
    made = WebArena()
    yield made
    made.close()


def start(env, task):
    return env.reset(seed=0, options={"task": task})[0]


def play_expert(env, task):
    """The oracle's episode: its observations, its actions and its last reply."""
    told, actions = [start(env, task)], []
    while (action := env.expert_action()) is not None:
        reply = env.step(action)
        told.append(reply[0])
        actions.append(action)
        if reply[2]:
            return told, actions, reply
    raise AssertionError(f"the oracle stops in {task} after {actions}")


def test_there_are_enough_templates_and_tasks_on_all_sites():
    world = embedded(0)
    templates = {task.intent_template_id for task in world.tasks.values()}
    assert len(templates) >= 40 and len(world.tasks) >= 800
    sites = {site for task in world.tasks.values() for site in task.sites}
    assert sites == {"shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map"}
    kinds = {kind for task in world.tasks.values() for kind in task.eval.eval_types}
    assert kinds == {"string_match", "url_match", "program_html"}


def test_no_template_is_on_two_sides():
    world = embedded(0)
    sides = {
        split: {world.tasks[task].intent_template_id for task in world.task_set.split(split)}
        for split in ("train", "test")
    }
    assert sides["train"] and sides["test"] and not sides["train"] & sides["test"]


def test_no_task_needs_a_judge():
    assert not any(task.needs_judge for task in embedded(0).tasks.values())


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_solves_every_task(env, split):
    for task in env.tasks.split(split):
        _, _, (_, reward, terminated, _, info) = play_expert(env, task)
        assert (reward, terminated, info["success"]) == (1.0, True, True), task


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["", "N/A", "done", "0"])
def test_nobody_is_paid_for_doing_nothing(env, answer):
    for task in env.tasks.ids:
        start(env, task)
        *_, reward, terminated, _, info = env.step(f"send_msg_to_user({answer!r})")
        assert (reward, terminated, info["success"]) == (0.0, True, False), task


def test_reporting_a_task_as_infeasible_is_not_paid_where_it_can_be_done(env):
    for task in env.tasks.split("test")[::25]:
        start(env, task)
        *_, reward, terminated, _, _ = env.step("report_infeasible('no')")
        assert (reward, terminated) == (0.0, True)


def test_an_episode_reads_the_same_every_time(env):
    for task in env.tasks.split("test")[::60]:
        assert play_expert(env, task) == play_expert(WebArena(), task)


def test_what_one_episode_changes_no_other_sees(env):
    change = next(t for t in env.tasks.ids if embedded(0).tasks[t].eval.program_html)
    others = [WebArena() for _ in range(100)]
    before = {start(other, change) for other in others}
    assert len(before) == 1 and play_expert(env, change)[2][1] == 1.0
    for other in others:
        *_, reward, _, _, _ = other.step("send_msg_to_user('')")
        assert reward == 0.0, "the change was made in another session"
        other.close()


def test_both_grammars_and_prose_are_understood(env):
    task = "shopping/7101/0"
    expected = play_expert(env, task)
    start(env, task)
    for action, told in zip(expected[1], expected[0][1:], strict=True):
        assert env.step(f"I think this is it:\n```\n{action}\n```")[0] == told
    for written in ("click [9999]", "click('9999')"):
        start(env, task)
        assert 'Could not find element with bid "9999"' in env.step(written)[0]


def test_what_is_no_action_is_told_and_costs_a_turn(env):
    observation = start(env, "shopping/7101/0")
    told, reward, terminated, _, info = env.step("I do not know.")
    assert "Received no action" in told and (reward, terminated, info["turn"]) == (0.0, False, 1)
    assert observation.split("# Current page")[1].split("# Last")[0].strip() in told


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "https://shop.test", "file:///etc/passwd", "http://127.0.0.1:8000/",
     "javascript:alert(1)", "http://shop.test.example.com/", "data:text/html,hi"],
)  # fmt: skip
def test_nothing_outside_the_sites_is_opened(env, url):
    observation = start(env, "shopping/7101/0")
    told = env.step(f"goto({url!r})")[0]
    assert "Error" in told and "http://shop.test" in told
    assert observation.split("# Current page")[1].strip() in told


def test_agentgyms_layout_shows_public_addresses_and_takes_them_back():
    env = WebArena(layout="agentgym")
    observation = start(env, "shopping/7101/0")
    assert observation.startswith("OBSERVATION:\nTab 0 (current): ")
    assert "URL: http://onestopmarket.com" in observation and "OBJECTIVE: " in observation
    told = env.step("```goto [http://reddit.com]```")[0]
    assert "URL: http://reddit.com" in told and "PREVIOUS ACTION: goto(" in told
    env.close()


def test_other_seeds_are_other_data():
    assert embedded(1).blobs.values() != embedded(0).blobs.values()
    env = WebArena(seed=1)
    rng = random.Random(0)
    for task in rng.sample(env.tasks.split("test"), 20):
        assert play_expert(env, task)[2][1] == 1.0, task
    env.close()


def test_wrong_settings_are_refused():
    with pytest.raises(BadRequest, match="layout 'json' is not one of browsergym, agentgym"):
        WebArena(layout="json")
    with pytest.raises(BadRequest, match="seed is a whole number from 0, got -1"):
        WebArena(seed=-1)


@pytest.mark.slow
def test_it_keeps_every_promise_of_an_environment():
    found = check_environment("agentgym/WebArena-v0", tasks_per_split=3)
    assert not [finding for finding in found if not finding.passed]
