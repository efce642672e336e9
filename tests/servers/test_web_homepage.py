"""The embedded homepage, and the tasks that take two sites."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import msgspec
from own_sites import TASKS

from agentgym_servers.web.sites.code_host import tasks as code_tasks
from agentgym_servers.web.sites.forum import tasks as forum_tasks
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.tasks import combined
from page_reader import splits_by_template

ALL = [task for tasks in TASKS.values() for task in tasks]
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


def test_the_homepage_links_to_every_site_and_to_the_passwords(sites):
    reader = sites.open().goto("__HOMEPAGE__/")
    links = set(reader.page.xpath("//a/@href"))
    assert links == {f"{url}/" for name, url in HOSTS.items() if name != "homepage"} | {
        "/password.html"
    }


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
        "import msgspec, sys\n"
        "from agentgym_servers.web.tasks import combined\n"
        "from agentgym_servers.web.sites.code_host import tasks as code_tasks\n"
        "from agentgym_servers.web.sites.forum import tasks as forum_tasks\n"
        "made = [*combined.tasks(5), *code_tasks.tasks(5), *forum_tasks.tasks(5)]\n"
        "sys.stdout.buffer.write(msgspec.json.encode(made))\n"
    )
    paths = os.pathsep.join(path or "." for path in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": paths}
    told = subprocess.check_output([sys.executable, "-c", script], env=environment, timeout=120)
    made = [*combined.tasks(5), *code_tasks.tasks(5), *forum_tasks.tasks(5)]
    assert told == msgspec.json.encode(made)
