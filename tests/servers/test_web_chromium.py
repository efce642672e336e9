"""Tasks in a real Chromium: the same pages, the same rewards, and nothing but the sites."""

from __future__ import annotations

import re
from itertools import islice
from urllib.parse import urljoin, urlsplit

import lxml.html
import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.opening import open_chromium, open_text
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.worlds.webarena import WebArena
from browsing import needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow]

WORLD = embedded(0)
SITES = embedded_sites()
ANY_TASK = next(iter(WORLD.tasks.values()))
SAMPLED = [task for split in ("test", "train") for task in WORLD.task_set.split(split)][
    :: 1799 // 100
]
PARTS = 10


@pytest.fixture(scope="module")
def both():
    """The same start in a Chromium and in a browser of text."""
    opened = [open_chromium(WORLD, SITES, ANY_TASK), open_text(WORLD, SITES, ANY_TASK)]
    yield [one.browser for one in opened]
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.vital] * (part == 0)) for part in range(PARTS)]
)
def test_the_experts_solve_tasks_in_chromium_as_they_do_without(part):
    env = WebArena(backend="chromium")
    without = WebArena(backend="text")
    try:
        for task in SAMPLED[part::PARTS]:
            rewards = []
            for one in (env, without):
                one.reset(seed=0, options={"task": task})
                done, paid = False, []
                while not done:
                    action = one.expert_action()
                    assert action is not None, f"the expert of {task} is lost"
                    _, reward, done, _, _ = one.step(action)
                    paid.append(reward)
                rewards.append(paid)
            assert rewards[0] == rewards[1] and sum(rewards[0]) == 1, task
    finally:
        env.close()
        without.close()


def test_a_hundred_tasks_are_sampled_from_all_sites():
    assert len(SAMPLED) >= 100
    assert {WORLD.task_set.category(task) for task in SAMPLED} >= set(HOSTS) - {"homepage"}


@pytest.mark.parametrize("answer", ["", "N/A", "done", "0"])
def test_stopping_at_once_solves_nothing_in_chromium(answer):
    env = WebArena(backend="chromium")
    try:
        for task in SAMPLED[:: len(SAMPLED) // 6]:
            env.reset(seed=0, options={"task": task})
            _, reward, done, _, info = env.step(f"send_msg_to_user({answer!r})")
            assert (reward, done, info["success"]) == (0, True, False), task
    finally:
        env.close()


def page_types(most_pages: int = 4000) -> dict[str, str]:
    """A page of every kind, found by following links: its kind and its address."""
    session = WORLD.session()
    browser = open_text(WORLD, SITES, ANY_TASK).browser
    found: dict[str, str] = {}
    waiting, seen = [f"{base}/" for base in HOSTS.values()], set()
    for url in islice(iter(lambda: waiting.pop(0) if waiting else None, None), most_pages):
        kind = kind_of_page(url)
        if kind in found or browser.act(Action("goto", (url,))):
            continue
        found[kind] = url
        page = lxml.html.fromstring(browser.document().html or "<html></html>")
        for link in page.xpath("//a/@href"):
            target = urljoin(url, link)
            if urlsplit(target).scheme == "http" and target not in seen:
                seen.add(target)
                waiting.append(target)
    session.close()
    return found


def kind_of_page(url: str) -> str:
    """An address without its numbers and names: pages of one kind share it."""
    parts = urlsplit(url)
    path = re.sub(r"\d+", "N", parts.path)
    segments = [s if s.islower() and "-" not in s and len(s) < 14 else "*" for s in path.split("/")]
    query = sorted(re.findall(r"(?:^|&)([^=&]+)=", parts.query))
    return f"{parts.netloc}{'/'.join(segments)}?{'&'.join(query)}"


@pytest.fixture(scope="module")
def pages():
    return page_types()


def test_there_are_pages_of_every_site(pages):
    assert len(pages) > 100
    hosts = {urlsplit(url).netloc for url in pages.values()}
    assert hosts == {urlsplit(base).netloc for base in HOSTS.values()}


@pytest.mark.parametrize("part", range(4))
def test_every_kind_of_page_has_the_same_tree_when_it_is_freshly_loaded(both, pages, part):
    chromium, text = both
    different = []
    for kind, url in sorted(pages.items())[part::4]:
        for browser in both:
            assert browser.act(Action("goto", (url,))) == "", kind
        if chromium.tree() != text.tree():
            different.append(url)
    assert different == []


STEPS = {
    "a new tab and back": ["new_tab()", "goto('http://wiki.test/')", "tab_focus(0)", "tab_close()"],
    "back and forth": [
        "goto('http://forum.test/')", "goto('http://forum.test/forums')", "go_back()",
        "go_forward()",
    ],
    "an element that is not there": ["click('99999')", "fill('99999', 'x')"],
    "addresses out of bounds": [
        "goto('http://example.com/')", "goto('https://shop.test/')", "goto('file:///etc/passwd')",
        "goto('http://127.0.0.1/')", "goto('shop')", "goto('javascript:alert(1)')",
        "goto('data:text/html,hi')", "goto('chrome://version')", "goto('http://shop.test:81/')",
    ],
    "keys and scrolling": ["scroll(0, 200)", "keyboard_press('Tab')", "noop(0)"],
    "no page there": ["goto('http://shop.test/no/such/page')"],
}  # fmt: skip


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_actions_show_and_say_the_same(steps):
    opened = [open_chromium(WORLD, SITES, ANY_TASK), open_text(WORLD, SITES, ANY_TASK)]
    try:
        for step in steps:
            action = parse_action(step)
            errors = [one.browser.act(action) for one in opened]
            assert errors[0] == errors[1], step
            seen = [(one.browser.tabs, one.browser.active) for one in opened]
            assert seen[0] == seen[1], step
            if "keyboard" not in step:  # the focus on a link shows; see docs/webarena.md
                assert opened[0].browser.tree() == opened[1].browser.tree(), step
    finally:
        for one in opened:
            one.close()


def test_eight_episodes_in_one_browser_see_only_their_own_carts():
    envs = [WebArena(backend="chromium") for _ in range(8)]
    try:
        for number, env in enumerate(envs):
            env.reset(seed=0, options={"task": "shopping/7101/0"})
            env.step("goto('http://forum.test/f/books/submit')")
            env.step(f"goto('http://shop.test/catalogsearch/result/?q=number-{number}')")
        for number, env in enumerate(envs):
            observation = env.step("noop(0)")[0]
            assert f"number-{number}" in observation
            assert not [n for n in range(8) if n != number and f"number-{n}" in observation]
    finally:
        for env in envs:
            env.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "firefox"}, "backend 'firefox'"),
        ({"sites": "mars"}, "sites 'mars'"),
        ({"sites": "real", "backend": "text"}, "real sites need scripts"),
        ({"sites": "real"}, "WA_SHOPPING"),
        ({"judge": "no.such:judge"}, "no.such"),
    ],
)
def test_bad_settings_are_told(settings, words, monkeypatch):
    monkeypatch.delenv("WA_SHOPPING", raising=False)
    with pytest.raises(BadRequest, match=words):
        WebArena(**settings)
