"""Which tasks BrowserGym has where the browser runs; run as a program, it lists a package's."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from functools import cache
from typing import Any, Final

import gymnasium

from agentgym_env.errors import BadRequest
from agentgym_env.text_env import TaskSet
from agentgym_servers.web.chromium.interpreter import web_environment, web_python

FAMILY: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")

_PREFIX: Final = "browsergym/"

_TIMEOUT_S: Final = 120.0


def module_of(family: str) -> str:
    """The package of BrowserGym that registers a family."""
    return f"browsergym.{'core' if family == 'openended' else family}"


@cache
def ids_of_family(family: str) -> tuple[str, ...]:
    """The ids of a family without their namespace, such as `miniwob.click-test`."""
    module = module_of(family)
    listed = subprocess.run(
        [web_python(), "-P", "-m", "agentgym_servers.web.chromium.task_list", module],
        env=web_environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if listed.returncode:
        reason = (listed.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise BadRequest(
            f"BrowserGym has no tasks of the family {family!r} in {web_python()} ({reason[:300]}); "
            f"fix that, or install its package browsergym-{family} there"
        )
    # What a package prints when it is imported precedes the list.
    names = [name.removeprefix(_PREFIX) for name in json.loads(listed.stdout.splitlines()[-1])]
    mine = tuple(name for name in names if name.partition(".")[0] == family)
    if not mine:
        raise BadRequest(f"{module} registers no task of the family {family!r}")
    return mine


@cache
def tasks_of_family(family: str, train_seeds: int, test_seeds: int) -> TaskSet:
    """`ID/SEED`: the first `test_seeds` seeds in `test`, and `train_seeds` more in `train`."""
    names = ids_of_family(family)
    seeds = {
        "train": range(test_seeds, test_seeds + train_seeds),
        "test": range(test_seeds),
    }
    splits = {
        split: [f"{name}/{seed}" for name in names for seed in numbers]
        for split, numbers in seeds.items()
        if numbers
    }
    ids = [task for tasks in splits.values() for task in tasks]
    return TaskSet(splits, {task: task.rpartition("/")[0] for task in ids})


def registered_task(env_id: str, module: str) -> Any:
    """What makes the task of an id, which `module` registers."""
    importlib.import_module(module)
    # The environment is made and not begun: BrowserGym knows the task by nothing else.
    make: Any = gymnasium.spec(env_id).entry_point
    return make().task_entrypoint


def registered_ids(module: str) -> list[str]:
    """The ids that are registered with `module`, and by whatever it imports."""
    importlib.import_module(module)
    return sorted(name for name in gymnasium.registry if name.startswith(_PREFIX))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(registered_ids(sys.argv[1])) + "\n")
