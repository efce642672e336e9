"""Pages of a hostile site in the text browser, and what is left of Chromium after a kill."""

from __future__ import annotations

import resource
import sys
import threading
import time
from contextlib import suppress

import psutil
import pytest

from agentgym_env.errors import EnvironmentFault
from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.chromium.messages import Evaluate
from agentgym_servers.web.layouts import MAX_TREE_CHARS
from agentgym_servers.web.sites.site import Request, Response
from agentgym_servers.web.text_browser.browser import TextBrowser
from agentgym_servers.worlds.webarena import WebArena
from browsing import needs_chromium
from processes import all_gone

pytestmark = pytest.mark.slow
MILLION = 10**6
MAX_GROWTH_MIB = 200


def went_to(location: str, status: int = 302) -> Response:
    return Response(status=status, location=location)


def named_by_one_text(count: int) -> str:
    return "<p id=a>" + "word " * 40_000 + "</p>" + "<i role=button aria-labelledby=a>x</i>" * count


PAGES = {
    "a redirect to itself": lambda: went_to("/"),
    "a redirect to itself that keeps its form": lambda: went_to("http://a.test/?x", 307),
    "a redirect to an endless address": lambda: went_to("/?q=" + "a" * 100 * MILLION),
    "a redirect to no address": lambda: went_to("http://[::1"),
    "100 MB of one word": lambda: Response("<p>" + "a" * 100 * MILLION),
    "100 MB of words": lambda: Response("<p>" + "word " * 20 * MILLION),
    "100 MB of one attribute": lambda: Response("<a href='" + "a" * 100 * MILLION + "'>x</a>"),
    "100 MB of elements": lambda: Response("<b>x</b>" * 12 * MILLION),
    "100 MB of plain text": lambda: Response("a" * 100 * MILLION, content_type="text/plain"),
    "100 MB of title": lambda: Response("<title>" + "a " * 50 * MILLION + "</title>"),
    "20 million elements deep": lambda: Response("<div>" * 20 * MILLION),
    "a million tables deep": lambda: Response("<table><tr><td>" * MILLION),
    "a million options": lambda: Response("<select>" + "<option>a</option>" * MILLION),
    "labels for every field": lambda: Response(
        "<label for=a>x</label>" * 300_000 + "<input id=a>" * 3_000
    ),
    "labels and fields that fit in": lambda: Response(
        "<label for=a>x</label>" * 10_000 + "<input id=a>" * 20_000
    ),
    "one text names every button": lambda: Response(named_by_one_text(7_000)),
    "a button of many words": lambda: Response("<button>" + "<b>a</b>" * 60_000 + "</button>"),
    "a million cookies": lambda: Response(
        cookies=dict.fromkeys(map(str, range(MILLION)), "a" * 9_999)
    ),
    "no characters": lambda: Response("<p>\ud800 \0 \x01 &#xd800; &#0; &#x110000;</p>"),
}


class OneAnswer:
    """A session of a site that answers every request alike."""

    def __init__(self, response: Response) -> None:
        self.response = response

    def knows(self, host: str) -> bool:
        return True

    def answer(self, request: Request) -> Response:
        return self.response


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_page_is_shown_in_time_and_memory_or_an_error(name):
    browser = TextBrowser(OneAnswer(PAGES[name]()))
    before, began = resident_mib(), time.process_time()
    error = browser.act(Action("goto", ("http://a.test/",)))
    tree, tabs = browser.tree(), browser.tabs
    took_s = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(
        f"{name}: {error[:60] or f'{len(tree)} characters'}, {took_s:.1f} s of processor time, "
        f"{resident_mib() - before:+.0f} MiB (peak {peak // 1024})\n"
    )
    assert error or tabs[0][0] == "http://a.test/"
    # With its note, and far from the minutes that these took.
    assert len(tree) < MAX_TREE_CHARS + 200 and took_s < 30
    assert resident_mib() - before < MAX_GROWTH_MIB
    assert browser.act(Action("goto", ("about:blank",))) == ""


def test_what_the_tabs_and_the_record_keep_of_long_pages_is_bounded():
    browser = TextBrowser(OneAnswer(Response("<p>" + "long " * MILLION)))
    before = resident_mib()
    for number in range(400):
        if number % 40 == 0:
            browser.act(Action("new_tab"))
        # Each page is another, as Python keeps equal ones once.
        browser._session.response = Response(f"<p>{number} " + "long " * MILLION)
        assert browser.act(Action("goto", (f"http://a.test/{number}",))) == ""
        assert browser.tree().startswith("RootWebArea")
    grown = resident_mib() - before
    sys.stdout.write(f"400 pages of 5 MB in 11 tabs: {grown:+.0f} MiB\n")
    assert grown < MAX_GROWTH_MIB
    assert browser.act(Action("go_back")) == ""
    assert browser.url == "http://a.test/398"


@needs_chromium
@pytest.mark.parametrize("state", ["idle", "stuck"])
@pytest.mark.parametrize("victims", [("python",), ("python", "node")], ids="+".join)
def test_nothing_is_left_of_a_browser_whose_process_is_killed(state, victims):
    env = WebArena(backend="chromium")
    env.reset(seed=0)
    browser = env._opened.browser
    worker = psutil.Process(browser._worker.pid)
    family = [worker, *worker.children(recursive=True)]
    asking = threading.Thread(target=never_return, args=(browser,))
    if state == "stuck":
        asking.start()
    for process in family[: len(victims)]:
        process.kill()
    assert all_gone(family)
    sys.stdout.write(f"kill -9 of {'+'.join(victims)} ({state}): {len(family)} processes gone\n")
    if state == "stuck":
        asking.join()
    with pytest.raises(EnvironmentFault):
        env.step("noop(0)")
    env.reset(seed=0)
    env.close()


def never_return(browser) -> None:
    with suppress(EnvironmentFault):
        browser.ask(Evaluate(browser.name, 0, "{ while (true) {} }"))
