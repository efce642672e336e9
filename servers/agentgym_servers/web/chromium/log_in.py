"""Logging in to WebArena's sites by their own forms, as BrowserGym does before a task."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page

from agentgym_servers.web.chromium.messages import LogIn


def log_in(context: BrowserContext, how: LogIn) -> None:
    """Log in on a page of its own; sites without accounts are left alone."""
    fill = {
        "shopping": _shopping,
        "shopping_admin": _shopping_admin,
        "reddit": _reddit,
        "gitlab": _gitlab,
    }.get(how.site)
    if fill is None:
        return
    page = context.new_page()
    try:
        fill(page, how)
        page.wait_for_load_state("domcontentloaded")
    finally:
        page.close()


def _shopping(page: Page, how: LogIn) -> None:
    page.goto(f"{how.base}/customer/account/login/")
    page.get_by_label("Email", exact=True).fill(how.account.username)
    page.get_by_label("Password", exact=True).fill(how.account.password)
    page.get_by_role("button", name="Sign In").click()


def _shopping_admin(page: Page, how: LogIn) -> None:
    page.goto(how.base)
    page.get_by_label("Username").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Sign in").click()


def _reddit(page: Page, how: LogIn) -> None:
    page.goto(how.base)
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Username").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Log in").click()


def _gitlab(page: Page, how: LogIn) -> None:
    page.goto(f"{how.base}/users/sign_in")
    page.get_by_label("Username or email").fill(how.account.username)
    page.get_by_label("Password").fill(how.account.password)
    page.get_by_role("button", name="Sign in").click()
