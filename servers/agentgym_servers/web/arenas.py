"""Where WebArena's tasks are done: on sites of our own, or on its real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from agentgym_env.task_set import TaskSet
from agentgym_servers.web.embedded import embedded
from agentgym_servers.web.opened import Opened, open_chromium, open_on_real_sites, open_text
from agentgym_servers.web.script import Step
from agentgym_servers.web.site_map import SiteMap, embedded_sites, real_sites
from agentgym_servers.web.tasks import WebTask, packaged_tasks


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
        """Open a task; nobody else sees what it changes."""
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
        self.task_set = TaskSet(
            {"test": list(self.tasks)},
            {name: "+".join(task.sites) for name, task in self.tasks.items()},
        )
        self.experts: Mapping[str, Sequence[Step]] = {}

    def open(self, task: WebTask) -> Opened:
        """Open a task, logged in to its sites."""
        return open_on_real_sites(self.sites, task)
