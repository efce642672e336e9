"""WebArena: tasks on web sites (arXiv:2307.13854), on sites of our own or on its real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from agentgym_env.entry_points import load_named
from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_env.tools import Verb
from agentgym_servers.web.actions.calls import ENDINGS, Action, ActionProblem, write_call
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.interpreter import web_python
from agentgym_servers.web.chromium.workers import MAX_EPISODES
from agentgym_servers.web.evaluation.evaluators import Judge, evaluate
from agentgym_servers.web.evaluation.verified import Exchange
from agentgym_servers.web.layouts import View, agentgym_text, browsergym_text, own_action
from agentgym_servers.web.opening import Opened, open_chromium, open_on_real_sites, open_text
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.sites.site_map import SiteMap, embedded_sites, real_sites
from agentgym_servers.web.tasks.scripts import Goto, Step, action_of
from agentgym_servers.web.tasks.tasks import WebTask, packaged_tasks
from agentgym_servers.worlds.paper import paper_selections

_LAYOUTS: Final = {"browsergym": browsergym_text, "agentgym": agentgym_text}

_MAX_SHOWN: Final = 300


class Arena(Protocol):
    """Sites, and the tasks on them."""

    sites: SiteMap
    tasks: Mapping[str, WebTask]
    task_set: TaskSet
    left_out: Mapping[str, str]
    """Tasks that cannot be judged here -> why."""
    experts: Mapping[str, Sequence[Step]]
    """Scripts that solve tasks, where there are any."""

    def open(self, task: WebTask) -> Opened:
        """Open a task as an episode begins with it."""
        ...


class EmbeddedArena:
    """Sites of our own, in databases that each episode has for itself."""

    def __init__(self, seed: int, backend: Literal["text", "chromium"]) -> None:
        self._world = embedded(seed)
        self._open = open_text if backend == "text" else open_chromium
        self.sites = embedded_sites()
        self.tasks: Mapping[str, WebTask] = self._world.tasks
        self.task_set = self._world.task_set
        self.left_out: Mapping[str, str] = {}
        self.experts: Mapping[str, Sequence[Step]] = self._world.experts

    def open(self, task: WebTask) -> Opened:
        """Open a task; no other episode sees what it changes."""
        return self._open(self._world, self.sites, task)


class RealArena:
    """WebArena's own sites and its 812 tasks; what one episode changes, the others see."""

    def __init__(self, environment: Mapping[str, str], has_judge: bool) -> None:
        """`environment` has the addresses: `WA_SHOPPING`, `WA_REDDIT` and so on."""
        self.sites = real_sites(environment)
        named = {f"webarena/{task.task_id}": task for task in packaged_tasks()}
        self.left_out: Mapping[str, str] = {
            name: "a judge must say whether its answer is right (fuzzy_match), and none is given"
            for name, task in named.items()
            if task.needs_judge and not has_judge
        }
        self.tasks: Mapping[str, WebTask] = {
            name: task for name, task in named.items() if name not in self.left_out
        }
        numbered = {task.task_id: name for name, task in self.tasks.items()}
        self.task_set = TaskSet(
            {"test": list(self.tasks)},
            {name: "+".join(task.sites) for name, task in self.tasks.items()},
            {f"webarena_{number}": name for number, name in numbered.items()},
            paper_selections("webarena", numbered),
        )
        self.experts: Mapping[str, Sequence[Step]] = {}

    def open(self, task: WebTask) -> Opened:
        """Open a task, logged in to its sites."""
        return open_on_real_sites(self.sites, task)


class WebArena(TextEnv):
    """Do what is asked on a shop, its admin, a forum, a code host, an encyclopedia or a map.

    ## Description
    WebArena's kind of task (arXiv:2307.13854): on embedded sites, whose data is drawn by `seed` and
    which any machine can run, or on WebArena's own sites.

    ## Observation
    The page's accessibility tree with an id for each element, the tabs, the objective and the last
    action, in BrowserGym's layout or AgentGym's. A tree has at most 40,000 characters.

    ## Actions
    One call of BrowserGym's a turn, or WebArena's grammar, such as `click [12]`:

    | action | effect |
    |---|---|
    | `click('ID')`, `hover('ID')` | use an element |
    | `fill('ID', 'TEXT')`, `select_option('ID', 'OPTION')` | set a field |
    | `keyboard_press('KEY')`, `scroll(DX, DY)`, `noop()` | press a key, scroll, wait |
    | `goto('URL')`, `go_back()`, `go_forward()` | navigate; only the sites are reachable |
    | `new_tab()`, `tab_focus(NUMBER)`, `tab_close()` | use tabs |
    | `send_msg_to_user('ANSWER')` | stop, with an answer or an empty text |
    | `report_infeasible('REASON')` | report that the task cannot be done, and stop |

    An action that is not possible is reported in the next observation.

    ## Rewards
    1 where the answer, the address and the pages are as the task asks when the agent stops, by
    WebArena's rules; else 0. On embedded sites, the address must be the target's and have a page,
    and an answer may have four times the characters of the reference, at least 40, and another
    common form, such as `43,934`, `$84.8` or `**2**`.

    ## Termination
    The episode terminates when the agent stops. It is truncated after 30 turns.

    ## Tasks
    The category is the sites of a task.

    | sites | task id | `train` | `test` |
    |---|---|---|---|
    | `embedded`, seed 0 | `SITES/TEMPLATE/NUMBER` | 1,329 of 73 templates | 470 of 26 others |
    | `real` | `webarena/NUMBER` | | 812; 694 without a `judge` |

    ## Arguments
    - `layout` (default `"browsergym"`): or `"agentgym"`, in which the sites have their public
      names
    - `seed` (default `0`): the data of the embedded sites, and with it the tasks
    - `backend` (default `None`): `"text"` reads embedded pages without a browser program,
      `"chromium"` is a real browser; by default `"text"` for embedded sites, else `"chromium"`
    - `sites` (default `None`): `"embedded"`, or `"real"` at the addresses of `WA_SHOPPING`,
      `WA_REDDIT` and so on; by default `"real"` where `WA_SHOPPING` is set
    - `judge` (default `None`): a callable from a prompt to a reply, or its place as
      `package.module:name`; tasks that need one are left out without it

    ## Data
    The embedded sites and tasks are invented and made by this project (Apache-2.0). The real tasks
    are those of the distribution `libwebarena` 0.0.4 (Apache-2.0).

    ## Registered id
    `agentgym/WebArena-v0`
    """

    can_copy = False
    instruction = (
        "You use web sites to do what is asked. Each turn you see the page as an accessibility "
        "tree, in which numbers in brackets name its elements, and answer with one action:\n"
        "click('ID'), fill('ID', 'TEXT'), select_option('ID', 'OPTION'), hover('ID')\n"
        "keyboard_press('Enter'), scroll(0, 200), noop()\n"
        "goto('URL'), go_back(), go_forward(), new_tab(), tab_focus(NUMBER), tab_close()\n"
        "send_msg_to_user('ANSWER') - give the answer in a few words, or an empty one when all is "
        "done: it ends the task\n"
        "report_infeasible('REASON') - the task cannot be done: it ends the task\n"
        "You are logged in wherever that is needed. http://home.test lists the sites."
    )

    verbs = (
        Verb("click({id:quoted})", "Click an element."),
        Verb("fill({id:quoted}, {text:quoted})", "Replace the text of a field."),
        Verb("select_option({id:quoted}, {option:quoted})", "Choose an option of a list."),
        Verb("hover({id:quoted})", "Move the mouse over an element."),
        Verb("keyboard_press({key:quoted})", "Press a key, such as Enter."),
        Verb("scroll({right:int}, {down:int})", "Scroll by pixels."),
        Verb("noop()", "Wait."),
        Verb("goto({url:quoted})", "Open an address."),
        Verb("go_back()"),
        Verb("go_forward()"),
        Verb("new_tab()"),
        Verb("tab_focus({index:int})", "Show another tab."),
        Verb("tab_close()"),
        Verb(
            "send_msg_to_user({text:quoted})",
            "Give the answer, or an empty one when all is done: it ends the task.",
        ),
        Verb("report_infeasible({reason:quoted})", "The task cannot be done: it ends the task."),
    )

    def __init__(
        self,
        render_mode: str | None = None,
        layout: Literal["browsergym", "agentgym"] = "browsergym",
        seed: int = 0,
        backend: Literal["text", "chromium"] | None = None,
        sites: Literal["embedded", "real"] | None = None,
        judge: Judge | str | None = None,
    ) -> None:
        if layout not in _LAYOUTS:
            raise BadRequest(f"layout {layout!r} is not one of {', '.join(_LAYOUTS)}")
        if not isinstance(seed, int) or seed < 0:
            raise BadRequest(f"seed is a whole number from 0, got {seed!r}")
        sites, backend = _choose(sites, backend)
        if backend == "chromium":
            # To report what is missing now, and not in an episode.
            web_python()
            find_chromium()
        self._judge = _find_judge(judge)
        self._arena: Arena = (
            EmbeddedArena(seed, backend)
            if sites == "embedded"
            else RealArena(os.environ, self._judge is not None)
        )
        self.tasks = self._arena.task_set  # type: ignore[misc]
        if self.default_split not in self.tasks.splits:
            self.default_split = next(iter(self.tasks.splits))  # type: ignore[misc]
        bases = self._arena.sites.bases
        self.instruction = self.instruction.replace(  # type: ignore[misc]
            HOSTS["homepage"], bases["homepage"]
        )
        super().__init__(render_mode)
        self._layout = layout
        self._opened: Opened | None = None

    @classmethod
    def for_serving(cls, settings: Mapping[str, Any]) -> type[TextEnv]:
        """In processes of their own, where a browser program is steered from them."""
        _, backend = _choose(settings.get("sites"), settings.get("backend"))
        return cls if backend == "text" else _ChromiumWebArena

    @property
    def left_out(self) -> Mapping[str, str]:
        """WebArena's tasks that are not among `tasks` -> why."""
        return self._arena.left_out

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see `TextEnv.reset`."""
        task = str((options or {}).get("task"))
        if task in self.left_out:
            raise BadRequest(f"task {task!r} is left out: {self.left_out[task]}")
        return super().reset(seed=seed, options=options)

    def _reset(self, task: str) -> str:
        self._close_pages()
        self._web_task = self._arena.tasks[task]
        self._id, self._solved, self._invalid = task, False, False
        self._opened = self._arena.open(self._web_task)
        return self._observe("", "")

    def _step(self, action: str) -> tuple[str, float, bool]:
        found = parse_action(action)
        self._invalid = isinstance(found, ActionProblem)
        if isinstance(found, ActionProblem):
            return self._observe(action[:_MAX_SHOWN], found.message), 0.0, False
        if self._layout == "agentgym":
            found = own_action(found, self._arena.sites.bases)
        if found.kind in ENDINGS:
            self._solved = self._is_solved(found)
            return "The task has ended.", float(self._solved), True
        error = self._open.browser.act(found)
        self._invalid = bool(error)
        return self._observe(write_call(found)[:_MAX_SHOWN], error), 0.0, False

    def _is_solved(self, ending: Action) -> bool:
        # A task that cannot be done is answered by N/A, as WebArena has it.
        answer = ending.text(0) if ending.kind == "send_msg_to_user" else "N/A"
        judged = evaluate(
            self._web_task,
            answer,
            self._arena.sites,
            self._open.pages,
            rest=self._open.rest,
            judge=self._judge,
            page_exists=self._open.page_exists,
        )
        return judged.score > 0

    def success(self) -> bool:
        """Whether the agent stopped with everything as the task asks."""
        return self._solved

    def invalid_action(self) -> bool:
        """Whether the last action was not understood, or the page could not do it."""
        return self._invalid

    def has_expert(self) -> bool:
        """Whether tasks have scripts that solve them: those on embedded sites do."""
        return bool(self._arena.experts)

    def expert(self) -> Iterator[str]:
        """Follow the task's script from the start of the episode, until another action is taken."""
        for number, step in enumerate(self._arena.experts[self._id]):
            if self._turn != number:
                return
            if isinstance(step, Goto):
                step = Goto(self._arena.sites.resolve(step.url))
            action = action_of(step, self._open.browser.tree())
            if action is None:
                return
            yield write_call(action)

    def close(self) -> None:
        """Close the pages and the session's data."""
        self._close_pages()
        super().close()

    def exchanges(self) -> Sequence[Exchange]:
        """The requests and answers of embedded sites in the episode, for an HTTP archive."""
        return self._open.exchanges()

    @property
    def _open(self) -> Opened:
        assert self._opened is not None
        return self._opened

    def _close_pages(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _observe(self, last: str, error: str) -> str:
        browser = self._open.browser
        view = View(
            self._web_task.intent, browser.tabs, browser.active, browser.tree(), last, error,
            self._arena.sites.bases,
        )  # fmt: skip
        return _LAYOUTS[self._layout](view)


class _ChromiumWebArena(WebArena):
    """The settings for servers where pages are in a Chromium."""

    isolated = True
    # A browser has its own deadline, and several questions make up a reset or a verdict.
    step_timeout_s = 180.0
    max_sessions = MAX_EPISODES * (os.cpu_count() or 1)


def _choose(
    sites: str | None, backend: str | None
) -> tuple[Literal["embedded", "real"], Literal["text", "chromium"]]:
    sites = sites or ("real" if os.environ.get("WA_SHOPPING") else "embedded")
    backend = backend or ("text" if sites == "embedded" else "chromium")
    if sites not in ("embedded", "real"):
        raise BadRequest(f"sites {sites!r} is not one of embedded, real")
    if backend not in ("text", "chromium"):
        raise BadRequest(f"backend {backend!r} is not one of text, chromium")
    if sites == "real" and backend == "text":
        raise BadRequest("WebArena's real sites need scripts; give backend chromium, or none")
    return sites, backend  # type: ignore[return-value]


def _find_judge(judge: Judge | str | None) -> Judge | None:
    if not isinstance(judge, str):
        return judge
    try:
        found = load_named(judge)
    except (BadRequest, ImportError) as error:
        raise BadRequest(
            f"the judge {judge!r} cannot be loaded ({error}); write package.module:name"
        ) from error
    return found  # type: ignore[no-any-return]
