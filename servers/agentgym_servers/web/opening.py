"""Opens a task: its sites, and a browser on them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.messages import Cookie, LogIn, StartSites
from agentgym_servers.web.evaluation.own_rules import PageExists
from agentgym_servers.web.evaluation.page_access import Pages, Rest
from agentgym_servers.web.evaluation.page_views import TextPages
from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.front.forward_gate import open_embedded, open_real
from agentgym_servers.web.front.front import Listener
from agentgym_servers.web.layouts import Browser
from agentgym_servers.web.sites.embedded import Embedded, page_exists, starting_cookies
from agentgym_servers.web.sites.rest import RealRest, SiteRest
from agentgym_servers.web.sites.site_map import SiteMap, origins_of
from agentgym_servers.web.tasks.tasks import WebTask
from agentgym_servers.web.text_browser.browser import TextBrowser


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of the web that an episode uses."""

    browser: Browser
    pages: Pages
    rest: Rest
    close: Callable[[], None]
    exchanges: Callable[[], Sequence[Exchange]]
    """The requests and answers of the sites so far; real sites are not recorded."""
    page_exists: PageExists | None
    """Of our own sites, which have stricter rules; None on real ones."""


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
        partial(page_exists, session),
    )


def open_chromium(world: Embedded, sites: SiteMap, task: WebTask) -> Opened:
    """Open a task on embedded sites in a Chromium that reaches nothing else."""
    session = world.session()
    listener = open_embedded(session)
    start = StartSites(
        episode=secrets.token_hex(8),
        proxy=listener.address,
        urls=[sites.resolve(url) for url in task.start_urls],
        cookies=[
            Cookie(f"http://{host}/", name, value)
            for host, cookies in starting_cookies().items()
            for name, value in cookies.items()
        ],
    )

    def end() -> None:
        listener.close()
        session.close()

    return _in_chromium(
        start, sites, SiteRest(session), end, listener, partial(page_exists, session)
    )


def open_on_real_sites(sites: SiteMap, task: WebTask) -> Opened:
    """Open a task on WebArena's own sites, in a Chromium that reaches nothing else.

    Each site that the task names is logged in to by its form.
    """
    listener, rest = open_real(sites), RealRest(sites)
    log_ins = [
        LogIn(site, sites.bases[site], sites.accounts[site])
        for site in task.sites
        if task.require_login and site in sites.accounts
    ]
    urls = [sites.resolve(url) for url in task.start_urls]
    start = StartSites(secrets.token_hex(8), listener.address, urls, log_ins=log_ins)

    def end() -> None:
        listener.close()
        rest.close()

    return _in_chromium(start, sites, rest, end, listener)


def _in_chromium(
    start: StartSites,
    sites: SiteMap,
    rest: Rest,
    end: Callable[[], None],
    listener: Listener,
    exists: PageExists | None = None,
) -> Opened:
    try:
        browser = ChromiumBrowser(start, origins_of(sites.bases).__contains__)
    except BaseException:
        end()
        raise

    def close() -> None:
        browser.close()
        end()

    return Opened(browser, browser, rest, close, lambda: listener.exchanges, exists)
