"""The embedded sites that one reader of pages reads, with who is logged in and the tasks."""

from __future__ import annotations

from functools import cache

from agentgym_servers.web.sites import embedded
from agentgym_servers.web.sites.code_host import site as code_host
from agentgym_servers.web.sites.code_host import tasks as code_tasks
from agentgym_servers.web.sites.forum import site as forum
from agentgym_servers.web.sites.forum import tasks as forum_tasks
from agentgym_servers.web.sites.map import site as map_site
from agentgym_servers.web.sites.map import tasks as map_tasks
from agentgym_servers.web.sites.wiki import site as wiki
from agentgym_servers.web.sites.wiki import tasks as wiki_tasks
from agentgym_servers.web.tasks import combined
from page_reader import Sites

READER = "MarvelsGrantMan136"
DEVELOPER = "byteblaze"
MADE = {
    "reddit": forum.Forum(),
    "gitlab": code_host.CodeHost(),
    "wikipedia": wiki.Wiki(),
    "map": map_site.Map(),
    "homepage": embedded.Homepage(),
}
"""Each site by WebArena's name."""
TASKS = {
    "reddit": forum_tasks.tasks(0),
    "gitlab": code_tasks.tasks(0),
    "wikipedia": wiki_tasks.tasks(0),
    "map": map_tasks.tasks(0),
    "homepage": combined.tasks(0),
}
"""Its tasks; the homepage's are those that take two sites."""
COOKIES = {
    "reddit": forum.logged_in_cookies(READER),
    "gitlab": code_host.logged_in_cookies(DEVELOPER),
}


@cache
def all_sites() -> Sites:
    """All of them; each call of `open` is a session with data of its own."""
    return Sites(MADE, COOKIES)
