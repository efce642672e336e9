"""All embedded sites together: their data as bytes, their tasks by id, an episode's session."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from agentgym_env.text_env import TaskSet
from agentgym_servers.web.sites.code_host import site as code_host_site
from agentgym_servers.web.sites.code_host import tasks as code_host_tasks
from agentgym_servers.web.sites.forum import site as forum_site
from agentgym_servers.web.sites.forum import tasks as forum_tasks
from agentgym_servers.web.sites.map import site as map_site
from agentgym_servers.web.sites.map import tasks as map_tasks
from agentgym_servers.web.sites.pages import Router, Visit, freeze, make_database, render
from agentgym_servers.web.sites.shop import data as shop_data
from agentgym_servers.web.sites.shop.shop import SHOP
from agentgym_servers.web.sites.shop.tasks import shop_tasks
from agentgym_servers.web.sites.site import (
    ACCOUNTS,
    HOSTS,
    Request,
    Response,
    Site,
    SiteSession,
    host_of,
)
from agentgym_servers.web.sites.wiki import site as wiki_site
from agentgym_servers.web.sites.wiki import tasks as wiki_tasks
from agentgym_servers.web.tasks import combined
from agentgym_servers.web.tasks.scripts import ScriptedTask, Step
from agentgym_servers.web.tasks.tasks import WebTask, check_task

ROUTER: Final = Router()

NAMES: Final = {
    "shopping": "Shop",
    "shopping_admin": "Shop administration",
    "reddit": "Forum",
    "gitlab": "Code host",
    "wikipedia": "Encyclopedia",
    "map": "Map",
}

_SCHEMA: Final = """
CREATE TABLE password(site TEXT PRIMARY KEY, username TEXT, password TEXT);
"""

_PASSWORDS: Final = tuple((NAMES[site], *account) for site, account in ACCOUNTS.items())


class Homepage:
    """Links to the other sites."""

    def make_database(self, seed: int) -> sqlite3.Connection:
        """The passwords."""
        return make_database(_SCHEMA, {"password": _PASSWORDS})

    def answer(self, database: sqlite3.Connection, request: Request) -> Response:
        """Answer a request."""
        found = ROUTER.answer(database, request)
        return found or Response(render(__package__, "missing.html"), 404)


def logged_in_cookies(account: str) -> dict[str, str]:
    """None: the homepage has no log-in."""
    return {}


@ROUTER.get("/")
def front(visit: Visit) -> Response:
    """The sites."""
    sites = [(name, HOSTS[site] + "/") for site, name in NAMES.items()]
    return Response(render(__package__, "homepage.html", sites=sites))


@ROUTER.get("/password.html")
def passwords(visit: Visit) -> Response:
    """Who one is on each site."""
    rows = visit.all("SELECT * FROM password")
    return Response(render(__package__, "passwords.html", rows=rows))


@ROUTER.get("/links/{number}")
def link(visit: Visit) -> Response:
    """Where the forum's submissions of links lead."""
    return Response(render(__package__, "link.html", number=visit.number("number")))


@dataclass(frozen=True, slots=True)
class Embedded:
    """The sites over the data of one seed."""

    sites: Mapping[str, Site]
    """By host."""
    blobs: Mapping[Site, bytes]
    tasks: Mapping[str, WebTask]
    experts: Mapping[str, tuple[Step, ...]]
    task_set: TaskSet

    def session(self) -> SiteSession:
        """The sites as an episode begins with them; no other episode sees what it changes."""
        return SiteSession(self.sites, self.blobs)


@cache
def embedded(seed: int) -> Embedded:
    """The sites, data and tasks of a seed, made once."""
    forum, code_host, wiki = forum_site.Forum(), code_host_site.CodeHost(), wiki_site.Wiki()
    sites: dict[str, Site] = {
        host_of("shopping"): SHOP,
        host_of("shopping_admin"): SHOP,
        host_of("reddit"): forum,
        host_of("gitlab"): code_host,
        host_of("wikipedia"): wiki,
        host_of("map"): map_site.Map(),
        host_of("homepage"): Homepage(),
    }
    blobs: dict[Site, bytes] = {}
    for site in sites.values():
        if site not in blobs:
            database = site.make_database(seed)
            blobs[site] = freeze(database)
            database.close()
    scripted = {_id(count, task): task for count, task in _counted(_all_tasks(seed))}
    splits = {
        split: [name for name, task in scripted.items() if task.split == split]
        for split in ("train", "test")
    }
    tasks = {
        name: _read(task.config, number) for number, (name, task) in enumerate(scripted.items())
    }
    return Embedded(
        sites,
        blobs,
        tasks,
        {name: task.expert for name, task in scripted.items()},
        TaskSet(splits, {name: name.partition("/")[0] for name in scripted}),
    )


@cache
def starting_cookies() -> Mapping[str, Mapping[str, str]]:
    """Host -> the cookies of who is logged in from the start."""
    names = {site: account.username for site, account in ACCOUNTS.items()}
    return {
        host_of("shopping"): shop_data.logged_in_cookies(names["shopping"]),
        host_of("shopping_admin"): shop_data.logged_in_cookies(names["shopping_admin"]),
        host_of("reddit"): forum_site.logged_in_cookies(names["reddit"]),
        host_of("gitlab"): code_host_site.logged_in_cookies(names["gitlab"]),
    }


def page_exists(session: SiteSession, url: str) -> bool:
    """Whether a site answers with a page (200), to who is logged in from the start."""
    parts = urlsplit(url)
    try:
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        query = {}
    cookies = starting_cookies().get(parts.netloc, {})
    request = Request("GET", parts.netloc, unquote(parts.path or "/"), query, {}, cookies)
    return session.answer(request).status == 200


def _all_tasks(seed: int) -> list[ScriptedTask]:
    return [
        *shop_tasks(seed),
        *forum_tasks.tasks(seed),
        *code_host_tasks.tasks(seed),
        *wiki_tasks.tasks(seed),
        *map_tasks.tasks(seed),
        *combined.tasks(seed),
    ]


def _counted(tasks: list[ScriptedTask]) -> list[tuple[int, ScriptedTask]]:
    """Each task with its number among those of its template."""
    seen: Counter[int] = Counter()
    counted = []
    for task in tasks:
        template = int(task.config["intent_template_id"])
        counted.append((seen[template], task))
        seen[template] += 1
    return counted


def _id(count: int, task: ScriptedTask) -> str:
    sites = "+".join(task.config["sites"])
    return f"{sites}/{task.config['intent_template_id']}/{count}"


def _read(config: dict[str, Any], number: int) -> WebTask:
    task = msgspec.convert({**config, "task_id": number}, WebTask)
    check_task(task)
    return task
