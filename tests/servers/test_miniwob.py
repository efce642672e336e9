"""MiniWoB++ in Chromium: its tasks, its pages' verdicts, and scripts that do what a tree shows."""

from __future__ import annotations

import gymnasium
import psutil
import pytest
from gymnasium.utils.env_checker import check_env

import agentgym_env  # noqa: F401
from agentgym_env.errors import EpisodeOver
from agentgym_servers.worlds.miniwob.env import MiniWoB
from agentgym_servers.worlds.miniwob.experts import EXPERTS, SYNONYMS
from agentgym_servers.worlds.miniwob.tasks import NAMES, TEST_SEEDS, TRAIN_SEEDS, miniwob_tasks
from browsing import browser_processes, kind_of, needs_chromium

IN_CHROMIUM = [needs_chromium, pytest.mark.slow]
PARTS = 12


def in_chromium(test):
    for mark in IN_CHROMIUM:
        test = mark(test)
    return test


@pytest.fixture
def env():
    made = MiniWoB()
    yield made
    made.close()


def begin(env, task):
    return env.reset(seed=0, options={"task": task})


def tree_of(observation):
    return observation.partition("# Current page accessibility tree\n")[2]


def play(env, task):
    """Do a task by its script; the rewards on the way, and the last info."""
    _, info = begin(env, task)
    rewards, done = [], False
    while not done:
        action = env.expert_action()
        assert action is not None, f"the expert of {task} is lost: {env.render()}"
        _, reward, done, _, info = env.step(action)
        rewards.append(reward)
    return rewards, info


def test_125_tasks_have_100_seeds_to_train_and_5_to_test():
    tasks = miniwob_tasks()
    train, test = tasks.split("train"), tasks.split("test")
    assert (len(NAMES), len(set(NAMES)), len(train), len(test)) == (125, 125, 12_500, 625)
    assert not set(train) & set(test)
    assert not set(TRAIN_SEEDS) & set(TEST_SEEDS)
    assert tasks.category("click-test/3") == "click-test"


def test_experts_are_of_tasks_that_there_are():
    assert set(EXPERTS) <= set(NAMES)
    assert len(EXPERTS) == 70


def test_no_word_is_similar_to_two_families():
    words = [word for family in SYNONYMS for word in family]
    assert len(words) == len(set(words))


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("part", range(PARTS))
def test_all_tasks_begin_and_take_a_step(env, part):
    for name in NAMES[part::PARTS]:
        observation, info = begin(env, f"{name}/0")
        goal, _, rest = observation.removeprefix("# Goal\n").partition("\n\n")
        assert goal and f"URL: http://miniwob.test/miniwob/{name}.html\n" in rest
        assert tree_of(observation).startswith("RootWebArea '")
        assert info == {"task": f"{name}/0", "turn": 0, "success": False, "score": 0.0, "seed": 0}
        after, reward, terminated, truncated, info = env.step("noop(10)")
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
        assert after.endswith("# Last action\nnoop(10.0)")


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("name", EXPERTS)
def test_an_expert_solves_its_task_with_every_seed_of_test(env, name):
    for seed in TEST_SEEDS:
        rewards, info = play(env, f"{name}/{seed}")
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0], seed
        assert info["success"] and info["score"] == 1.0


@in_chromium
def test_a_wrong_answer_ends_with_nothing(env):
    observation, _ = begin(env, "click-test-2/0")
    assert "Click button ONE." in observation and "[14] button 'TWO'" in observation
    _, reward, terminated, _, info = env.step("click('14')")
    assert (reward, terminated, info["success"], info["score"]) == (0.0, True, False, 0.0)
    with pytest.raises(EpisodeOver):
        env.step("click('13')")


@in_chromium
def test_what_does_not_work_is_told_and_costs_nothing(env):
    begin(env, "click-test-2/0")
    for action, says in [
        ("click('999')", 'Could not find element with bid "999"'),
        ("goto('http://other.test')", "Received no action"),
        ("upload_file('13', '/etc/hostname')", "Received no action"),
        ("keyboard_press('NoSuchKey')", "NoSuchKey"),
    ]:
        observation, reward, terminated, _, _ = env.step(action)
        assert says in observation.partition("# Error message from last action\n")[2]
        assert (reward, terminated) == (0.0, False)
    assert env.step("click [13]")[1:3] == (1.0, True)


@in_chromium
def test_a_seed_gives_the_same_page_and_others_give_others(env):
    seen = [begin(env, f"click-checkboxes/{seed}")[0] for seed in range(5)]
    assert [begin(env, f"click-checkboxes/{seed}")[0] for seed in range(5)] == seen
    assert len(set(seen)) == 5


@in_chromium
def test_a_task_without_an_expert_gets_no_advice(env):
    begin(env, "click-color/0")
    assert env.expert_action() is None


@in_chromium
def test_an_expert_who_is_led_astray_gives_no_more_advice(env):
    begin(env, "guess-number/0")
    assert env.expert_action() == "fill('21', '4')"
    env.step("noop(1)")
    env._browser.current().evaluate("document.body.replaceChildren()")
    env.step("noop(1)")
    assert env.expert_action() is None


@in_chromium
def test_the_mouse_goes_to_pixels_of_the_page(env):
    begin(env, "click-test/0")
    box = env._browser.current().evaluate(
        "(box => [box.x + box.width / 2, box.y + box.height / 2])"
        "(document.querySelector('#area button').getBoundingClientRect())"
    )
    x, y = (float(number) for number in box)
    assert env.step(f"mouse_click({x}, {y})")[1:3] == (1.0, True)


@in_chromium
@pytest.mark.parametrize(
    "leave",
    [
        "location.assign('http://miniwob.test/miniwob/click-test.html')",
        "location.assign('http://other.test/')",
        "window.open('http://miniwob.test/miniwob/click-test.html')",
        "location.assign('about:blank')",
    ],
)
def test_a_page_that_is_left_ends_the_task_with_nothing(env, leave):
    begin(env, "click-test-2/0")
    env._browser.current().evaluate(f"setTimeout(() => {leave}, 0) && 1")
    ended = False
    for _ in range(5):
        observation, reward, ended, _, info = env.step("noop(200)")
        assert tree_of(observation) and reward == 0.0
        if ended:
            break
    assert ended and not info["success"]
    assert play(env, "click-test-2/0")[0] == [1.0]


@in_chromium
def test_a_dialog_does_not_hold_up_a_page(env):
    begin(env, "click-test-2/0")
    env._browser.current().evaluate(
        "setTimeout(() => { alert('a'); confirm('b'); prompt('c') }, 0) && 1"
    )
    assert env.step("noop(200)")[2] is False
    assert env.step("click('13')")[1:3] == (1.0, True)


@in_chromium
def test_resets_leave_no_listeners_and_no_pages_behind(env):
    begin(env, "click-test/0")
    worker, listeners = env._browser._worker, open_listeners()
    for seed in range(1, 9):
        begin(env, f"click-test/{seed}")
    assert env._browser._worker is worker
    assert len(worker.episodes) == 1
    assert open_listeners() == listeners
    # Chromium keeps one in reserve, and one may be about to go.
    assert len([p for p in browser_processes(worker.pid) if kind_of(p) == "renderer"]) <= 3
    env.close()
    env.close()
    assert open_listeners() == listeners - 1 and not worker.episodes
    assert begin(env, "click-test/0")[1]["turn"] == 0


def open_listeners():
    connections = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_LISTEN for one in connections)


@in_chromium
def test_gymnasiums_checker_has_nothing_to_say():
    env = gymnasium.make("agentgym/MiniWoB-v0", server="inprocess")
    try:
        check_env(env.unwrapped)
    finally:
        env.close()
