"""AgentLab's `EnvArgs` for our environments, which register their task in every process.

```python
study = [ExpArgs(agent_args, env_args) for env_args in env_args_of("agentgym/TextCraft-v0", n=20)]
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentgym_adapters.browsergym_tasks import register_one
from agentgym_adapters.starts import Server, starts_of
from agentgym_env.errors import MissingExtra

try:
    # AgentLab's loop is its own since 0.4, and takes no other arguments than its own.
    from agentlab.experiments.loop import EnvArgs
except ModuleNotFoundError:
    try:
        from browsergym.experiments.loop import EnvArgs
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"AgentLab's arguments need {error.name}: pip install agentlab, or the smaller "
            "browsergym-experiments"
        ) from error


@dataclass
class AgentGymEnvArgs(EnvArgs):
    """One episode."""

    env_id: str = ""
    env_task: str = ""
    label: str = ""
    server: list[str] = field(default_factory=list)
    env_kwargs: dict[str, Any] = field(default_factory=dict)

    def make_env(self, *arguments: Any, **options: Any) -> Any:
        """BrowserGym's environment of the task."""
        register_one(
            self.env_id,
            self.label,
            self.env_task,
            server=self.server or None,
            env_kwargs=self.env_kwargs,
        )
        return super().make_env(*arguments, **options)


def env_args_of(
    env_id: str,
    split: str = "test",
    n: int | None = None,
    seed: int = 0,
    *,
    server: Server = None,
    env_kwargs: dict[str, Any] | None = None,
    max_steps: int | None = None,
) -> list[AgentGymEnvArgs]:
    """`n` episodes of a split; default: each task once. `max_steps` are BrowserGym's own."""
    starts = starts_of(env_id, split, n, seed, server=server, env_kwargs=env_kwargs)
    addresses = [server] if isinstance(server, str) else list(server or [])
    made = []
    for number, (task, task_seed) in enumerate(starts.rows):
        label = f"{split}.seed{seed}.{number}"
        name = register_one(env_id, label, task, server=server, env_kwargs=env_kwargs)
        made.append(
            AgentGymEnvArgs(
                task_name=name,
                task_seed=task_seed,
                max_steps=max_steps,
                env_id=env_id,
                env_task=task,
                label=label,
                server=addresses,
                env_kwargs=dict(env_kwargs or {}),
            )
        )
    return made
