"""Text environments as `gymnasium.Env[str, str]`: in this process, or behind HTTP servers.

Importing this package registers its environments, and those of installed distributions.
"""

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.sync import EnvClient
from agentgym_env.errors import AgentGymError, EnvironmentFault, EnvironmentLost
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.registration import env_class, register, register_all
from agentgym_env.remote import RemoteEnv
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import TaskSet, TextEnv
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

register_all()
