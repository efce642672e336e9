"""WebArena: tasks on web sites (arXiv:2307.13854), here on sites of our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TextEnv
from agentgym_servers.web.action import ENDINGS, Action, ActionProblem
from agentgym_servers.web.actions import parse_action, write_call
from agentgym_servers.web.embedded import embedded, starting_cookies
from agentgym_servers.web.evaluators import evaluate
from agentgym_servers.web.layouts import View, agentgym_text, browsergym_text, own_action
from agentgym_servers.web.script import Goto
from agentgym_servers.web.script_player import action_of
from agentgym_servers.web.site import SiteSession
from agentgym_servers.web.site_map import embedded_sites
from agentgym_servers.web.site_rest import SiteRest
from agentgym_servers.web.text_browser import TextBrowser
from agentgym_servers.web.text_pages import TextPages

_LAYOUTS: Final = {"browsergym": browsergym_text, "agentgym": agentgym_text}
_MAX_SHOWN: Final = 300


class WebArena(TextEnv):
    """Do what is asked on a shop, its admin, a forum, a code host, an encyclopedia or a map.

    Tasks: `SITES/TEMPLATE/NUMBER` over embedded sites whose data is drawn by `seed`; the templates
    of `train` and `test` differ. Categories: the sites.
    Observation: the page's accessibility tree with an id for each element, the tabs, the
    objective and the last action, in BrowserGym's layout or AgentGym's.
    Actions: one a turn, as BrowserGym's calls or in WebArena's id grammar.
    Reward: 1 where the answer, the address and the pages are as the task asks when the agent
    stops, by WebArena's rules; else 0. Stopping ends the episode, as does saying that the task
    cannot be done.

    Pages are read without a browser program: the sites need no script.
    """

    instruction = (
        "You use web sites to do what is asked. Each turn you see the page as an accessibility "
        "tree, in which numbers in brackets name its elements, and answer with one action:\n"
        "click('ID'), fill('ID', 'TEXT'), select_option('ID', 'OPTION'), hover('ID')\n"
        "keyboard_press('Enter'), scroll(0, 200), noop()\n"
        "goto('URL'), go_back(), go_forward(), new_tab(), tab_focus(NUMBER), tab_close()\n"
        "send_msg_to_user('ANSWER') - give the answer, or an empty one when all is done: it ends "
        "the task\n"
        "report_infeasible('REASON') - the task cannot be done: it ends the task\n"
        "You are logged in wherever that is needed. http://home.test lists the sites."
    )

    def __init__(
        self,
        render_mode: str | None = None,
        layout: Literal["browsergym", "agentgym"] = "browsergym",
        seed: int = 0,
    ) -> None:
        if layout not in _LAYOUTS:
            raise BadRequest(f"layout {layout!r} is not one of {', '.join(_LAYOUTS)}")
        if not isinstance(seed, int) or seed < 0:
            raise BadRequest(f"seed is a whole number from 0, got {seed!r}")
        self._world = embedded(seed)
        self.tasks = self._world.task_set  # type: ignore[misc]
        super().__init__(render_mode)
        self._sites = embedded_sites()
        self._layout = layout
        self._session: SiteSession | None = None

    def _reset(self, task: str) -> str:
        if self._session is not None:
            self._session.close()
        self._session = self._world.session()
        self._web_task = self._world.tasks[task]
        self._id, self._solved = task, False
        self._browser = TextBrowser(self._session)
        for host, cookies in starting_cookies().items():
            self._browser.set_cookies(host, cookies)
        for number, url in enumerate(self._web_task.start_urls):
            if number:
                self._browser.act(Action("new_tab"))
            self._browser.act(Action("goto", (self._sites.resolve(url),)))
        return self._told("", "")

    def _step(self, action: str) -> tuple[str, float, bool]:
        found = parse_action(action)
        if isinstance(found, ActionProblem):
            return self._told(action[:_MAX_SHOWN], found.message), 0.0, False
        if self._layout == "agentgym":
            found = own_action(found)
        if found.kind in ENDINGS:
            self._solved = self._judge(found)
            return "The task has ended.", float(self._solved), True
        error = self._browser.act(found)
        return self._told(write_call(found)[:_MAX_SHOWN], error), 0.0, False

    def _judge(self, ending: Action) -> bool:
        assert self._session is not None
        # A task that cannot be done is answered by N/A, as WebArena has it.
        answer = ending.text(0) if ending.kind == "send_msg_to_user" else "N/A"
        judged = evaluate(
            self._web_task,
            answer,
            self._sites,
            TextPages(self._browser),
            rest=SiteRest(self._session),
        )
        return judged.score > 0

    def success(self) -> bool:
        """Whether the agent stopped with everything as the task asks."""
        return self._solved

    def expert(self) -> Iterator[str]:
        """Follow the task's script from the start of the episode, as long as nobody else acts."""
        for number, step in enumerate(self._world.experts[self._id]):
            if self._turn != number:
                return
            if isinstance(step, Goto):
                step = Goto(self._sites.resolve(step.url))
            action = action_of(step, self._browser.tree())
            if action is None:
                return
            yield write_call(action)

    def close(self) -> None:
        """Let go of the session's data."""
        if self._session is not None:
            self._session.close()
            self._session = None
        super().close()

    def _told(self, last: str, error: str) -> str:
        view = View(
            self._web_task.intent, self._browser.tabs, self._browser.active, self._browser.tree(),
            last, error,
        )  # fmt: skip
        return _LAYOUTS[self._layout](view)
