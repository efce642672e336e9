"""Every exception of the SDK, drawn as a tree; knows nothing about transports or worlds.

```
AgentGymError
├── UnknownEnvironment      no environment has this id
├── UnknownTask             the task set has no such task
├── UnknownSplit            the task set has no such split
├── EpisodeOver             step() before reset(), or after the episode's end
├── CannotCopy              an environment cannot be copied or pickled
├── MissingExtra            an optional dependency is not installed
├── BadRequest              a message, option or argument the receiver does not accept
│   └── ConfigError         a setting of a config or a command is invalid
├── FolderInUse             another process writes to the folder
├── ServerStartFailed       a local environment server did not start
├── WrapperFailed           a wrapper of the environment raised an exception
└── EpisodeFailure          an episode that cannot continue, without fault of the policy
    ├── EnvironmentLost     the server, its connection or the session is gone
    └── EnvironmentFault    the environment's own code failed
```

The failure contract is here too: how an episode can end, and which endings a policy is trained on.
An episode with another ending is retried on a fresh session. If it persists, it is left out of the
loss and of its group's baseline, and counted; it is never a zero reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, by the shell's convention."""

Outcome = Literal[
    "success",  # the world ended and the task is solved
    "failure",  # the world ended and the task is not solved
    "horizon",  # the most turns were used up
    "world_limit",  # the world's own limit of steps was used up
    "token_budget",  # the most tokens were used up
    "policy_timeout",  # the policy took longer than its deadline
    "environment_lost",  # the server, its connection or the session is gone
    "engine_lost",  # the generation engine is gone
    "environment_error",  # the environment's own code failed
    "agent_lost",  # the program of a black-box agent failed
]

TEACHES: Final[frozenset[str]] = frozenset(
    {"success", "failure", "horizon", "world_limit", "token_budget", "policy_timeout"}
)


def outcome_of(terminated: bool, truncated: bool, info: Mapping[str, Any]) -> Outcome | None:
    """How a step of an environment ends its episode; None if the episode goes on."""
    if terminated:
        return "success" if info.get("success") else "failure"
    return "world_limit" if truncated else None


Party = Literal["policy", "environment", "server", "engine", "agent"]


def at_fault(outcome: Outcome) -> Party:
    """Who caused the end of an episode; a policy is trained only on what it caused."""
    match outcome:
        case "environment_error":
            return "environment"
        case "environment_lost":
            return "server"
        case "engine_lost":
            return "engine"
        case "agent_lost":
            return "agent"
    return "policy"


def teaches(outcome: str) -> bool:
    """Whether an episode with this outcome counts in the loss and in its group's baseline."""
    return outcome in TEACHES


class AgentGymError(Exception):
    """Root of every exception this SDK raises on purpose."""

    exit_status: ClassVar[int] = 2
    """Exit status of a command that it ends."""


class UnknownEnvironment(AgentGymError, LookupError):
    """No environment has this id."""


class CannotCopy(AgentGymError, TypeError):
    """An environment whose state is elsewhere was to be copied or pickled."""


class UnknownTask(AgentGymError, LookupError):
    """The task set has no such task."""


class UnknownSplit(AgentGymError, LookupError):
    """The task set has no such split."""


class EpisodeOver(AgentGymError):
    """`step` was called before `reset`, or after the episode ended."""


class MissingExtra(AgentGymError, ImportError):
    """An optional dependency is not installed; the message contains the install command."""


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
    """A local environment server did not start."""


class WrapperFailed(AgentGymError, RuntimeError):
    """A wrapper raised an exception or returned an invalid step; this ends the run."""


class EpisodeFailure(AgentGymError):
    """An episode that cannot continue, without fault of the policy; never a reward.

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
