"""Our environments as BrowserGym tasks, also for AgentLab: a page that shows and accepts text.

```python
from agentgym_adapters.browsergym_tasks import register_tasks

names = register_tasks("agentgym/TextCraft-v0", n=20)
env = gymnasium.make(f"browsergym/{names[0]}")
```

An agent writes its action into the page's one field and presses Do, or sends it to the user as a
message. Reward and end are the environment's. The seed of the task is that of the episode.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import gymnasium

from agentgym_adapters.starts import Server, connect_env
from agentgym_env.errors import MissingExtra

try:
    from browsergym.core.registration import register_task
    from browsergym.core.task import AbstractBrowserTask
    from playwright.sync_api import Page
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"BrowserGym's tasks need {error.name}: pip install 'agentgym-sdk[chromium]'"
    ) from error

PREFIX: Final = "agentgym"
_VIEWPORT: Final = {"width": 1280, "height": 720}
_TIMEOUT_MS: Final = 5_000
_PAGE: Final = """<!doctype html><html lang="en"><title>{title}</title><main>
<pre id="told">{told}</pre>
<form onsubmit="agentgymActs.push(act.value); act.value = ''; return false">
<label>Action <input id="act" autocomplete="off" size="80"></label> <button>Do</button>
</form></main><script>var agentgymActs = []</script></html>"""
_TAKE: Final = "() => typeof agentgymActs === 'undefined' ? null : agentgymActs.splice(0)"
_TELL: Final = "told => { document.getElementById('told').textContent = told }"


class TextEnvTask(AbstractBrowserTask):
    """One task of an environment of ours."""

    nondeterministic = False

    def __init__(
        self,
        seed: int,
        env_id: str,
        task: str,
        server: Server = None,
        env_kwargs: Mapping[str, Any] | None = None,
        horizon: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.viewport, self.slow_mo, self.timeout = _VIEWPORT, 0, _TIMEOUT_MS
        self._seed = seed
        self._start = env_id, task, server, env_kwargs
        self._horizon = horizon
        self._env: gymnasium.Env[str, str] | None = None
        self._observation = ""
        self._messages_read = 0
        self._turns = 0
        self._over = False

    @classmethod
    def get_task_id(cls) -> str:
        """BrowserGym's name of the kind of task."""
        return PREFIX

    def setup(self, page: Page) -> tuple[str, dict[str, Any]]:
        """Begin the episode; the goal is the environment's instruction."""
        env_id, task, server, env_kwargs = self._start
        self._env = env = connect_env(env_id, server, env_kwargs)
        self._observation, info = env.reset(seed=self._seed, options={"task": task})
        self._show(page)
        return str(env.get_wrapper_attr("instruction")), info

    def validate(
        self, page: Page, chat_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Take the actions that the agent wrote since the last call, on the page or in the chat."""
        written = page.evaluate(_TAKE)
        # BrowserGym's assistant greets the user first.
        messages = [m["message"] for m in chat_messages if m["role"] == "assistant"][1:]
        actions = [*(written or []), *messages[self._messages_read :]]
        self._messages_read = len(messages)
        reward, info = 0.0, dict[str, Any]()
        for action in actions:
            if self._over or self._env is None:
                break
            self._observation, paid, terminated, truncated, info = self._env.step(str(action))
            reward += float(paid)
            self._turns += 1
            self._over = terminated or truncated or self._turns == self._horizon
        if written is None:
            # The agent has gone elsewhere.
            self._show(page)
        elif actions:
            page.evaluate(_TELL, self._observation)
        return reward, self._over, self._observation if messages and actions else "", info

    def teardown(self) -> None:
        """End the session."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _show(self, page: Page) -> None:
        title = html.escape(self._start[0])
        page.set_content(_PAGE.format(title=title, told=html.escape(self._observation)))


def register_tasks(
    env_id: str,
    split: str = "test",
    n: int | None = None,
    *,
    server: Server = None,
    env_kwargs: Mapping[str, Any] | None = None,
    horizon: int | None = None,
) -> list[str]:
    """Register the first `n` tasks of a split with BrowserGym; their names, in the split's order.

    A name is `agentgym.ENVIRONMENT.SPLIT.NUMBER`; `gymnasium.make` wants `browsergym/` before it.
    BrowserGym keeps them for this process: another has to register them too (see `agentlab_args`).
    """
    env = connect_env(env_id, server, env_kwargs)
    try:
        tasks = env.get_wrapper_attr("tasks").split(split)[:n]
    finally:
        env.close()
    return [
        register_one(
            env_id, f"{split}.{number}", task, server=server, env_kwargs=env_kwargs, horizon=horizon
        )
        for number, task in enumerate(tasks)
    ]


def register_one(
    env_id: str,
    label: str,
    task: str,
    *,
    server: Server = None,
    env_kwargs: Mapping[str, Any] | None = None,
    horizon: int | None = None,
) -> str:
    """Register one task under a label; its name."""
    short = re.split(r"[/:]", env_id)[-1].partition("-v")[0].lower()
    name = f"{PREFIX}.{short}.{label}"
    if f"browsergym/{name}" not in gymnasium.registry:
        register_task(
            name,
            TextEnvTask,
            task_kwargs={
                "env_id": env_id,
                "task": task,
                "server": server,
                "env_kwargs": dict(env_kwargs or {}),
                "horizon": horizon,
            },
            nondeterministic=False,
        )
    return name
