"""The real WebArena's road, on sites that stand at addresses of their own as it would."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_servers.web.actions.calls import write_call
from agentgym_servers.web.chromium.interpreter import package_folder, web_environment, web_python
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.origins import open_origins
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.tasks.scripts import Goto, action_of
from agentgym_servers.web.tasks.tasks import packaged_tasks
from agentgym_servers.worlds.webarena import WebArena
from browsing import needs_chromium, what_browsergym_needs
from real_ways import WAYS

TESTS = Path(__file__).parents[1] / "support"


def _has(package: str) -> bool:
    return package_folder(package) is not None


needs_tasks = pytest.mark.skipif(
    not (_has("webarena") or _has("webarena_verified")),
    reason="WebArena's tasks are not installed; run `make setup-web`",
)


@pytest.fixture
def sites(monkeypatch):
    """Our sites where `WA_SHOPPING` and its like say; each a host of its own."""
    session = embedded(0).session()
    with Front() as front:
        origins = open_origins(front, session, rest=True)
        for site in HOSTS:
            monkeypatch.setenv(f"WA_{site.upper()}", origins.sites.bases[site])
        yield origins.sites
        origins.close()
    session.close()


@needs_tasks
def test_the_tasks_that_need_a_judge_are_left_out_by_name(sites, monkeypatch):
    env = WebArena(sites="real")
    left = set(env.left_out)
    tasks = packaged_tasks()
    assert len(tasks) == 812 and len(left) == 118
    assert left == {f"webarena/{task.task_id}" for task in tasks if task.needs_judge}
    assert not left & set(env.tasks.ids) and len(env.tasks.ids) == 694
    assert env.default_split == "test" and not env.has_expert()
    name = min(left)
    with pytest.raises(BadRequest, match=f"{name}.*judge"):
        env.reset(options={"task": name})
    assert len(WebArena(sites="real", judge=lambda prompt: "correct").tasks.ids) == 812
    assert len(WebArena(sites="real", judge="os:getcwd").tasks.ids) == 812


@needs_tasks
def test_addresses_alone_choose_the_real_sites(sites, monkeypatch):
    env = WebArena()
    assert env.tasks.ids[0] == "webarena/0"
    assert sites.bases["homepage"] in env.instruction
    assert WebArena(sites="embedded").tasks.ids[0] != "webarena/0"
    monkeypatch.setenv("WA_REDDIT", "not an address")
    with pytest.raises(BadRequest, match="WA_REDDIT"):
        WebArena()


def play(env, number):
    env.reset(seed=0, options={"task": f"webarena/{number}"})
    for step in WAYS[number]:
        if isinstance(step, Goto):
            step = Goto(env._arena.sites.resolve(step.url))
        action = action_of(step, env._opened.browser.tree())
        assert action is not None, f"{step} names nothing"
        _, reward, done, _, info = env.step(write_call(action))
    assert done
    return reward, info["success"]


@needs_chromium
@needs_tasks
@pytest.mark.slow
def test_real_tasks_are_done_logged_in_and_judged(sites):
    env = WebArena()
    try:
        for number in WAYS:
            env.reset(seed=0, options={"task": f"webarena/{number}"})
            _, reward, done, _, _ = env.step("send_msg_to_user('')")
            assert (reward, done) == (0, True), number
            assert play(env, number) == (1, True), number
    finally:
        env.close()


@needs_chromium
@needs_tasks
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["browsergym", "agentgym"])
def test_a_real_episode_is_logged_in_and_goes_nowhere_else(sites, layout):
    env = WebArena(layout=layout)
    home = {"browsergym": sites.bases["shopping"], "agentgym": "http://onestopmarket.com"}[layout]
    try:
        observation, _ = env.reset(seed=0, options={"task": "webarena/521"})
        assert "Welcome, Emma Lopez!" in observation and home in observation
        for url in ("http://example.com/", "file:///etc/passwd", "http://127.0.0.1:1/"):
            assert "out of bounds" in env.step(f"goto('{url}')")[0]
        assert "My Wish List" in env.step(f"goto('{home}/wishlist/')")[0]
    finally:
        env.close()


@needs_chromium
@needs_tasks
@pytest.mark.slow
@pytest.mark.skipif(not _has("browsergym"), reason="BrowserGym is not installed: make setup-web")
def test_browsergyms_own_webarena_solves_its_tasks_on_our_shop(sites, tmp_path):
    told = subprocess.run(
        [web_python(), "-m", "solve_with_browsergym"],
        cwd=TESTS,
        env={**web_environment(), **what_browsergym_needs(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    rewards = json.loads(told.stdout.splitlines()[-1])
    assert len(rewards["solved"]) >= 3 and set(rewards["solved"].values()) == {1.0}
    assert set(rewards["untouched"].values()) == {0.0}


def test_without_their_packages_the_tasks_are_told_to_be_missing(monkeypatch):
    with pytest.raises(MissingExtra, match="make setup-web"):
        packaged_tasks([])
