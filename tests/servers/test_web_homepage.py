"""The embedded homepage, and the tasks that take two sites."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from agentgym_servers.web.sites import embedded
from agentgym_servers.web.sites.code_host import site as code_host
from agentgym_servers.web.sites.code_host import tasks as code_tasks
from agentgym_servers.web.sites.forum import site as forum
from agentgym_servers.web.sites.forum import tasks as forum_tasks
from agentgym_servers.web.sites.map import site as map_site
from agentgym_servers.web.sites.map import tasks as map_tasks
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.sites.wiki import site as wiki
from agentgym_servers.web.sites.wiki import tasks as wiki_tasks
from agentgym_servers.web.tasks.combined import tasks
from page_reader import Sites, asked, crawl, given_junk, proved, splits_by_template

TASKS = tasks(0)
ALL = [
    *forum_tasks.tasks(0),
    *code_tasks.tasks(0),
    *wiki_tasks.tasks(0),
    *map_tasks.tasks(0),
    *TASKS,
]
FIELDS = {
    "sites",
    "task_id",
    "require_login",
    "storage_state",
    "start_url",
    "geolocation",
    "intent_template",
    "instantiation_dict",
    "intent",
    "require_reset",
    "eval",
    "intent_template_id",
}


@pytest.fixture(scope="module")
def sites():
    there = {
        "reddit": forum.Forum(),
        "gitlab": code_host.CodeHost(),
        "wikipedia": wiki.Wiki(),
        "map": map_site.Map(),
        "homepage": embedded.Homepage(),
    }
    cookies = {
        "reddit": forum.logged_in_cookies("MarvelsGrantMan136"),
        "gitlab": code_host.logged_in_cookies("byteblaze"),
    }
    return Sites(there, cookies)


def test_the_homepage_links_to_every_site_and_to_the_passwords(sites):
    reader = sites.open().goto("__HOMEPAGE__/")
    links = set(reader.page.xpath("//a/@href"))
    assert links == {f"{url}/" for name, url in HOSTS.items() if name != "homepage"} | {
        "/password.html"
    }
    assert len(crawl(sites.open(), "__HOMEPAGE__/", 10)) == 2


def test_the_passwords_of_the_homepage_open_the_sites(sites):
    reader = sites.open()
    reader.goto("__HOMEPAGE__/password.html")
    found = [row.xpath("td/text()") for row in reader.page.xpath("//tbody/tr")]
    given = {site: (name, password) for site, name, password in found}
    for url, site, fields in (
        ("__REDDIT__/login", "Forum", ("_username", "_password")),
        ("__GITLAB__/users/sign_in", "Code host", ("user[login]", "user[password]")),
    ):
        reader.cookies.clear()
        form = {field: [text] for field, text in zip(fields, given[site], strict=True)}
        assert given[site][0] in reader.goto(url, "POST", form).body


@given_junk
def test_garbage_is_answered_and_never_raises(sites, junk):
    for path in ("/{}", "/links/{}", "/password.html/{}"):
        for method in ("GET", "POST"):
            answer = asked(sites.open(), method, "home.test", path.format(junk), {"q": [junk]})
            assert answer.status in (200, 404)


@pytest.mark.parametrize("template", sorted({t.config["intent_template_id"] for t in TASKS}))
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(sites, template):
    for task in TASKS:
        if task.config["intent_template_id"] == template:
            proved(sites, task)


def test_over_all_sites_there_are_a_thousand_tasks_in_webarenas_form():
    splits = splits_by_template(ALL)
    assert len(splits) == 69
    assert Counter(splits.values()) == {"train": 51, "test": 18}
    assert len(ALL) >= 1000
    for task in ALL:
        assert set(task.config) == FIELDS
        assert task.config["task_id"] == -1
        assert task.config["start_url"].startswith("__")
        assert "{{" not in task.config["intent"]
        assert task.config["intent_template_id"] >= 1000


def test_a_task_without_accounts_has_no_storage_state():
    states = {tuple(task.config["sites"]): task.config["storage_state"] for task in ALL}
    assert states["map",] is None
    assert states["wikipedia", "map"] is None
    assert states["reddit",] == "./.auth/reddit_state.json"
    assert states["reddit", "gitlab"] == "./.auth/gitlab.reddit_state.json"


def test_data_and_tasks_do_not_depend_on_the_order_of_hashes():
    script = (
        "import hashlib, msgspec\n"
        "from agentgym_servers.web.tasks import combined as combined_tasks\n"
        "from agentgym_servers.web.sites.code_host import tasks as code_tasks\n"
        "from agentgym_servers.web.sites.forum import tasks as forum_tasks\n"
        "made = [*combined_tasks.tasks(5), *code_tasks.tasks(5), *forum_tasks.tasks(5)]\n"
        "print(hashlib.sha256(msgspec.json.encode(made)).hexdigest())\n"
    )
    digests = set()
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", script]
        digests.add(subprocess.check_output(command, env=environment, timeout=60))
    assert len(digests) == 1
