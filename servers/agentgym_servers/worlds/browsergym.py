"""BrowserGym: every task that its packages register, as text, in Chromium (arXiv:2412.05467)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TextEnv
from agentgym_servers.web.actions.calls import ALL, ActionProblem, write_call
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.chromium.browser import ChromiumBrowser
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.messages import StartTask
from agentgym_servers.web.chromium.task_list import FAMILY, module_of, tasks_of_family
from agentgym_servers.web.chromium.workers import MAX_EPISODES
from agentgym_servers.web.front.forward_gate import open_real, open_static
from agentgym_servers.web.front.front import Listener
from agentgym_servers.web.layouts import View, browsergym_text
from agentgym_servers.web.sites.site_map import SiteMap, origins_of
from agentgym_servers.worlds.miniwob.tasks import miniwob_pages

_MINIWOB: Final = "miniwob"
_HOST: Final = "miniwob.test"
_MAX_SHOWN: Final = 300


class BrowserGym(TextEnv):
    """Do a task of BrowserGym's: `family="miniwob"`, `"webarena"`, `"openended"` and so on.

    ## Description
    Every task that BrowserGym's packages register (arXiv:2412.05467), as text, in Chromium.

    ## Observation
    The page's accessibility tree with an id for each element, the tabs, the goal and the last
    action, in BrowserGym's layout.

    ## Actions
    One call of BrowserGym's a turn: those of `agentgym/MiniWoB-v0` on a page, and

    | action | effect |
    |---|---|
    | `goto('URL')`, `go_back()`, `go_forward()` | navigate |
    | `new_tab()`, `tab_focus(NUMBER)`, `tab_close()` | use tabs |
    | `send_msg_to_user('TEXT')`, `report_infeasible('REASON')` | answer |

    ## Rewards
    The task's own, by its `validate`.

    ## Termination
    The episode terminates where the task or the agent ends it. It is truncated after 30 turns.

    ## Tasks
    `ID/SEED`, such as `miniwob.click-test/17`, for each id that `browsergym.FAMILY` registers in
    the environment of the browser. The category is the id.

    | split | seeds | tasks of `miniwob` |
    |---|---|---|
    | `train` | the `train_seeds` after those of `test` | 12,500 |
    | `test` | 0 to `test_seeds - 1` | 625 |

    ## Arguments
    - `family` (default `"miniwob"`): which package of BrowserGym registers the tasks
    - `task_kwargs` (default `None`): the task's settings
    - `sites` (default `()`): addresses that the browser may reach, and no others: those of the
      task's pages; MiniWoB's need none
    - `train_seeds` (default `100`): seeds of each id in `train`
    - `test_seeds` (default `5`): seeds of each id in `test`

    ## Data
    The tasks of the installed packages of BrowserGym 0.14.3 (Apache-2.0); a family's data has a
    licence of its own.

    ## Registered id
    `agentgym/BrowserGym-v0`
    """

    instruction = (
        "You use a web browser to reach a goal. Each turn you see the page as an accessibility "
        "tree, in which numbers in brackets name its elements, and answer with one action:\n"
        "click('ID'), dblclick('ID'), fill('ID', 'TEXT'), clear('ID'), focus('ID'), hover('ID')\n"
        "select_option('ID', 'OPTION'), press('ID', 'KEY'), drag_and_drop('ID', 'ID')\n"
        "keyboard_press('KEY'), keyboard_type('TEXT'), scroll(0, 200), noop()\n"
        "mouse_click(X, Y), mouse_move(X, Y), mouse_drag_and_drop(X, Y, X, Y)\n"
        "goto('URL'), go_back(), go_forward(), new_tab(), tab_focus(NUMBER), tab_close()\n"
        "send_msg_to_user('TEXT'), report_infeasible('REASON')"
    )
    isolated = True
    can_copy = False
    # A browser has its own deadline, and several questions make up a reset.
    step_timeout_s = 180.0
    max_sessions = MAX_EPISODES * (os.cpu_count() or 1)

    def __init__(
        self,
        render_mode: str | None = None,
        family: str = _MINIWOB,
        task_kwargs: Mapping[str, Any] | None = None,
        sites: Sequence[str] = (),
        train_seeds: int = 100,
        test_seeds: int = 5,
    ) -> None:
        if not FAMILY.fullmatch(family):
            raise BadRequest(f"a family is a name such as miniwob or webarena, got {family!r}")
        if train_seeds < 0 or test_seeds < 0 or not train_seeds + test_seeds:
            raise BadRequest(
                f"train_seeds and test_seeds are numbers of seeds, got {train_seeds}, {test_seeds}"
            )
        find_chromium()  # to report it now, and not in the first episode
        self.tasks = tasks_of_family(family, train_seeds, test_seeds)  # type: ignore[misc]
        if not train_seeds:
            self.default_split = "test"  # type: ignore[misc]
        super().__init__(render_mode)
        self._family = family
        self._task_kwargs = dict(task_kwargs or {})
        self._sites = SiteMap({str(number): site.rstrip("/") for number, site in enumerate(sites)})
        self._known = origins_of(self._sites.bases)
        self._browser: ChromiumBrowser | None = None
        self._listener: Listener | None = None

    def _reset(self, task: str) -> str:
        self._close()
        name, _, seed = task.rpartition("/")
        kwargs = dict(self._task_kwargs)
        if self._family == _MINIWOB and not self._sites.bases:
            self._listener = open_static(_HOST, miniwob_pages())
            kwargs.setdefault("base_url", f"http://{_HOST}/miniwob/")
        else:
            self._listener = open_real(self._sites)
        start = StartTask(
            secrets.token_hex(8),
            self._listener.address,
            f"browsergym/{name}",
            module_of(self._family),
            int(seed),
            kwargs,
        )
        self._solved = False
        try:
            self._browser = ChromiumBrowser(start, lambda origin: origin in self._known)
        except BaseException:
            self._close()
            raise
        return self._observe("", "")

    def _step(self, action: str) -> tuple[str, float, bool]:
        assert self._browser is not None
        found = parse_action(action, ALL)
        if isinstance(found, ActionProblem):
            return self._observe(action[:_MAX_SHOWN], found.message), 0.0, False
        error = self._browser.act(found)
        seen = self._browser.seen
        self._solved = seen.done and seen.reward > 0
        return self._observe(write_call(found)[:_MAX_SHOWN], error), seen.reward, seen.done

    def success(self) -> bool:
        """Whether the task ended with a reward above 0."""
        return self._solved

    def has_expert(self) -> bool:
        """False: BrowserGym's `cheat` acts on the page itself, and gives no actions to follow."""
        return False

    def expert(self) -> Iterator[str]:
        """There is none."""
        return iter(())

    def close(self) -> None:
        """End the page."""
        self._close()
        super().close()

    def _close(self) -> None:
        browser, self._browser = self._browser, None
        listener, self._listener = self._listener, None
        try:
            if browser is not None:
                browser.close()
        finally:
            if listener is not None:
                listener.close()

    def _observe(self, last: str, error: str) -> str:
        browser = self._browser
        assert browser is not None
        view = View(browser.seen.goal, browser.tabs, browser.active, browser.tree(), last, error)
        return browsergym_text(view)
