"""What happens when a renderer, the browser or whoever asked dies, or a page never returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from agentgym_env.errors import EnvironmentFault, EpisodeFailure
from agentgym_env.launch import child_environment
from agentgym_servers.web.actions.calls import Action
from agentgym_servers.web.chromium import workers
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.family import kill_all
from agentgym_servers.web.chromium.messages import Evaluate, StartSites
from agentgym_servers.web.front.forward_gate import open_embedded
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.worlds.webarena import WebArena
from browsing import browser_processes, kind_of, needs_chromium
from processes import all_gone

pytestmark = [needs_chromium, pytest.mark.slow]

NOOP = Action("noop", (0.0,))
DEADLINE_S = 4.0


class Pages:
    """Browsers on the shop's first page, in processes that nothing else uses."""

    def __init__(self):
        self.session = embedded(0).session()
        self.listener = open_embedded(self.session)
        self.browsers = []

    def open(self):
        start = StartSites(
            f"{id(self)}-{len(self.browsers)}", self.listener.address, ["http://shop.test/"]
        )
        self.browsers.append(ChromiumBrowser(start, lambda origin: origin.endswith(".test")))
        return self.browsers[-1]

    def close(self):
        for browser in self.browsers:
            browser.close()
        self.listener.close()
        self.session.close()


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.setattr(workers, "_workers", [])
    opened = Pages()
    yield opened
    opened.close()
    for worker in workers._workers:
        worker.close()


def kill_renderers(browser):
    processes = browser_processes(browser._worker.pid)
    kill_all([one for one in processes if kind_of(one) == "renderer"])


def test_a_killed_renderer_costs_a_page_load(pages):
    browsers = [pages.open(), pages.open()]
    browsers[0].act(Action("goto", ("http://forum.test/",)))
    kill_renderers(browsers[0])
    assert "crashed" in browsers[0].act(NOOP)
    assert browsers[0].tabs == (("http://forum.test/", "All forums"),)
    assert "crashed" in browsers[1].act(NOOP)
    assert browsers[1].act(Action("goto", ("http://wiki.test/",))) == ""


def test_a_renderer_that_dies_at_any_moment_costs_a_page_load(pages):
    browser = pages.open()
    shop = browser.tabs
    for milliseconds in range(0, 60, 3):
        killer = threading.Timer(milliseconds / 1000, kill_renderers, [browser])
        killer.start()
        said = [browser.act(NOOP)]
        killer.join()
        while len(said) < 50 and "crashed" not in "".join(said):
            said.append(browser.act(NOOP))
        assert "crashed" in "".join(said), said
        assert browser.tabs == shop and "One Stop Market" in browser.tree()


def test_a_killed_browser_costs_its_episodes_and_the_next_reset_works(pages):
    browsers = [pages.open(), pages.open()]
    worker = browsers[0]._worker
    (main,) = [p for p in browser_processes(worker.pid) if not kind_of(p) and p.num_threads() > 1]
    family = browser_processes(worker.pid)
    main.kill()
    for browser in browsers:
        with pytest.raises(EnvironmentFault, match="the browser died") as caught:
            browser.act(NOOP)
        assert caught.value.kind == "environment_error"
    assert all_gone(family)
    assert pages.open().tabs == (("http://shop.test/", "One Stop Market"),)
    assert pages.browsers[-1]._worker is worker


def test_a_page_that_never_returns_is_ended_in_time_and_leaves_nothing(pages, monkeypatch):
    stuck, neighbour = pages.open(), pages.open()
    worker = stuck._worker
    monkeypatch.setattr(worker, "_timeout_s", DEADLINE_S)
    folder = Path(psutil.Process(worker.pid).cmdline()[-1])
    assert any(folder.iterdir())
    family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    with pytest.raises(EnvironmentFault, match="longer than 4 s") as caught:
        stuck.ask(Evaluate(stuck.name, 0, "{ while (true) {} }"))
    assert caught.value.code == "deadline"
    with pytest.raises(EnvironmentFault, match="the browser was ended"):
        neighbour.act(NOOP)
    assert all_gone(family) and not folder.exists()
    assert pages.open().tabs == (("http://shop.test/", "One Stop Market"),)
    assert pages.browsers[-1]._worker is not worker


def test_an_environment_whose_browser_died_is_reset_and_plays_on():
    env = WebArena(backend="chromium")
    try:
        env.reset(seed=0, options={"task": "shopping/7101/0"})
        env._opened.browser._worker.close()
        with pytest.raises(EpisodeFailure):
            env.step("noop(0)")
        env.reset(seed=0, options={"task": "shopping/7101/0"})
        while (action := env.expert_action()) is not None:
            _, reward, done, _, _ = env.step(action)
            if done:
                break
        assert reward == 1
    finally:
        env.close()


SCRIPT = """
import sys
from agentgym_servers.worlds.webarena import WebArena
env = WebArena(backend="chromium")
env.reset(seed=0)
if sys.argv[1] == "stuck":
    import threading
    from agentgym_servers.web.chromium.messages import Evaluate
    browser = env._opened.browser
    ask = lambda: browser.ask(Evaluate(browser.name, 0, "{ while (true) {} }"))
    threading.Thread(target=ask, daemon=True).start()
print(env._opened.browser._worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None], ids=str)
@pytest.mark.parametrize("state", ["idle", "stuck"])
def test_no_process_and_no_file_is_left_when_whoever_asked_is_gone(state, how, tmp_path):
    asker = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**child_environment(), "TMPDIR": str(tmp_path)},
    )
    with asker.stdin, asker.stdout:
        worker = psutil.Process(int(asker.stdout.readline()))
        family = [worker, *worker.children(recursive=True)]
        assert len(family) > 4
        (folder,) = tmp_path.iterdir()
        assert any(folder.iterdir()), "the profile is not in the worker's own folder"
        if how is None:
            asker.stdin.close()
        else:
            os.kill(asker.pid, how)
        asker.wait(60)
    assert all_gone(family)
    assert not folder.exists()


def test_one_that_is_gone_does_not_spare_the_others():
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    family = [psutil.Process(process.pid) for process in started]
    started[0].kill()
    started[0].wait()
    kill_all(family)
    # psutil was the first to ask the other two for their exit status, and keeps it.
    statuses = [started[0].returncode, *(process.wait(60) for process in family[1:])]
    assert statuses == [-signal.SIGKILL] * 3
    for process in started:
        process.wait(60)
