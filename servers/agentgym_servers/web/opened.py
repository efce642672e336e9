"""An episode's browser, and what judges it, open on the task's pages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym_servers.web.action import Action
from agentgym_servers.web.bounds import origins_of
from agentgym_servers.web.browser import Browser
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.messages import Cookie, LogIn, StartSites
from agentgym_servers.web.doors import open_embedded, open_real
from agentgym_servers.web.embedded import Embedded, starting_cookies
from agentgym_servers.web.front.door import Door
from agentgym_servers.web.har import Exchange
from agentgym_servers.web.page_access import Pages, Rest
from agentgym_servers.web.real_rest import RealRest
from agentgym_servers.web.site_map import SiteMap
from agentgym_servers.web.site_rest import SiteRest
from agentgym_servers.web.tasks import WebTask
from agentgym_servers.web.text_browser import TextBrowser
from agentgym_servers.web.text_pages import TextPages


@dataclass(frozen=True, slots=True)
class Opened:
    """What an episode has of the web."""

    browser: Browser
    pages: Pages
    rest: Rest
    close: Callable[[], None]
    exchanges: Callable[[], Sequence[Exchange]]
    """What the sites were asked and answered so far; real ones are not listened to."""


def open_text(world: Embedded, sites: SiteMap, task: WebTask) -> Opened:
    """Open a task on embedded sites without a browser program."""
    session = world.session()
    browser = TextBrowser(session)
    for host, cookies in starting_cookies().items():
        browser.set_cookies(host, cookies)
    for number, url in enumerate(task.start_urls):
        if number:
            browser.act(Action("new_tab"))
        browser.act(Action("goto", (sites.resolve(url),)))
    return Opened(
        browser,
        TextPages(browser),
        SiteRest(session),
        session.close,
        lambda: tuple(browser.exchanges),
    )


def open_chromium(world: Embedded, sites: SiteMap, task: WebTask) -> Opened:
    """Open a task on embedded sites in a Chromium that reaches nothing else."""
    session = world.session()
    door = open_embedded(session)
    start = StartSites(
        episode=secrets.token_hex(8),
        proxy=door.address,
        urls=[sites.resolve(url) for url in task.start_urls],
        cookies=[
            Cookie(f"http://{host}/", name, value)
            for host, cookies in starting_cookies().items()
            for name, value in cookies.items()
        ],
    )

    def end() -> None:
        door.close()
        session.close()

    return _in_chromium(start, sites, SiteRest(session), end, door)


def open_on_real_sites(sites: SiteMap, task: WebTask) -> Opened:
    """Open a task on WebArena's own sites, in a Chromium that reaches nothing else.

    Each site that the task names is logged in to by its form.
    """
    door, rest = open_real(sites), RealRest(sites)
    log_ins = [
        LogIn(site, sites.bases[site], sites.accounts[site])
        for site in task.sites
        if task.require_login and site in sites.accounts
    ]
    urls = [sites.resolve(url) for url in task.start_urls]
    start = StartSites(secrets.token_hex(8), door.address, urls, log_ins=log_ins)

    def end() -> None:
        door.close()
        rest.close()

    return _in_chromium(start, sites, rest, end, door)


def _in_chromium(
    start: StartSites, sites: SiteMap, rest: Rest, end: Callable[[], None], door: Door
) -> Opened:
    try:
        browser = ChromiumBrowser(start, origins_of(sites.bases).__contains__)
    except BaseException:
        end()
        raise

    def close() -> None:
        browser.close()
        end()

    return Opened(browser, browser, rest, close, lambda: door.exchanges)
