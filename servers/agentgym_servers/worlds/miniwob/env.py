"""MiniWoB++: small tasks on single pages with widgets (arXiv:1802.08802), in Chromium."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from typing import Final

from agentgym_env.text_env import TextEnv
from agentgym_servers.web.actions.calls import WIDGETS, ActionProblem, write_call
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.messages import StartMiniWoB
from agentgym_servers.web.chromium.workers import MAX_EPISODES
from agentgym_servers.web.front.forward_gate import open_static
from agentgym_servers.web.layouts import View, browsergym_text
from agentgym_servers.worlds.miniwob.experts import EXPERTS
from agentgym_servers.worlds.miniwob.sight import Sight
from agentgym_servers.worlds.miniwob.tasks import miniwob_pages, miniwob_tasks

_HOST: Final = "miniwob.test"
_BASE: Final = f"http://{_HOST}/miniwob/"
_MAX_SHOWN: Final = 300
_TRIES: Final = 4
"""Of an action by the expert: BrowserGym waits half a second for an element, no longer."""

logger = logging.getLogger(__name__)


class MiniWoB(TextEnv):
    """Click, type and drag on one small page as its sentence says.

    ## Description
    MiniWoB++ (arXiv:1802.08802): small tasks on single pages with widgets, in a Chromium that
    BrowserGym steers. Some tasks are about shapes and places that no tree shows.

    ## Observation
    The page's accessibility tree with an id for each element, the sentence and the last action, in
    BrowserGym's layout.

    ## Actions
    One call of BrowserGym's a turn:

    | action | effect |
    |---|---|
    | `click('ID')`, `dblclick('ID')`, `hover('ID')`, `focus('ID')` | use an element |
    | `fill('ID', 'TEXT')`, `clear('ID')`, `select_option('ID', 'OPTION')` | set a field |
    | `press('ID', 'KEY')` | press a key in an element |
    | `drag_and_drop('ID', 'ID')` | drag one element to another |
    | `keyboard_press('KEY')`, `keyboard_type('TEXT')` | use the keyboard |
    | `keyboard_insert_text('TEXT')` | insert a text at once, also of more than 1,000 characters |
    | `keyboard_down('KEY')`, `keyboard_up('KEY')` | hold and release a key |
    | `mouse_click(X, Y)`, `mouse_dblclick(X, Y)`, `mouse_move(X, Y)` | use the mouse at a place |
    | `mouse_down(X, Y)`, `mouse_up(X, Y)`, `mouse_drag_and_drop(X, Y, X, Y)` | drag at places |
    | `scroll(DX, DY)`, `scroll_at(X, Y, DX, DY)`, `noop()` | scroll, or wait for a second |

    WebArena's grammar, such as `click [18]`, is understood too. Places are pixels of the page, from
    the top left corner of its window of 332 x 214. An action that is not possible is reported in
    the next observation.

    ## Rewards
    1 when the page reports that the task is done right, else 0. As with BrowserGym, any positive
    reward of a page counts as right.

    ## Termination
    The episode terminates when the page reports that the task is over, right or wrong. It is
    truncated after 15 turns. The tasks' clocks are off; `stock-market` and `terminal` alone show a
    time of their own.

    ## Tasks
    `TASK/SEED` for the 125 tasks that BrowserGym has. The category is the task. 70 tasks have an
    expert.

    | split | seeds | tasks |
    |---|---|---|
    | `train` | 5 to 104 | 12,500 |
    | `test` | 0 to 4, those of BrowserGym's benchmark | 625 |

    ## Arguments
    None besides `render_mode`.

    ## Data
    The pages of the distribution `miniwob` 1.1 (MIT); BrowserGym 0.14.3 (Apache-2.0) runs them.

    ## Registered id
    `agentgym/MiniWoB-v0`
    """

    instruction = (
        "You do a small task on a web page. Each turn you see the page as an accessibility tree, "
        "in which numbers in brackets name its elements, and answer with one action:\n"
        "click('ID'), dblclick('ID'), fill('ID', 'TEXT'), clear('ID'), focus('ID'), hover('ID')\n"
        "select_option('ID', 'OPTION'), press('ID', 'KEY'), drag_and_drop('ID', 'ID')\n"
        "keyboard_press('KEY'), keyboard_type('TEXT'), scroll(0, 200), noop()\n"
        "mouse_click(X, Y), mouse_move(X, Y), mouse_down(X, Y), mouse_up(X, Y), "
        "mouse_drag_and_drop(X, Y, X, Y)"
    )
    isolated = True
    can_copy = False
    # A browser has its own deadline, and several questions make up a reset.
    step_timeout_s = 180.0
    max_sessions = MAX_EPISODES * (os.cpu_count() or 1)

    def __init__(self, render_mode: str | None = None) -> None:
        find_chromium()  # to report it now, and not in the first episode
        self._pages = miniwob_pages()
        self.tasks = miniwob_tasks()  # type: ignore[misc]
        super().__init__(render_mode)
        self._browser: ChromiumBrowser | None = None

    def _reset(self, task: str) -> str:
        self._close()
        name, _, seed = task.partition("/")
        listener = open_static(_HOST, self._pages)
        start = StartMiniWoB(secrets.token_hex(8), listener.address, _BASE, name, int(seed))
        try:
            self._browser = browser = ChromiumBrowser(start, lambda origin: False)
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        self._name, self._solved, self._invalid = name, False, False
        return self._observe(browser, "", "")

    def _step(self, action: str) -> tuple[str, float, bool]:
        assert self._browser is not None
        found = parse_action(action, WIDGETS)
        self._invalid = isinstance(found, ActionProblem)
        if isinstance(found, ActionProblem):
            return self._observe(self._browser, action[:_MAX_SHOWN], found.message), 0.0, False
        error = self._browser.act(found)
        self._invalid = bool(error)
        seen = self._browser.seen
        self._solved = seen.done and seen.reward > 0
        observation = self._observe(self._browser, write_call(found)[:_MAX_SHOWN], error)
        return observation, seen.reward if seen.done else 0.0, seen.done

    def success(self) -> bool:
        """Whether the page reports that the task is done right."""
        return self._solved

    def invalid_action(self) -> bool:
        """Whether the last action was not understood, or the page could not do it."""
        return self._invalid

    def expert(self) -> Iterator[str]:
        """Do the task by a script; tasks without a script yield nothing."""
        browser, script = self._browser, EXPERTS.get(self._name)
        if browser is None or script is None:
            return
        try:
            for action in script(browser.seen.goal, Sight(browser.tree)):
                for _ in range(_TRIES):
                    yield action
                    if not browser.seen.error:
                        break
        except LookupError as error:
            # Other actions than its own have led elsewhere.
            logger.debug("the expert of %s has no more advice: %s", self._name, error)

    def close(self) -> None:
        """End the page."""
        self._close()
        super().close()

    def _close(self) -> None:
        browser, self._browser = self._browser, None
        if browser is not None:
            try:
                browser.close()
            finally:
                self._listener.close()

    def _observe(self, browser: ChromiumBrowser, last: str, error: str) -> str:
        goal = browser.seen.goal
        return browsergym_text(
            View(goal, browser.tabs, browser.active, browser.tree(), last, error)
        )
