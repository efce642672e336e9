"""OpenEnv's task API (0.10): the splits of a server and their tasks, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentgym_adapters.openenv_wire import RangeBody, SplitBody, TaskBody
from agentgym_adapters.served import HttpRequest, Reply, Served
from agentgym_adapters.validation import convert, read_json
from agentgym_env.errors import UnknownSplit
from agentgym_env.wire import TaskList

_KINDS: Final = frozenset({"train", "validation", "test"})


class OpenEnvTasks:
    """Answers requests about tasks; `reset(split=..., index=...)` selects one."""

    def __init__(self, served: Served) -> None:
        self._served = served

    @property
    def _name(self) -> str:
        """The environment's name without its namespace, which is not allowed in a path."""
        return self._served.card().env.rpartition("/")[2].replace(":", ".")

    def routes(self) -> Mapping[str, Mapping[str, str]]:
        """The routes and their descriptions."""
        base = f"/{self._name}"
        return {
            "/list_environments": {"GET": "The environment's name in these routes"},
            f"{base}/splits": {"GET": "The splits"},
            f"{base}/tasks": {"POST": "The tasks of a split"},
            f"{base}/num_tasks": {"POST": "How many tasks a split has"},
            f"{base}/task": {"POST": "One task"},
            f"{base}/task_range": {"POST": "Some tasks of a split"},
        }

    def answer(self, request: HttpRequest) -> Reply:
        """Answer a call; raises `InvalidMessage`."""
        name, _, asked = request.path.lstrip("/").partition("/")
        if request.path == "/list_environments":
            asked = "list_environments"
        elif not asked or name.lower() != self._name.lower():
            return Reply(404, {"detail": f"there is no {request.path[:200]}"})
        gets = ("list_environments", "splits")
        if asked not in (*gets, "tasks", "num_tasks", "task", "task_range"):
            return Reply(404, {"detail": f"there is no {request.path[:200]}"})
        if request.method != ("GET" if asked in gets else "POST"):
            return Reply(405, {"detail": "Method Not Allowed"})
        try:
            return self._answer(asked, request.body)
        except UnknownSplit as error:
            return Reply(404, {"detail": str(error)})

    def _answer(self, asked: str, body: bytes) -> Reply:
        if asked == "list_environments":
            return Reply(200, [self._name])
        if asked == "splits":
            card = self._served.card()
            names = (*card.splits, *card.selections)
            kinds = {name: name if name in _KINDS else "validation" for name in names}
            return Reply(200, [{"name": name, "type": kind} for name, kind in kinds.items()])
        given = read_json(body, "body")
        if asked == "task":
            one = convert(given, TaskBody, "body")
            tasks = self._tasks(one.split)
            if not 0 <= one.index < len(tasks):
                return Reply(400, {"detail": "Invalid task index"})
            return Reply(200, {"task": tasks[one.index]})
        if asked == "task_range":
            bounds = convert(given, RangeBody, "body")
            return Reply(200, {"tasks": self._tasks(bounds.split)[bounds.start : bounds.stop]})
        tasks = self._tasks(convert(given, SplitBody, "body").split)
        if asked == "num_tasks":
            return Reply(200, {"num_tasks": len(tasks)})
        return Reply(200, {"tasks": tasks, "env_name": self._name})

    def _tasks(self, split: str) -> list[dict[str, Any]]:
        listed = self._served.task_list(split)
        return [task_row(listed, index) for index in range(len(listed.tasks))]


def task_row(listed: TaskList, index: int) -> dict[str, Any]:
    """A task in OpenEnv's form."""
    task = listed.tasks[index]
    row: dict[str, Any] = {"id": task, "index": index, "split": listed.split}
    if task in listed.categories:
        row["category"] = listed.categories[task]
    return row
