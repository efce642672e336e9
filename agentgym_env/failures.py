"""The failure contract: how an episode can end, and which endings may teach a policy.

An outcome that does not teach is retried on a fresh session and, if it stays, is left out of the
loss and of the group's baseline. It is counted; it is never a zero reward.
"""

from __future__ import annotations

from typing import Final, Literal

Outcome = Literal[
    "success",  # the world ended and the task is solved
    "failure",  # the world ended and the task is not solved
    "horizon",  # the most turns were used up
    "token_budget",  # the most tokens were used up
    "policy_timeout",  # the policy took longer than its deadline
    "environment_lost",  # the server, its connection or the session is gone
    "engine_lost",  # the generation engine is gone
    "environment_error",  # the environment's own code failed
]
TEACHES: Final[frozenset[str]] = frozenset(
    {"success", "failure", "horizon", "token_budget", "policy_timeout"}
)

Party = Literal["policy", "environment", "server", "engine"]


def at_fault(outcome: Outcome) -> Party:
    """Who brought an episode to its end: only what the policy did may teach it."""
    match outcome:
        case "environment_error":
            return "environment"
        case "environment_lost":
            return "server"
        case "engine_lost":
            return "engine"
    return "policy"


def teaches(outcome: str) -> bool:
    """Whether an episode that ended so belongs in the loss and in its group's baseline."""
    return outcome in TEACHES
