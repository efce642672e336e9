"""Every exception of the SDK, drawn as a tree; knows nothing about transports or worlds.

```
AgentGymError
├── UnknownEnvironment      no environment has this id
├── UnknownTask             the task set has no such task
├── UnknownSplit            the task set has no such split
├── EpisodeOver             step() before reset(), or after the episode's end
├── MissingExtra            an optional dependency is not installed
├── BadRequest              a message, option or argument the receiver does not accept
│   └── ConfigError         a setting of a config or a command is invalid
├── FolderInUse             another process writes to the folder
├── ServerStartFailed       a local environment server did not come up
└── EpisodeFailure          an episode that cannot go on through no fault of the policy
    ├── EnvironmentLost     the server, its connection or the session is gone
    └── EnvironmentFault    the environment's own code failed
```
"""

from __future__ import annotations

from agentgym_env.failures import Outcome


class AgentGymError(Exception):
    """Root of every exception this SDK raises on purpose."""


class UnknownEnvironment(AgentGymError, LookupError):
    """No environment has this id."""


class UnknownTask(AgentGymError, LookupError):
    """The task set has no such task."""


class UnknownSplit(AgentGymError, LookupError):
    """The task set has no such split."""


class EpisodeOver(AgentGymError):
    """`step` was called before `reset`, or after the episode ended."""


class MissingExtra(AgentGymError, ImportError):
    """An optional dependency is not installed; the message says what to type."""


class BadRequest(AgentGymError, ValueError):
    """A message, option or argument that the receiver does not accept.

    `code` is one of `agentgym_env.wire.ErrorCode`.
    """

    def __init__(self, message: str, code: str = "bad_request") -> None:
        super().__init__(message)
        self.code = code


class ConfigError(BadRequest):
    """A setting of a config file or a command is invalid; the message names it and a remedy."""


class FolderInUse(AgentGymError):
    """Another process writes to the folder, or may do so."""


class ServerStartFailed(AgentGymError, RuntimeError):
    """A local environment server did not come up."""


class EpisodeFailure(AgentGymError):
    """An episode that cannot go on through no fault of the policy; never a reward.

    `code` is the wire's error code, or the name of the transport failure.
    """

    kind: Outcome = "environment_error"

    def __init__(self, message: str, code: str = "failure") -> None:
        super().__init__(message)
        self.code = code


class EnvironmentLost(EpisodeFailure):
    """The server, its connection or the session is gone."""

    kind = "environment_lost"


class EnvironmentFault(EpisodeFailure):
    """The environment's own code failed while resetting or stepping."""

    kind = "environment_error"
