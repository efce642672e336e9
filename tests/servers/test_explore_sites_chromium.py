"""`agentgym sites` in a real Chromium: the goal next to a page in a frame, and a verdict on it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest

from agentgym_servers.web.explore.panel import open_panel
from cdp import chromium, needs_chromium

pytestmark = [needs_chromium, pytest.mark.slow]


@asynccontextmanager
async def panel(task):
    """The panel on a task, in a new tab."""
    with open_panel(task) as (explorer, address):
        async with chromium() as browser:
            page = await browser.page()
            await page.goto(f"{address}/")
            await at(page, explorer.start_url)
            yield page, explorer


async def at(page, url):
    """Wait until the panel knows that a page whose address begins so is shown."""
    await page.until(
        f"document.querySelector('#address').textContent.startsWith({json.dumps(url)})"
    )


async def click_in_frame(page, text):
    """Click the link or the button whose text begins so, in the frame."""
    found = await page.in_frame(
        "(() => { const one = [...document.querySelectorAll('a, button')]"
        f".find((e) => e.textContent.trim().startsWith({json.dumps(text)}));"
        "one?.click(); return Boolean(one) })()"
    )
    assert found, f"no {text!r} in {await page.in_frame('document.body.innerText')}"


async def verdict(page):
    await page.js("document.querySelector('#result').textContent = ''")
    await page.click("#check button")
    await page.until("document.querySelector('#result').textContent")
    return await page.text("#result")


async def test_an_answer_is_checked_and_the_reasons_are_shown():
    async with panel("shopping/7101/0") as (page, explorer):
        assert await page.text("#goal") == explorer.task.intent
        assert "asks for one" in await page.text("#hint")
        assert await verdict(page) == "Not reached yet."
        await page.click("#answer")
        await page.type(explorer.task.eval.reference_answers.must_include[0])
        assert await verdict(page) == "Goal reached."
        assert "Passed: the answer" in await page.text("#verdicts")
        assert page.complaints == []


async def test_a_person_is_logged_in_within_the_frame_and_changes_the_site():
    async with panel("reddit/1014/9") as (page, explorer):
        account = "MarvelsGrantMan136"
        assert account in await page.in_frame("document.body.innerText")
        forum = explorer.links.shown("http://forum.test/f/modelrailways")
        await page.in_frame(f"location.href = {json.dumps(forum)}")
        await at(page, forum)
        assert await verdict(page) == "Not reached yet."
        await page.js("document.querySelector('#address').textContent = ''")
        await click_in_frame(page, "Subscribe")
        await at(page, forum)
        assert await verdict(page) == "Goal reached."
        assert page.complaints == []


async def test_what_is_typed_and_not_sent_is_judged_as_well():
    async with panel("shopping/7208/3") as (page, explorer):
        form = explorer.links.shown("http://shop.test/contact")
        await page.in_frame(f"location.href = {json.dumps(form)}")
        await at(page, form)
        assert await verdict(page) == "Not reached yet."
        text = [
            one
            for item in explorer.task.eval.program_html
            for one in item.required_contents.must_include or ()
        ]
        await page.in_frame(
            f"document.querySelector('textarea').value = {json.dumps(' '.join(text))}"
        )
        assert await verdict(page) == "Goal reached."


async def test_the_buttons_lead_to_the_sites_back_and_to_other_tasks():
    async with panel("map/1202/11") as (page, explorer):
        start = explorer.start_url
        for host in ("shop", "forum", "code", "wiki", "home"):
            url = explorer.links.shown(f"http://{host}.test/")
            await page.click(f"[data-url='{url}']")
            await at(page, url)
        await page.click("#back")
        await at(page, explorer.links.shown("http://wiki.test/"))
        await page.click("#again")
        await at(page, start)
        await page.click("#choice")
        await page.type("gitlab/1106/19")
        await page.click("#open button")
        await at(page, explorer.links.shown("http://code.test"))
        assert explorer.task_id == "gitlab/1106/19"
        assert await page.text("#goal") == explorer.task.intent
        await page.click("#choice")
        await page.type("x")
        await page.click("#open button")
        await page.until("document.querySelector('#result').textContent.includes('did you mean')")


async def test_a_page_leaves_no_trace_of_the_script_that_reports():
    async with panel("shopping/7101/0") as (page, _):
        assert await page.in_frame("document.querySelectorAll('script').length") == 0
