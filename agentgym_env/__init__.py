"""Text environments as `gymnasium.Env[str, str]`: in this process, or behind HTTP servers.

Importing this package registers its environments, and those of installed distributions. Clients,
servers and what else loads an HTTP library are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from agentgym_env.errors import AgentGymError, EnvironmentFault, EnvironmentLost
from agentgym_env.registration import register, register_all
from agentgym_env.registry import env_class
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv

if TYPE_CHECKING:
    from agentgym_env.client.aio import AsyncEnvClient
    from agentgym_env.client.sync import EnvClient
    from agentgym_env.launch import LocalServer, local_server
    from agentgym_env.remote import RemoteEnv
    from agentgym_env.trajectory import Trajectory
    from agentgym_env.vector import RemoteVectorEnv

__all__ = [
    "AgentGymError",
    "AsyncEnvClient",
    "EnvClient",
    "EnvironmentFault",
    "EnvironmentLost",
    "LocalServer",
    "RemoteEnv",
    "RemoteVectorEnv",
    "TaskSet",
    "TextEnv",
    "TextSpace",
    "Trajectory",
    "env_class",
    "local_server",
    "register",
]

_IMPORTED_WHEN_USED: Final = {
    "AsyncEnvClient": "agentgym_env.client.aio",
    "EnvClient": "agentgym_env.client.sync",
    "LocalServer": "agentgym_env.launch",
    "RemoteEnv": "agentgym_env.remote",
    "RemoteVectorEnv": "agentgym_env.vector",
    "Trajectory": "agentgym_env.trajectory",
    "local_server": "agentgym_env.launch",
}


def __getattr__(name: str) -> Any:
    """A public name that is imported when it is first used."""
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_all()
